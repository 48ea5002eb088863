"""Placements: what ZeRO splits, what it can't, and mesh axes that repeat heads."""

from __future__ import annotations

import numpy as np
import pytest

from autoplan.export.placement import Axes, Naming
from autoplan.intraop.strategies import strategies
from autoplan.model.graph import Dim, Op, Operand, Param

WEIGHT = Param("weight", ("hidden", "heads", "head_dim"))


def projection(hidden: int = 64, heads: int = 8) -> Op:
    dims = (Dim("batch"), Dim("seq"), Dim("hidden", hidden), Dim("heads", heads), Dim("head_dim", 3))
    return Op("q", "contraction", dims, (Operand("x", ("batch", "seq", "hidden")),),
              Operand("q", ("batch", "seq", "heads", "head_dim")), (WEIGHT,))


NAMING = Naming(("data", "model"), (2, 4), {})
DATA_TENSOR = np.array([-2, 1])  # of the weight: a partial gradient over data, heads over model


@pytest.mark.parametrize(("zero", "weight", "gradient", "state"), [
    (0, ((), ("model",), ()), ((), ("model",), ()), ((), ("model",), ())),
    (1, ((), ("model",), ()), ((), ("model",), ()), (("data",), ("model",), ())),
    (2, ((), ("model",), ()), (("data",), ("model",), ()), (("data",), ("model",), ())),
    (3, (("data",), ("model",), ()), (("data",), ("model",), ()), (("data",), ("model",), ())),
])
def test_each_stage_of_zero_splits_one_thing_more(zero: int, weight: Axes, gradient: Axes, state: Axes) -> None:
    placed = NAMING.param(projection(), WEIGHT, DATA_TENSOR, zero)
    assert placed.read == ((), ("model",), ())
    assert (placed.weight, placed.gradient, placed.state) == (weight, gradient, state)


@pytest.mark.parametrize(("hidden", "heads", "state"), [
    (64, 8, (("data",), ("model",), ())),  # a dim that is whole goes first
    (63, 8, ((), ("model", "data"), ())),  # then one that is split already, data the minor part
    (63, 4, ((), ("model",), ())),  # and where none divides, nothing is split
])
def test_zero_splits_the_first_dim_that_divides(hidden: int, heads: int, state: Axes) -> None:
    placed = NAMING.param(projection(hidden, heads), WEIGHT, DATA_TENSOR, 1)
    assert placed.state == state
    assert placed.zero == (1 if state != placed.read else 0)


def test_an_output_that_is_a_partial_sum_has_no_placement() -> None:
    op = projection()
    sizes = {"batch": 8, "seq": 8} | op.static_sizes
    for dim, output in (("hidden", None), ("heads", ((), (), ("data",), ()))):
        assign = np.array([[[one.name for one in op.dims].index(dim), -1]])
        placed = NAMING.op(strategies(op, sizes, (2, 4), assign), 0, ())
        assert placed.output == output


def test_the_minor_axes_of_a_split_hold_the_copies() -> None:
    """Two key and value heads over 2 × 4 devices: one to each device of `data`, repeated by `model`."""
    dims = (Dim("batch"), Dim("seq"), Dim("hidden", 64), Dim("kv_heads", 2), Dim("head_dim", 8))
    op = Op("k", "contraction", dims, (Operand("x", ("batch", "seq", "hidden")),),
            Operand("k", ("batch", "seq", "kv_heads", "head_dim")),
            (Param("weight", ("hidden", "kv_heads", "head_dim")),))
    chosen = strategies(op, {"batch": 8, "seq": 8} | op.static_sizes, (2, 4), np.array([[3, 3]]))
    naming = Naming.of(("data", "model"), (2, 4), [(chosen, 0)])
    assert naming.copies == {"model": 4}
    assert naming.mesh.names == ("data", "model", "model_copies") and naming.mesh.shape == (2, 1, 4)
    assert naming.op(chosen, 0, ()).whole == ((), (), ("data", "model"), ())
