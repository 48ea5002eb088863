"""Writes a chain of placed layers as one JAX training step: forward, backward and update of one micro-batch.

Placements become sharding constraints on every operand and every result; all else is left to the partitioner. Partial
sums are reduced whole; where their reader wants a part, XLA slices what it has reduced, which counts as a
reduce-scatter. Siblings, contractions of one tensor in one placement such as q, k and v, are written as one, as
runtimes do: XLA on CPU would reduce the partial gradient of each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autoplan.export.placement import TOKEN_READERS, Axes, PlacedLayer, PlacedOp, Program
from autoplan.judge import operators
from autoplan.model.graph import TOKEN_DIMS, Op

Arrays = dict[str, jax.Array]
Run = Callable[[list[jax.Array], list[Arrays]], list[jax.Array]]

RATE, DECAY = 1e-3, 0.9


@dataclass(frozen=True)
class Step:
    """A training step `run(params, moments, inputs, tokens, gradient)` and its arguments' shapes and shardings."""

    run: Callable[..., tuple[jax.Array, Arrays, Arrays, Arrays, list[Arrays]]]
    arguments: tuple[object, ...]
    shardings: tuple[object, ...]
    results: tuple[object, ...]


def devices_mesh(layer: PlacedLayer) -> Mesh:
    """Return the layer's mesh on the first devices of this process."""
    count = layer.mesh.num_devices
    return Mesh(np.array(jax.devices()[:count]).reshape(layer.mesh.shape), layer.mesh.names)


def build(program: Program, mesh: Mesh | None) -> Step:
    """Return the training step on `mesh`; None: on one device, without any constraint.

    Results: the output, the inputs' gradients, the parameters' gradients, the new parameters and moments.
    """
    place = _Placer(mesh)
    first, last = program.layers[0], program.layers[-1]
    params = {f"{layer.name}.{param.name}": param
              for layer in program.layers for one in layer.ops for param in one.params}
    tokens = {name: spec for layer in program.layers for name, spec in _tokens(layer)}
    shape, axes = last.output

    def run(values: Arrays, moments: list[Arrays], inputs: Arrays, ids: Arrays,
            gradient: jax.Array) -> tuple[jax.Array, Arrays, Arrays, Arrays, list[Arrays]]:
        def forward(values: Arrays, inputs: Arrays) -> jax.Array:
            out = None
            for layer in program.layers:
                own = {name: values[f"{layer.name}.{name}"] for name in _names(layer)}
                read = inputs if out is None else dict.fromkeys(layer.inputs, out)
                out = _layer(program, layer, read, own, ids, place)
            assert out is not None
            return out

        output, back = jax.vjp(forward, values, inputs)
        grads, input_grads = back(gradient)
        grads = {name: place(grad, params[name].state) for name, grad in grads.items()}
        new_moments = [{name: place(DECAY * one[name] + grads[name], params[name].state) for name in params}
                       for one in moments]
        new = {name: place(place(values[name], params[name].state)
                           - RATE * sum((one[name] for one in new_moments), grads[name]), params[name].state)
               for name in params}
        return output, input_grads, grads, {name: place(new[name], params[name].weight) for name in params}, new_moments

    floats = {name: jax.ShapeDtypeStruct(param.shape, np.float32) for name, param in params.items()}
    weights = {name: place.sharding(param.weight) for name, param in params.items()}
    states = {name: place.sharding(param.state) for name, param in params.items()}
    taken = {name: jax.ShapeDtypeStruct(size, np.float32) for name, (size, _) in first.inputs.items()}
    taken_shardings = {name: place.sharding(axes) for name, (_, axes) in first.inputs.items()}
    ids = {name: jax.ShapeDtypeStruct(size, np.int32) for name, (size, _, _) in tokens.items()}
    ids_shardings = {name: place.sharding(axes) for name, (_, axes, _) in tokens.items()}
    given = jax.ShapeDtypeStruct(shape, np.float32)
    return Step(run, (floats, [floats] * program.moments, taken, ids, given),
                (weights, [states] * program.moments, taken_shardings, ids_shardings, place.sharding(axes)),
                (place.sharding(axes), taken_shardings, states, weights, [states] * program.moments))


class _Placer:
    """Constrains arrays to placements; on one device it lets them be."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    def sharding(self, axes: Axes) -> NamedSharding | None:
        """Return a placement as a sharding."""
        if self.mesh is None:
            return None
        return NamedSharding(self.mesh, PartitionSpec(*(names or None for names in axes)))

    def __call__(self, array: jax.Array, *placements: Axes) -> jax.Array:
        """Return the array under one placement after the other."""
        for axes in placements if self.mesh is not None else ():
            array = jax.lax.with_sharding_constraint(array, self.sharding(axes))
        return array


def _names(layer: PlacedLayer) -> Iterator[str]:
    return (param.name for one in layer.ops for param in one.params)


def _tokens(layer: PlacedLayer) -> Iterator[tuple[str, tuple[tuple[int, ...], Axes, int]]]:
    """Yield, for each operator that reads token ids, its name, their shape and placement, and the vocabulary's size."""
    for one in layer.ops:
        if one.op.kind in TOKEN_READERS:
            axes = tuple(one.whole[one.op.output.dims.index(name)] for name in TOKEN_DIMS)
            shape = tuple(layer.sizes[name] for name in TOKEN_DIMS)
            yield f"{layer.name}.{one.op.name}", (shape, axes, one.op.static_sizes["vocab"])


def vocabularies(program: Program) -> dict[str, int]:
    """Return, for each input of token ids, how many different tokens there are."""
    return {name: vocab for layer in program.layers for name, (_, _, vocab) in _tokens(layer)}


def _layer(program: Program, layer: PlacedLayer, tensors: Arrays, params: Mapping[str, jax.Array], ids: Arrays,
           place: _Placer) -> jax.Array:
    """Run a layer's operators in order and return the last one's output."""
    tensors = {name: place(array, *layer.tensors.get(name, ())) for name, array in tensors.items()}
    for siblings in _siblings(layer.ops) if program.fused else [[one] for one in layer.ops]:
        run, given = _operator(layer, siblings, tensors, params, ids, place)
        gathered = any(param.zero == 3 for one in siblings for param in one.params)
        outputs = (jax.checkpoint(run) if gathered and program.regather else run)(*given)
        for one, out in zip(siblings, outputs, strict=True):
            name = one.op.output.tensor
            tensors[name] = place(out, one.whole, *layer.tensors.get(name, ()))
    return place(tensors[layer.ops[-1].op.output.tensor], layer.output[1])


def _operator(layer: PlacedLayer, siblings: Sequence[PlacedOp], tensors: Arrays, params: Mapping[str, jax.Array],
              ids: Arrays, place: _Placer) -> tuple[Run, tuple[list[jax.Array], list[Arrays]]]:
    """Return a function of inputs and stored parameters that runs some operators as one, and its arguments."""
    one = siblings[0]
    inputs = [place(tensors[operand.tensor], axes) for operand, axes in zip(one.op.inputs, one.inputs, strict=True)]
    if one.op.kind in TOKEN_READERS:
        inputs.append(ids[f"{layer.name}.{one.op.name}"])
    if one.op.kind == "combine":  # it knows each token's places by the router's weights
        (weights,) = (tensors[other.op.output.tensor] for other in layer.ops if other.op.kind == "router")
        inputs.append(place(weights, (*one.whole[:2], ())))

    def run(inputs: list[jax.Array], stored: list[Arrays]) -> list[jax.Array]:
        read = [{param.name.rpartition(".")[2]: place(values[param.name], param.read) for param in sibling.params}
                for sibling, values in zip(siblings, stored, strict=True)]
        if len(siblings) > 1:
            return _together([sibling.op for sibling in siblings], inputs[0], read)
        return [operators.compute(one.op, inputs, read[0])]

    return run, (inputs, [{param.name: params[param.name] for param in sibling.params} for sibling in siblings])


def _siblings(ops: Sequence[PlacedOp]) -> list[list[PlacedOp]]:
    """Group neighbouring contractions of one tensor whose outputs are split alike and can be laid side by side."""
    groups: list[list[PlacedOp]] = []
    for one in ops:
        if groups and _beside(groups[-1][0], one):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _beside(a: PlacedOp, b: PlacedOp) -> bool:
    if not (a.op.kind == b.op.kind == "contraction" and len(a.op.inputs) == 1 and a.op.inputs == b.op.inputs
            and a.inputs == b.inputs and a.params and b.params and a.op.contracted == b.op.contracted):
        return False
    first, second = _new_sizes(a.op), _new_sizes(b.op)
    small, large = sorted((first[:1], second[:1]))
    return (len(first) == len(second) > 0 and first[1:] == second[1:] and large[0] % small[0] == 0
            and a.params[0].read == b.params[0].read)


def _new_sizes(op: Op) -> list[int]:
    """Return the sizes of the dims that a contraction's output gets from its weight."""
    return [op.static_sizes[name] for name in op.params[0].dims if name in op.output.dims]


def _together(ops: Sequence[Op], x: jax.Array, params: Sequence[Mapping[str, jax.Array]]) -> list[jax.Array]:
    """Return the outputs of siblings by one product.

    Their weights [in…, a·r, rest…] are seen as [in…, a, r, rest…] with the a of the narrowest, and laid side by side
    along r: key and value heads beside the query heads that read them.
    """
    narrow = min(_new_sizes(op)[0] for op in ops)
    into = len(ops[0].contracted)
    weights = []
    for op, param in zip(ops, params, strict=True):
        weight = param[op.params[0].name]
        weights.append(weight.reshape(*weight.shape[:into], narrow, -1, *weight.shape[into + 1:]))
    out = jnp.tensordot(x, jnp.concatenate(weights, into + 1), into)
    at = x.ndim - into + 1
    results = jnp.split(out, list(np.cumsum([weight.shape[into + 1] for weight in weights[:-1]])), at)
    biases = [[param[one.name] for one in op.params[1:]] for op, param in zip(ops, params, strict=True)]
    return [sum(bias, result.reshape(*result.shape[:at - 1], -1, *result.shape[at + 1:]))
            for result, bias in zip(results, biases, strict=True)]
