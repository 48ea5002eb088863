"""A plan for JAX: meshes, and the `PartitionSpec` of every parameter and every activation constraint by stage.

Written as JSON, or as a Python module that needs nothing but JAX. Specs are lists with an entry a dim: null, or the
names of the mesh axes that split it, major first. ZeRO shows in the specs of gradients, optimizer states and weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from autoplan.export.placement import Axes, Naming
from autoplan.export.planned import PlannedStage
from autoplan.intraop.strategies import strategies

Tree = dict[str, Any]

_HEADER = '''"""Shardings of {model}, planned by autoplan {version}.

STAGES holds, for each pipeline stage, its mesh, its layers, and the `PartitionSpec` of every parameter (as an operator
reads it, and as weight, gradient and optimizer state are kept) and of every operator's inputs and output (None: a
partial sum, reduced as its reader needs it).
"""

from jax.sharding import PartitionSpec as P

'''


def shardings(stages: Iterable[PlannedStage]) -> list[Tree]:
    """Return, for each stage, its mesh and its layers' specs."""
    return [_stage(stage) for stage in stages]


def as_json(stages: list[Tree], model: str, version: str) -> str:
    """Return the stages as JSON text."""
    return json.dumps({"framework": "jax", "model": model, "autoplan_version": version, "stages": _plain(stages)},
                      indent=1) + "\n"


def as_python(stages: list[Tree], model: str, version: str) -> str:
    """Return the stages as the text of a Python module."""
    return _HEADER.format(model=model, version=version) + f"STAGES = {_source(stages, '')}\n"


def _stage(stage: PlannedStage) -> Tree:
    chosen = {layer.layer.name: [strategies(op, stage.sizes(op), stage.shape, np.array([layer.assign[op.name]]))
                                 for op in layer.layer.ops] for layer in stage.layers}
    naming = Naming.of(stage.names, stage.shape, [(one, 0) for ops in chosen.values() for one in ops])
    layers = {}
    for layer in stage.layers:
        params: Tree = {}
        activations: Tree = {}
        for one in chosen[layer.layer.name]:
            op = one.op
            for param, layout in zip(op.params, one.params, strict=True):
                name = f"{op.name}.{param.name}"
                placed = naming.param(op, param, layout[0], layer.zero[name])
                params[name] = {"dims": list(param.dims), "read": placed.read, "weight": placed.weight,
                                "gradient": placed.gradient, "state": placed.state}
            made = naming.op(one, 0, ())
            inputs = {operand.tensor: axes for operand, axes in zip(op.inputs, made.inputs, strict=True)}
            activations[op.name] = {"dims": list(op.output.dims), "inputs": inputs, "output": made.output}
        layers[layer.layer.name] = {"count": layer.count, "params": params, "activations": activations}
    mesh = naming.mesh
    return {"stage": stage.index, "mesh": {"shape": list(mesh.shape), "axes": list(mesh.names)}, "layers": layers}


def _entries(axes: Axes) -> list[object]:
    """Return a spec's entries: null, an axis, or a list of axes."""
    return [None if not names else names[0] if len(names) == 1 else list(names) for names in axes]


def _plain(tree: object) -> object:
    """Return a tree in which specs are lists that JSON knows."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return _entries(tree) if isinstance(tree, tuple) else tree


def _source(tree: object, indent: str) -> str:
    """Return a tree as Python source."""
    inner = indent + "    "
    if isinstance(tree, dict) and tree:
        items = (f"{inner}{key!r}: {_source(value, inner)},\n" for key, value in tree.items())
        return "{\n" + "".join(items) + indent + "}"
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return "[\n" + "".join(f"{inner}{_source(value, inner)},\n" for value in tree) + indent + "]"
    if isinstance(tree, tuple):
        entries = (tuple(one) if isinstance(one, list) else one for one in _entries(tree))
        return f"P({', '.join(map(repr, entries))})"
    return repr(tree)
