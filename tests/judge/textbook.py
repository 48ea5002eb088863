"""The layers and the programs of the textbook cases: two transformer layers, B 16, S 256, H 512, F 2048, in fp32."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from autoplan.export.placement import PlacedLayer, Program, place
from autoplan.intraop.layer_problem import layer_problem
from autoplan.intraop.strategies import pinned
from autoplan.judge.hlo import Sent, sent
from autoplan.judge.predicted import BytePrices, byte_setting, find_choice, flat_mesh, predicted
from autoplan.judge.worker import Compiled, compile_step
from autoplan.model.architectures import build
from autoplan.model.graph import LayerClass, ModelGraph
from autoplan.model.spec import TransformerSpec

LAYERS, BATCH, SEQ, HIDDEN, FFN = 2, 16, 256, 512, 2048
NAMES = ("data", "model")


def model(**changes: object) -> ModelGraph:
    fields: dict[str, object] = {"name": "tiny", "layers": 2, "hidden": HIDDEN, "heads": 8, "ffn": FFN,
                                 "vocab_size": 1024, "positions": "none"}
    return build(TransformerSpec.model_validate(fields | changes))


def placed(layer: LayerClass, shape: tuple[int, ...], roles: tuple[str, ...],
           zero: int = 0) -> tuple[Sent, PlacedLayer]:
    """Return what a layer sends under a recipe by our prices, and where everything lies."""
    setting = partial(byte_setting, flat_mesh(shape, NAMES[:len(shape)]), BATCH, SEQ, "adam")
    own = setting(BytePrices())
    dims = tuple(own.runtime.roles[role] for role in roles)
    rows = {op.name: pinned(op, own.sizes(op), shape, dims) for op in layer.ops}
    problem = layer_problem(layer, own, zero=(zero,))
    assert problem is not None
    assign = {name: row[0] for name, row in rows.items() if row is not None}
    choice = find_choice(problem, assign, {f"{op.name}.{param.name}": zero for op, param in layer.params()})
    return predicted(layer, setting, choice, (zero,)), place(problem, choice)


def times(count: float, ledger: Sent) -> Sent:
    return {key: count * nbytes for key, nbytes in ledger.items()}


def stacked(layer: PlacedLayer, **how: object) -> Program:
    """Two layers, one after the other."""
    layers = tuple(replace(layer, name=f"layer{index}") for index in range(LAYERS))
    return replace(Program(layers, 2), **how)


def accumulated(program: Program, steps: int) -> Compiled:
    """Compile `steps` micro-batches in a loop whose gradients are added up as ZeRO keeps them, and one update."""
    import jax
    import jax.numpy as jnp

    from autoplan.judge.program import build as built
    from autoplan.judge.program import devices_mesh

    step = built(program, devices_mesh(program.layers[0]))
    params, moments, inputs, tokens, gradient = step.arguments
    keep = partial(jax.lax.with_sharding_constraint, shardings=step.results[2])

    def run(values, moments, inputs, tokens, gradient):
        def micro(total, given):
            grads = step.run(values, moments, given[0], tokens, given[1])[2]
            return keep(jax.tree.map(jnp.add, total, grads)), None

        total, _ = jax.lax.scan(micro, keep(jax.tree.map(jnp.zeros_like, values)), (inputs, gradient))
        new = keep(jax.tree.map(lambda value, grad: value - grad, keep(values), total))
        return jax.lax.with_sharding_constraint(new, step.results[3])

    def many(tree):
        return jax.tree.map(lambda one: jax.ShapeDtypeStruct((steps, *one.shape), one.dtype), tree)

    def lead(tree):
        spec = jax.sharding.PartitionSpec
        return jax.tree.map(lambda one: jax.sharding.NamedSharding(one.mesh, spec(None, *one.spec)), tree)

    weights, states, taken, ids, given = step.shardings
    return compile_step(run, (params, moments, many(inputs), tokens, many(gradient)),
                        (weights, states, lead(taken), ids, lead(given)), step.results[3])


def pipeline(stages: int, micro_batches: int, sequences: int) -> Sent:
    """Compile GPipe over `stages` devices, a small MLP each: a loop of ticks that hand a micro-batch to the next."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:stages]), ("stage",))
    split, whole = PartitionSpec("stage"), PartitionSpec()

    def forward(weight, inputs):
        stage = jax.lax.axis_index("stage")

        def tick(carry, now):
            first = inputs[jnp.minimum(now, micro_batches - 1)]
            out = jax.nn.gelu(jnp.where(stage == 0, first, carry) @ weight[0])
            return jax.lax.ppermute(out, "stage", [(at, at + 1) for at in range(stages - 1)]), out

        zero = jax.lax.pcast(jnp.zeros(inputs.shape[1:]), ("stage",), to="varying")
        _, outs = jax.lax.scan(tick, zero, jnp.arange(micro_batches + stages - 1))
        return jax.lax.psum(jnp.where(stage == stages - 1, jnp.sum(outs[stages - 1:] ** 2), 0.0), "stage")

    mapped = jax.shard_map(forward, mesh=mesh, in_specs=(split, whole), out_specs=whole)
    shapes = (jax.ShapeDtypeStruct((stages, HIDDEN, HIDDEN), np.float32),
              jax.ShapeDtypeStruct((micro_batches, sequences, SEQ, HIDDEN), np.float32))
    shardings = tuple(jax.sharding.NamedSharding(mesh, spec) for spec in (split, whole))
    done = jax.jit(jax.value_and_grad(mapped), in_shardings=shardings).lower(*shapes).compile()
    return sent(done.as_text() or "")
