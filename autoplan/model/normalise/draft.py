"""Operators of a traced graph in atoms: what is left once products, norms, attentions and cheap functions are told
apart, before the dims have names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.model.normalise.atoms import Atoms


@dataclass(frozen=True)
class Read:
    """A tensor that an operator reads. swap: loop dims that the operator has in the place of the tensor's own atoms,
    where it has those a second time (keys beside queries; a square weight's input beside its output)."""

    tensor: str
    swap: Mapping[int, int] = field(default_factory=dict)


@dataclass
class DraftParam:
    """A parameter. key: what it is a part of and which part, equal where storage is shared."""

    name: str
    key: str
    atoms: Atoms
    after_reduction: bool = False


@dataclass
class Draft:
    """An operator. tensor: its result, of the atoms `output`. loop: all loop dims, those of `output` included.

    called: names that this operator has for some of its atoms. grouped: key heads and the query heads they serve.
    flops: forward, at the traced sizes. weight: the loop dims of the weight that is multiplied
    with. whole: dims that can't be split.
    """

    kind: str
    function: str
    tensor: str
    inputs: list[Read]
    output: Atoms
    loop: Atoms
    params: list[DraftParam] = field(default_factory=list)
    attrs: dict[str, int | float | bool | str] = field(default_factory=dict)
    called: dict[int, str] = field(default_factory=dict)
    grouped: tuple[Atoms, Atoms] | None = None
    flops: int = 0
    weight: Atoms = ()
    whole: Atoms = ()

    @property
    def read(self) -> list[str]:
        """The names of the tensors read."""
        return [one.tensor for one in self.inputs]


@dataclass(frozen=True)
class Unpriced:
    """An operator whose time isn't known. flops: as far as they can be counted, else one for each element it writes."""

    name: str
    flops: int
    why: str
