"""Every strategy of every kind of operator, priced by us and compiled by XLA: do both send the same bytes?

    python benchmarks/compiler_matrix.py [OPERATOR ...]     (needs JAX; 1,012 programs, minutes)

Each operator runs alone, forward and backward: its inputs lie as the strategy reads them, its output is reduced where
it is a partial sum, and so are the gradients of its inputs and of its parameters. Prints, by operator and mesh, how
many of the strategies agree to 0.1 %, and what is known of the others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autoplan.export.placement import Naming, PlacedLayer, Program
from autoplan.intraop import pricing
from autoplan.intraop.pricing import Setting
from autoplan.intraop.strategies import NONE, REPEATED, Array, Ints, OpStrategies, enumerate_all, strategies
from autoplan.judge.hlo import Sent
from autoplan.judge.known import habit
from autoplan.judge.predicted import SENT, BytePrices, byte_setting, bytes_sent, flat_mesh
from autoplan.judge.worker import compiled, compiler
from autoplan.model.architectures import build
from autoplan.model.graph import SEQ, ModelGraph, Op, Operand
from autoplan.model.spec import TransformerSpec
from autoplan.sharding import PARTIAL, REPLICATED, codes_to_index

MESHES = ((2, 4), (4, 2), (8, 1))
NAMES = ("data", "model")
BATCH_SIZE, SEQ_LEN = 8, 16
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Case:
    """One strategy of an operator alone on a mesh.

    dims: the loop dim, or none, of each axis. known: what XLA is known to do otherwise.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    predicted: Sent
    program: Program
    known: str | None

    def __str__(self) -> str:
        return f"{self.name} {'×'.join(map(str, self.shape))} {'/'.join(dim or '-' for dim in self.dims)}"


def model(**changes: object) -> ModelGraph:
    """A transformer of one small layer."""
    fields: dict[str, object] = {"name": "small", "layers": 1, "hidden": 64, "heads": 8, "ffn": 64, "vocab_size": 64}
    return build(TransformerSpec.model_validate(fields | changes))


def operators() -> dict[str, Op]:
    """Return an operator of each kind, by name."""
    rich = model(norm="layer", biases=("qkv", "o", "mlp"), qk_norm=True, kv_heads=2, gated=True)
    learned = model(positions="learned", max_positions=SEQ_LEN)
    sparse = model(moe={"experts": 8, "top_k": 4, "ffn": 64, "capacity_factor": 1.0})
    ops = {op.name: op for layer in rich.classes for op in layer.ops}
    ops |= {op.name: op for layer in sparse.classes for op in layer.ops if op.kind in ("router", "dispatch", "experts")}
    return ops | {"position": next(op for layer in learned.classes for op in layer.ops if op.name == "position")}


def cases(name: str, op: Op, shape: tuple[int, ...]) -> Iterator[Case]:
    """Yield the strategies of an operator on a mesh; of a split of key and value heads alone, while they divide."""
    setting = byte_setting(flat_mesh(shape, NAMES), BATCH_SIZE, SEQ_LEN, "sgd", BytePrices())
    sizes = setting.sizes(op)
    dims = [dim.name for dim in op.dims]
    assign = enumerate_all(op, sizes, shape)
    for dim in set(REPEATED) & set(dims):
        assign = assign[_parts(assign, dims.index(dim), shape) <= sizes[dim]]
    chosen = strategies(op, sizes, shape, assign)
    predicted = bytes_sent(lambda prices: cost(chosen, replace(setting, costs=prices)), shape)
    for k, sent in enumerate(predicted):
        naming = Naming.of(NAMES, shape, [(chosen, k)])
        params = tuple(naming.param(op, param, layouts[k], 0)
                       for param, layouts in zip(op.params, chosen.params, strict=True))
        layer = PlacedLayer(name, naming.mesh, sizes, (naming.op(chosen, k, params),), {})
        yield Case(name, shape, tuple(None if at == NONE else dims[at] for at in assign[k]), sent, Program((layer,)),
                   habit(chosen, k, shape))


def cost(chosen: OpStrategies, setting: Setting) -> Array:
    """Return what an operator alone sends under each of its strategies, [K], at the setting's prices."""
    op = chosen.op
    total: Array = pricing.op_terms(chosen, setting)[:, SENT].sum(axis=1)
    total = total + _converted(setting, op, op.output, chosen.output,
                               np.where(chosen.output == PARTIAL, REPLICATED, chosen.output))
    for operand, reads, gradient in zip(op.inputs, chosen.inputs, chosen.gradients, strict=True):
        total = total + _converted(setting, op, operand, gradient, reads)
    for param, layouts in zip(op.params, chosen.params, strict=True):
        terms = pricing.param_terms(pricing.stored(op, param, layouts, setting), (0,), setting)[0]
        total = total + terms[:, SENT].sum(axis=1)
    return total


def agrees(predicted: Sent, got: Sent) -> bool:
    """Whether the bytes of each kind of collective are equal to 0.1 %."""
    return all(abs(a - b) <= TOLERANCE * max(a, b) for a, b in by_kind(predicted, got))


def by_kind(predicted: Sent, got: Sent) -> list[tuple[float, float]]:
    """Return the bytes of each kind of collective, predicted and compiled."""
    kinds = {kind for kind, _ in (*predicted, *got)}
    first, second = ({kind: sum(n for (other, _), n in sent.items() if other is kind) for kind in kinds}
                     for sent in (predicted, got))
    return [(first[kind], second[kind]) for kind in kinds]


def _converted(setting: Setting, op: Op, tensor: Operand, source: Ints, target: Ints) -> Array:
    shape = tuple(size * (tensor.density if name == SEQ else 1.0)
                  for name, size in zip(tensor.dims, pricing.tensor_shape(op, tensor.dims, setting), strict=True))
    rank = len(shape)
    seconds: Array = setting.conversions(shape)[codes_to_index(source, rank), codes_to_index(target, rank)]
    return seconds


def _parts(assign: Ints, position: int, shape: tuple[int, ...]) -> Ints:
    parts: Ints = np.where(assign == position, np.array(shape), 1).prod(axis=1)
    return parts


def main() -> None:
    """Print the matrix; exit with 1 where XLA does what nobody knows of."""
    wanted = sys.argv[1:]
    ops = {name: op for name, op in operators().items() if not wanted or name in wanted}
    strange: list[str] = []
    total: Counter[str] = Counter()
    with compiler(8) as pool:
        for name, op in ops.items():
            line = f"{name:12s}"
            for shape in MESHES:
                some = list(cases(name, op, shape))
                got = list(pool.map(compiled, [case.program for case in some]))
                result: Counter[str] = Counter()
                for case, one in zip(some, got, strict=True):
                    same = agrees(case.predicted, one.sent)
                    result["agree" if same else case.known or "unknown"] += 1
                    if not same and case.known is None:
                        strange.append(f"{case}: {case.predicted} but XLA {one.sent}")
                total += result
                line += f"  {'×'.join(map(str, shape))}: {result['agree']:3d} of {len(some):3d}"
            print(line, flush=True)
    print("\n" + "\n".join(f"{count:5d} {what}" for what, count in total.most_common()))
    print("\n".join(strange))
    sys.exit(bool(strange))


if __name__ == "__main__":
    main()
