"""The operator graph: loop dims, operators, layer classes, and the model as a chain of layers.

An operator is described by its *loop dims*: the dims it iterates over, whether or not they survive into its output. A
matrix product `y[token, out] = Σ_in x[token, in] · w[in, out]` has the loop dims `(token, out, in)`. From the loop dims
follow the layouts of all its operands once each mesh axis has been given to one loop dim (see `autoplan.sharding`).

The graph holds no workload: the dims `batch`, `seq` and `kv_seq` have no size until a `Workload` gives them one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

BATCH, SEQ, KV_SEQ = "batch", "seq", "kv_seq"
TOKEN_DIMS = (BATCH, SEQ)
STREAM = (*TOKEN_DIMS, "hidden")  # the residual stream of a transformer
EXPERTS = "experts"

# Dims that are never split: parts of a head, widths that a norm or a router needs whole, taps of a convolution.
UNSPLIT = frozenset((
    "head_dim", "value_dim", "nope_dim", "rope_dim", "q_latent", "kv_latent", "latent", "positions", "routes", "state",
    "taps", "seq_in", "pixels", "merged", "buckets", "types",
))


@dataclass(frozen=True)
class Dim:
    """A loop dim. `size` is None for the dims that the workload sizes (`batch`, `seq`, `kv_seq`)."""

    name: str
    size: int | None = None


@dataclass(frozen=True)
class Operand:
    """An activation as one operator sees it: the tensor's name and, position by position, the loop dims it spans.

    density: the part of its positions along `seq` that hold something; a token goes to few of the `experts`.
    """

    tensor: str
    dims: tuple[str, ...]
    density: float = 1.0


@dataclass(frozen=True)
class Param:
    """A parameter of an operator.

    `dims` are loop dims of its operator. `after_reduction` marks a parameter that is added to the operator's finished
    output (a bias), so that a split of a contracted dim leaves its gradient whole. `tied` names the layer class and
    parameter it shares storage with, as `class.parameter`.
    """

    name: str
    dims: tuple[str, ...]
    after_reduction: bool = False
    tied: str | None = None


@dataclass(frozen=True)
class Op:
    """An operator.

    kind: the family in `autoplan.model.ops` that tells its work, saved tensors and legal splits.
    dims: every loop dim. A loop dim absent from `output.dims` is contracted.
    grouped: pairs `(operand dim, loop dim)`: the operand dim is split along with the loop dim where its own size is
        divisible, and replicated otherwise (key/value heads under a split of the query heads).
    attrs: what else the family needs, as sorted `(name, value)` pairs, e.g. `(("causal", True),)`.
    """

    name: str
    kind: str
    dims: tuple[Dim, ...]
    inputs: tuple[Operand, ...]
    output: Operand
    params: tuple[Param, ...] = ()
    grouped: tuple[tuple[str, str], ...] = ()
    attrs: tuple[tuple[str, int | float | bool | str], ...] = ()

    def attr(self, name: str, default: int | float | bool | str | None = None) -> int | float | bool | str | None:
        """Return the attribute `name`, or `default`."""
        return dict(self.attrs).get(name, default)

    @cached_property
    def static_sizes(self) -> dict[str, int]:
        """The sizes of the dims that don't depend on the workload."""
        return {dim.name: dim.size for dim in self.dims if dim.size is not None}

    @cached_property
    def contracted(self) -> tuple[str, ...]:
        """Loop dims that the output lacks."""
        return tuple(dim.name for dim in self.dims if dim.name not in self.output.dims)

    def numel(self, param: Param) -> int:
        """Return the number of elements of `param`."""
        return math.prod(self.static_sizes[name] for name in param.dims)


@dataclass(frozen=True)
class LayerClass:
    """A layer: operators in topological order, with at most one input and one output activation (the residual stream).

    The first layer of a model has no input tensor (it reads token ids), the last has no output tensor (it ends in the
    loss). carried: activations that pass through the layer beside the residual stream, unchanged: read by it (by their
    tensors' names) or only handed on, such as an encoder's output on its way to all layers of the decoder.
    """

    name: str
    ops: tuple[Op, ...]
    input: Operand | None
    output: Operand | None
    carried: tuple[Operand, ...] = ()

    @cached_property
    def key(self) -> str:
        """Structural hash: equal for layers that differ in their name alone."""
        text = repr((self.ops, self.input, self.output, self.carried))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def params(self) -> Iterator[tuple[Op, Param]]:
        """Yield every parameter with its operator."""
        for op in self.ops:
            for param in op.params:
                yield op, param

    def num_params(self, *, tied: bool = False) -> int:
        """Return the number of parameters; those tied to another layer's are counted only if `tied`."""
        return sum(op.numel(param) for op, param in self.params() if tied or param.tied is None)


@dataclass(frozen=True)
class ModelGraph:
    """A model: a chain of layers, each an instance of a layer class.

    classes: the distinct layer classes. layers: for each layer in order, the index of its class.
    facts: architecture facts for people and for defaults (hidden size, max sequence, …); never read by the cost model.
    """

    name: str
    classes: tuple[LayerClass, ...]
    layers: tuple[int, ...]
    facts: Mapping[str, int | float | bool | str] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        """Layers of the chain, embedding and head included."""
        return len(self.layers)

    def layer(self, index: int) -> LayerClass:
        """Return the class of layer `index`."""
        return self.classes[self.layers[index]]

    @cached_property
    def num_params(self) -> int:
        """Parameters, each tied one counted once."""
        return sum(self.classes[index].num_params() for index in self.layers)
