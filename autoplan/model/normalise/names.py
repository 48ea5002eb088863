"""Names for dims, from what operators do with them, and drafts as operators of the model graph.

Recipes and legal splits go by names (`batch`, `seq`, `heads`, `ffn`, `vocab` …), so an imported graph has those of the
built-in architectures: `heads` and `head_dim` are what attention sums and doesn't, `hidden` is the width of the
residual stream, `ffn` a dim that a product makes and another one sums. What has no such part is `dim1`, `dim2` …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoplan.model.graph import BATCH, KV_SEQ, SEQ, Dim, Op, Operand, Param
from autoplan.model.normalise.atoms import Atoms
from autoplan.model.normalise.attention import Core
from autoplan.model.normalise.axes import Dims
from autoplan.model.normalise.draft import Draft, Read
from autoplan.model.normalise.trace import Source, Trace

FIRST = (BATCH, SEQ, KV_SEQ, "seq_in")  # dims that go first in a tensor
NEEDED = ("heads", "taps", "inputs", "channels")  # that an operator has though they be of size one
ONE = (BATCH, SEQ, KV_SEQ)  # of which an operator has one, whatever atoms it is made of


@dataclass(frozen=True)
class Names:
    """The name of each atom; atoms of one group, next to each other, are one dim. sequence: the atoms of the sequence
    that the workload sizes."""

    of: Mapping[int, str]
    group: Mapping[int, int]
    sequence: Atoms


def names_of(trace: Trace, dims: Dims, cores: Iterable[Core], drafts: list[Draft]) -> Names:
    """Name the dims of a graph."""
    naming = _Naming()
    cores = list(cores)
    inputs = [(value, dims.of(name)) for name, value in trace.values.items()
              if value.source in (Source.TOKENS, Source.INPUT) and name in _read(trace)]
    for _, axes in inputs:
        naming.call(BATCH, axes[0] if axes else ())
    tokens = [axes[1] for value, axes in inputs if value.source is Source.TOKENS and len(axes) > 1]
    sequence = _sequence(naming, dims, cores, tokens, drafts)
    for core in cores:  # windows of a sequence are batches of an attention, but positions all the same
        naming.call(SEQ, (*core.batch, *core.queries))
    for axis in tokens:
        naming.call(SEQ, axis)
    for draft in drafts:
        naming.call(SEQ, [atom for atom, called in draft.called.items() if called in (SEQ, "seq_in")], group=False)
    for core in cores:
        naming.call("heads", core.heads)
        naming.call("head_dim", core.width)
        naming.call("head_dim" if dims.table.product(core.width) == dims.table.product(core.value_width)
                    else "value_dim", core.value_width)
    for draft in drafts:
        if draft.kind == "embedding":
            table = draft.params[0].atoms if draft.params else ()
            naming.call("vocab", table[:1])
            naming.call("hidden", table[1:])
        elif draft.kind == "loss":
            naming.call("vocab", [atom for atom in draft.loop if atom not in draft.output])
    naming.call("hidden", _stream(naming, drafts) if cores or tokens else ())
    for param in (param for draft in drafts for param in draft.params if param.name.startswith("position")):
        rows = [atom for atom in param.atoms if atom not in naming.of]
        naming.call("positions" if dims.table.product(rows) >= dims.table.product(sequence) else "types", rows)
    for draft in drafts:
        for read in draft.inputs:
            naming.call("channels", [own for own, new in read.swap.items() if draft.called.get(new) == "inputs"],
                        group=False)
        for atom, called in draft.called.items():
            naming.call("channels" if called == "inputs" else called, (atom,), group=False)
    made = {atom for draft in drafts if draft.kind == "contraction" and draft.params for atom in draft.output}
    summed = {atom for draft in drafts if draft.kind == "contraction" and draft.params
              for atom in draft.loop if atom not in draft.output}
    for draft in drafts:
        if draft.kind == "contraction":
            naming.call("ffn", [atom for atom in draft.output if atom in made & summed])
    return Names(naming.of, naming.group, sequence)


def _sequence(naming: _Naming, dims: Dims, cores: list[Core], tokens: list[Atoms], drafts: list[Draft]) -> Atoms:
    """Return the positions that the workload sizes: of the queries of whole sequences and the axes of tokens those that
    reach the loss, else any; the longest."""
    whole = Counter(tuple(atom for atom in core.queries if atom not in naming.of) for core in cores
                    if naming.of.keys() >= set(core.batch))
    candidates = [*(axis for axis, _ in whole.most_common()), *tokens]
    ends = [draft.loop for draft in drafts if draft.kind == "loss"]
    at_end = [axis for axis in candidates if ends and set(axis) <= set(ends[-1])]
    return max(at_end or candidates, key=dims.table.product, default=())


def _read(trace: Trace) -> set[str]:
    return {name for node in trace.nodes for name in node.inputs}


def _stream(naming: _Naming, drafts: list[Draft]) -> Atoms:
    """Return the dims that most residual adds have, beside those of tokens."""
    found = Counter(tuple(atom for atom in draft.output if naming.of.get(atom) not in (BATCH, SEQ))
                    for draft in drafts if draft.function == "add" and draft.kind == "elementwise")
    return found.most_common(1)[0][0] if found else ()


class _Naming:
    """Names as they are given; the first that an atom gets stays."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}
        self.group: dict[int, int] = {}

    def call(self, name: str, atoms: Iterable[int], *, group: bool = True) -> None:
        """Name the atoms that have no name yet; together they are one dim if `group`."""
        new = [atom for atom in atoms if atom not in self.of]
        for atom in new:
            self.of[atom] = name
            self.group[atom] = new[0] if group else atom


class Finisher:
    """Turns drafts into operators with named dims."""

    def __init__(self, dims: Dims, names: Names, atoms: Mapping[str, Atoms]) -> None:
        self.dims, self.names, self.atoms = dims, names, atoms

    def op(self, draft: Draft, name: str, tensors: Mapping[str, str], ties: Mapping[str, str], *,
           for_keys: frozenset[str]) -> Op:
        """Return the operator of a draft.

        name: what it and its output are called. tensors: what the tensors it reads are called. ties: parameter key →
        the parameter it shares storage with. for_keys: tensors whose heads are those of keys and values.
        """
        local = _Local(self, draft, draft.tensor in for_keys)
        reads = tuple(
            Operand(tensors[read.tensor], local.dims(self._ordered(self.atoms[read.tensor]), read.swap,
                                                    keys=read.tensor in for_keys))
            for read in draft.inputs)
        output = Operand(name, local.dims(self._ordered(draft.output)))
        loops = local.sized(self._ordered(draft.loop))
        if BATCH in local.seen and SEQ not in {dim.name for dim in loops}:  # its result has one position
            loops = (*loops[:1], Dim(SEQ, 1), *loops[1:])
        params = tuple(Param(param.name, local.param_dims(self._as_looped(draft, param.atoms)), param.after_reduction,
                             ties.get(param.key)) for param in draft.params)
        extra = tuple(dim for dim in local.seen if dim not in {one.name for one in loops})
        loops = (*loops, *(Dim(dim, local.seen[dim]) for dim in extra if dim not in self._hidden_keys(draft)))
        attrs = dict(draft.attrs)
        if draft.kind in ("elementwise", "stream"):
            attrs["function"] = draft.function
        whole = " ".join(dim.name for dim in local.sized(draft.whole, pad=False))
        if draft.kind == "norm" and {*whole.split()} != {dim for param in params for dim in param.dims}:
            attrs["over"] = whole
        elif draft.kind == "stream":
            attrs["whole"] = whole
        grouped = (("kv_heads", "heads"),) if draft.grouped is not None else ()
        return Op(name, draft.kind, loops, reads, output, params, grouped, tuple(sorted(attrs.items())))

    def _as_looped(self, draft: Draft, atoms: Atoms) -> Atoms:
        """Return a weight's atoms in the order of the loop: how it is stored doesn't matter to its layouts."""
        product = draft.kind in ("contraction", "convolution", "embedding")
        return tuple(sorted(atoms, key=draft.loop.index)) if product and set(atoms) <= set(draft.loop) else atoms

    def passed(self, tensor: str, x: str, name: str) -> Op:
        """Return the operator that hands the tensor called `x` on as `name`."""
        atoms = self.atoms[tensor]
        draft = Draft("elementwise", "pass", tensor, [Read(tensor)], atoms, atoms)
        return self.op(draft, name, {tensor: x}, {}, for_keys=frozenset())

    def operand(self, tensor: str, name: str) -> Operand:
        """Return a tensor that passes from layer to layer."""
        atoms = self.atoms[tensor]
        local = _Local(self, Draft("", "", tensor, [], atoms, atoms), keys=False)
        return Operand(name, local.dims(self._ordered(atoms)))

    def _hidden_keys(self, draft: Draft) -> tuple[str, ...]:
        """Key heads are no loop dim of attention: they follow the query heads."""
        return ("kv_heads",) if draft.kind == "attention" else ()

    def _ordered(self, atoms: Atoms) -> Atoms:
        """Return the atoms with batch and positions first."""
        def rank(atom: int) -> int:
            name = self.names.of.get(atom)
            return FIRST.index(name) if name in FIRST else len(FIRST)

        return tuple(sorted(atoms, key=rank))


class _Local:
    """The names of one operator's dims: distinct dims have distinct names."""

    def __init__(self, finisher: Finisher, draft: Draft, keys: bool) -> None:
        self.finisher, self.draft, self.keys = finisher, draft, keys
        self.seen: dict[str, int | None] = {}
        self.chosen: dict[tuple[str, int], str] = {}

    def dims(self, atoms: Atoms, swap: Mapping[int, int] | None = None, *, keys: bool = False) -> tuple[str, ...]:
        """Return the names of a tensor's dims."""
        return tuple(dim.name for dim in self.sized(atoms, swap, keys=keys))

    def param_dims(self, atoms: Atoms) -> tuple[str, ...]:
        """Return the names of a parameter's dims; rows for positions are no dim that the workload sizes."""
        names = []
        for dim in self.sized(atoms, pad=False):
            rows = dim.name in FIRST
            names.append("positions" if rows else dim.name)
            if rows:
                self.seen["positions"] = self.finisher.dims.table.product(
                    atom for atom in atoms if self._name(atom, self.keys) == dim.name)
        return tuple(names)

    def sized(self, atoms: Atoms, swap: Mapping[int, int] | None = None, *, keys: bool = False, pad: bool = True,
              ) -> tuple[Dim, ...]:
        """Return the dims of a tensor with their sizes. pad: every tensor of a batch has positions, if only one."""
        groups: dict[str, list[int]] = {}
        for atom in atoms:
            atom = (swap or {}).get(atom, atom)
            needed = self.draft.called.get(atom) in NEEDED or self.finisher.names.of.get(atom) == BATCH
            if self.finisher.dims.table.size(atom) == 1 and not needed:
                continue
            groups.setdefault(self._name(atom, keys or self.keys), []).append(atom)
        result = []
        for name, members in groups.items():
            size = self._size(name, members)
            self.seen[name] = size
            result.append(Dim(name, size))
        if pad and BATCH in groups and not groups.keys() & {SEQ, KV_SEQ, "seq_in"}:
            self.seen[SEQ] = 1
            result.insert([dim.name for dim in result].index(BATCH) + 1, Dim(SEQ, 1))
        return tuple(result)

    def _size(self, name: str, atoms: list[int]) -> int | None:
        names = self.finisher.names
        if name == BATCH or (name == SEQ and set(atoms) <= set(names.sequence)):
            return None
        product = self.finisher.dims.table.product(atoms)
        if name == KV_SEQ and product == self.finisher.dims.table.product(names.sequence):
            return None
        return product

    def _name(self, atom: int, keys: bool) -> str:
        names = self.finisher.names
        base = self.draft.called.get(atom) or names.of.get(atom) or "dim"
        if base == SEQ and atom not in self.draft.output:
            base = "seq_in"  # positions that the operator reduces to others, or to one
        if base == "heads" and keys:
            base = "kv_heads"
        group = names.group.get(atom, atom)
        if base in ONE or atom in self.draft.called or self.draft.kind == "attention":
            return base
        if base == "seq_in":  # each tensor's own
            group = next((index for index, read in enumerate(self.draft.inputs)
                          if atom in self.finisher.atoms[read.tensor]), 0)
        known = (base, group)
        if known not in self.chosen:
            taken = sum(1 for one in self.chosen if one[0] == base)
            self.chosen[known] = f"{base}{taken + 1}" if taken or base == "dim" else base
        return self.chosen[known]


def key_tensors(drafts: list[Draft]) -> frozenset[str]:
    """Return the tensors that lead to attention's keys and values alone, back to the products that make them."""
    readers: dict[str, list[tuple[Draft, int]]] = {}
    for draft in drafts:
        for index, read in enumerate(draft.inputs):
            readers.setdefault(read.tensor, []).append((draft, index))
    found: set[str] = set()
    for draft in reversed(drafts):
        uses = readers.get(draft.tensor, [])
        if uses and all((reader.kind == "attention" and index > 0)
                        or (reader.tensor in found and reader.kind != "contraction") for reader, index in uses):
            found.add(draft.tensor)
    return frozenset(found)

