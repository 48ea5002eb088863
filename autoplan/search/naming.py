"""Recognises what the ILP chose: which role each mesh axis plays in a stage, and the degrees that follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, layer_problem
from autoplan.intraop.strategies import OpStrategies, pinned
from autoplan.intraop.tables import LayerTable
from autoplan.runtimes import Runtime
from autoplan.search.solve import StageSolution


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees of a stage. recipe: its name, e.g. "dp", "tp+sp"."""

    dp: int
    cp: int
    tp: int
    sequence_parallel: bool
    recipe: str


def used_tables(stage: StageSolution) -> tuple[tuple[LayerTable, int], ...]:
    """Return the tables a stage uses, first layer to last, with the row it uses of each."""
    rows = stage.table.combinations(stage.first, stage.last, stage.layers > 0)
    parts = ((stage.table.first, rows.first), (stage.table.layer, rows.layer),
             (stage.table.whole if stage.first else stage.table.last, rows.last))
    return tuple((table, int(index[stage.row])) for table, index in parts if index[stage.row] >= 0)


def degrees(stage: StageSolution) -> Degrees | None:
    """Return the stage's degrees, or None where its shardings are no recipe of the runtime."""
    shape = stage.mesh.shape
    before = ("data",) if len(shape) == 2 else ("data", "context")
    options = [stage.roles] if stage.roles is not None else [(*before, role) for role in ("tensor", "tensor_sequence")]
    runtime = stage.table.setting.runtime
    for roles in options:
        if stage.roles is not None or all(
                _follows(table.problem, table.choice[row], roles, runtime) for table, row in used_tables(stage)):
            return _degrees(shape, roles)
    return None


def _degrees(shape: tuple[int, ...], roles: tuple[str, ...]) -> Degrees:
    cp = shape[1] if len(shape) == 3 else 1
    sequence_parallel = roles[-1] == "tensor_sequence" and shape[-1] > 1
    parts = [name for name, size in (("dp", shape[0]), ("cp", cp), ("tp", shape[-1])) if size > 1]
    parts += ["sp"] if sequence_parallel else []
    return Degrees(shape[0], cp, shape[-1], sequence_parallel, "+".join(parts) or "single")


def _follows(problem: LayerProblem, choice: NDArray[np.int16], roles: tuple[str, ...], runtime: Runtime) -> bool:
    """Whether every operator and layout of a row is what the roles would pin it to."""
    setting = problem.setting
    dims = tuple(runtime.roles[role] for role in roles)
    for node, k in zip(problem.nodes, choice, strict=True):
        if isinstance(node.content, OpStrategies):
            op = node.content.op
            demanded = pinned(op, setting.sizes(op), setting.mesh.shape, dims)
            if demanded is None or (demanded[0] != node.content.assign[k]).any():
                return False
    demanded_problem = layer_problem(problem.layer, setting, roles=roles)
    assert demanded_problem is not None
    states = {node.name: node.content.states for node in demanded_problem.nodes if isinstance(node.content, LayoutNode)}
    return all((states[node.name] == node.content.states[k]).all(axis=1).any()
               for node, k in zip(problem.nodes, choice, strict=True) if isinstance(node.content, LayoutNode))
