"""The ILP's optimum for a GPT block, compiled: no recipe, as XLA compiles it, sends less.

On one node every link is alike, so what communication costs is the bytes that a device sends. Products and attention
are to be split over all devices: to do the same work everywhere sends nothing.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product

import numpy as np
import pytest
from textbook import BATCH, NAMES, SEQ, model

from autoplan.export.placement import PlacedLayer, Program, place
from autoplan.intraop.layer_problem import LayerProblem, layer_problem
from autoplan.intraop.problem import IntraOpProblem
from autoplan.intraop.solve import solve
from autoplan.intraop.strategies import NONE, Array, OpStrategies, pinned
from autoplan.judge.hlo import Sent
from autoplan.judge.predicted import SENT, BytePrices, byte_setting, find_choice, flat_mesh
from autoplan.judge.worker import compiled

LAYER = model().layer(1)
MESHES = ((2, 4), (1, 8), (8, 1))
RECIPES = (("data", "tensor"), ("data", "tensor_sequence"), ("data", "data"))
STAGES = (0, 1, 2, 3)


def problem_of(shape: tuple[int, ...], zero: int) -> LayerProblem:
    setting = partial(byte_setting, flat_mesh(shape, NAMES), BATCH, SEQ, "adam")
    problem = layer_problem(LAYER, setting(BytePrices()), zero=(zero,))
    assert problem is not None
    return problem


def bytes_of(problem: LayerProblem) -> list[Array]:
    """Return the bytes that each node's strategies send; inf for products and attention that some devices repeat."""
    costs = []
    for node in problem.nodes:
        sent = node.terms[:, SENT].sum(axis=1)
        if isinstance(node.content, OpStrategies) and node.content.op.kind in ("contraction", "attention"):
            repeats = (node.content.assign == NONE) & (np.array(problem.setting.mesh.shape) > 1)
            sent = np.where(repeats.any(axis=1), np.inf, sent)
        costs.append(sent)
    return costs


def optimum(problem: LayerProblem) -> PlacedLayer:
    """Return where the strategies lie that send the least bytes, by the ILP, without a limit of memory."""
    costs = bytes_of(problem)
    ilp = IntraOpProblem(tuple(node.name for node in problem.nodes), tuple(costs),
                         tuple((edge.u, edge.v) for edge in problem.edges),
                         tuple(edge.forward + edge.backward for edge in problem.edges), (), np.inf)
    choice = solve(ilp).choice
    assert choice is not None
    return place(problem, choice)


def recipe(problem: LayerProblem, roles: tuple[str, ...], zero: int) -> PlacedLayer | None:
    setting = problem.setting
    dims = tuple(setting.runtime.roles[role] for role in roles)
    rows = {op.name: pinned(op, setting.sizes(op), setting.mesh.shape, dims) for op in LAYER.ops}
    if any(row is None for row in rows.values()):
        return None
    assign = {name: row[0] for name, row in rows.items() if row is not None}
    return place(problem, find_choice(problem, assign, {f"{op.name}.{one.name}": zero for op, one in LAYER.params()}))


@pytest.mark.parametrize("shape", MESHES, ids=lambda shape: "×".join(map(str, shape)))
def test_no_recipe_sends_less_than_the_optimum(shape: tuple[int, ...], pool: ProcessPoolExecutor) -> None:
    """Megatron's tensor and sequence parallelism, data parallelism, each with ZeRO 0 to 3."""
    problems = {zero: problem_of(shape, zero) for zero in STAGES}
    best = [pool.submit(compiled, Program((optimum(problem),))) for problem in problems.values()]
    others = {(roles, zero): recipe(problems[zero], roles, zero) for roles, zero in product(RECIPES, STAGES)}
    jobs = {key: pool.submit(compiled, Program((layer,))) for key, layer in others.items() if layer is not None}

    def total(sent: Sent) -> float:
        return sum(sent.values())

    ours = min(total(job.result().sent) for job in best)
    theirs = {key: total(job.result().sent) for key, job in jobs.items()}
    assert len(theirs) == len(others)
    assert 0 < ours <= min(theirs.values()) * (1 + 1e-3), theirs
