"""Recognises what the ILP chose: which role each mesh axis plays in a stage, and the degrees that follow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.intraop.layer_problem import LayerProblem, LayoutNode, layer_problem
from autoplan.intraop.strategies import OpStrategies, pinned
from autoplan.runtimes import Runtime
from autoplan.search.recipes import Degrees, degrees_of, recipes
from autoplan.search.solve import StageSolution


def degrees(stage: StageSolution) -> Degrees | None:
    """Return the stage's degrees, or None where its shardings are no recipe of the runtime."""
    tables = stage.used
    experts = any(op.kind == "experts" for table in stage.table.layers for op in table.problem.layer.ops)
    if stage.roles is not None:
        return degrees_of(stage.mesh, stage.roles, experts=experts)
    runtime = stage.table.setting.runtime
    named = list(recipes(stage.mesh, experts=experts))
    if experts:  # the data axis may hold experts, too
        named += [("expert", *roles[1:]) for roles in named]
    for roles in named:
        if all(_follows(table.problem, table.choice[row], roles, runtime) for table, row in tables):
            return degrees_of(stage.mesh, roles, experts=experts)
    return None


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
    if demanded_problem is None:
        return False
    states = {node.name: node.content.states for node in demanded_problem.nodes if isinstance(node.content, LayoutNode)}
    return all((states[node.name] == node.content.states[k]).all(axis=1).any()
               for node, k in zip(problem.nodes, choice, strict=True) if isinstance(node.content, LayoutNode))
