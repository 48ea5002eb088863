"""Prices of operators, parameters and conversions: groups, conservation over ranks, shared storage."""

from __future__ import annotations

import numpy as np
import pytest
from byte_prices import WEIGHTS, model, setting
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import Axis, load, mesh
from autoplan.cost.model import CostModel
from autoplan.intraop import pricing
from autoplan.intraop.pricing import Setting
from autoplan.intraop.strategies import enumerate_all, strategies
from autoplan.intraop.terms import Policy, Term, conversion_weights, criteria
from autoplan.model.graph import Op
from autoplan.runtimes import load as load_runtime
from autoplan.sharding import PARTIAL, REPLICATED
from autoplan.workload import Recompute, Workload

GRAPH = model(kv_heads=2, gated=True, biases=("qkv", "o", "mlp"))
OPS = {op.name: op for layer in GRAPH.classes for op in layer.ops}
WITH_PARAMS = [op for op in OPS.values() if op.params]


def real(cluster: str, shape: tuple[int, ...]) -> Setting:
    machine, runtime = load(cluster), load_runtime("plain")
    return Setting(mesh(machine, shape), CostModel(machine, runtime), runtime, Workload(64, 1024), 16)


def test_a_group_of_axes_has_the_ranks_of_both() -> None:
    on = real("dgx-h100:32", (8, 4))  # axis 0: two in a node, four nodes; axis 1 inside a node
    assert on.group((0,)) == on.mesh.axes[0] and on.group((1,)) == on.mesh.axes[1]
    assert on.group((0, 1)) == Axis(size=32, intra=8, nodes=4, sharing=1)


def test_seconds_grow_with_work_and_shrink_with_parts() -> None:
    """Each operator's strategies: no strategy is slower than doing all of it on one device, none is free."""
    on = real("dgx-h100:8", (8,))
    for op in OPS.values():
        every = strategies(op, on.sizes(op), on.mesh.shape, enumerate_all(op, on.sizes(op), on.mesh.shape))
        terms = pricing.op_terms(every, on)
        alone = (every.assign == -1).all(axis=1)
        for term in (Term.FORWARD, Term.BACKWARD, Term.SAVED, Term.WORKSPACE):
            assert (terms[:, term] <= terms[alone, term] * (1 + 1e-9)).all()
        assert (terms[:, Term.FORWARD] > 0).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(WITH_PARAMS), st.data(), st.sampled_from([(8,), (2, 4), (1, 8)]))
def test_state_adds_up_over_the_ranks(op: Op, data: st.DataObject, shape: tuple[int, ...]) -> None:
    """16 bytes a parameter (fp32 Adam: 4 + 4 + 8) and replica; at ZeRO-3 no replica is left on data axes."""
    on = setting(shape)
    param = data.draw(st.sampled_from(op.params))
    made = strategies(op, on.sizes(op), shape, enumerate_all(op, on.sizes(op), shape))
    layouts = np.unique(made.params[op.params.index(param)], axis=0)
    terms = pricing.param_terms(pricing.stored(op, param, layouts, on), (0, 1, 2, 3), on)
    held = terms[..., [Term.WEIGHTS, Term.GRADIENTS, Term.STATES]]
    ranks = on.mesh.num_devices
    split = np.where(layouts >= 0, np.array(shape), 1).prod(axis=1)
    copies = pricing.copies(op, param, layouts, on)
    replicas = ranks / split * copies
    data_parallel = np.where(layouts == PARTIAL, np.array(shape), 1).prod(axis=1)
    assert ranks * held[0].sum(axis=-1) == pytest.approx(16 * op.numel(param) * replicas)
    assert ranks * held[3].sum(axis=-1) == pytest.approx(16 * op.numel(param) * replicas / data_parallel)
    assert (np.diff(held.sum(axis=-1), axis=0) <= 0).all()
    sync = terms[..., [Term.SYNC, Term.REDUCE, Term.GATHER, Term.GATHER_STEP]].sum(axis=-1)
    assert ((sync == 0) == ((data_parallel == 1) & (copies == 1))).all()


def test_a_padded_vocabulary_counts_the_padding() -> None:
    odd = model(vocab_size=1001)
    op = odd.layer(0).ops[0]
    on = setting((8,))
    assert pricing.local_numel(op, op.params[0], np.array([[0], [REPLICATED]]), on).tolist() == [126 * 512, 1001 * 512]


def test_shared_storage_costs_nothing_here() -> None:
    op = OPS["head"]
    layouts = np.array([[PARTIAL], [1], [REPLICATED]])
    on = setting((8,))
    terms = pricing.param_terms(pricing.stored(op, op.params[0], layouts, on, shared=True), (0, 3), on)
    assert terms.shape[:2] == (2, 3) and not terms.any()


def test_zero_three_holds_the_gathered_weight_and_gradient_while_a_layer_runs() -> None:
    op = OPS["up"]
    weight = 4.0 * 512 * 2048
    on = setting((8,))
    terms = pricing.param_terms(pricing.stored(op, op.params[0], np.array([[PARTIAL]]), on), (0, 1, 2, 3), on)[:, 0]
    assert terms[:, Term.TRANSIENT].tolist() == [0, 0, weight, 2 * weight]
    assert terms[:, Term.GATHER].tolist() == pytest.approx([0, 0, 0, 2 * weight * WEIGHTS["all_gather"]])
    assert terms[:, Term.REDUCE].tolist() == pytest.approx([0, 0, weight, weight])


def test_an_update_streams_what_it_touches() -> None:
    """bf16 Adam: 28 bytes a parameter at the rate of a long stream; an eighth of it where states are split."""
    on = real("dgx-h100:8", (8,))
    assert on.stream_rate == pytest.approx(float(on.costs.memory_bound(2.0**34)) / 2**34, rel=0.01)
    op = OPS["up"]
    terms = pricing.param_terms(pricing.stored(op, op.params[0], np.array([[PARTIAL]]), on), (0, 1, 2, 3), on)[:, 0]
    assert terms[:, Term.OPTIMIZER] == pytest.approx(on.stream_rate * 28 * 512 * 2048 / np.array([1, 8, 8, 8]))


def test_the_rate_between_copies_is_that_of_neighbours() -> None:
    on = real("dgx-h100:32", (1, 32))
    assert on.copies_rate(1) == 0
    assert 0 < on.copies_rate(2) < on.copies_rate(8) < on.copies_rate(16)


def test_recompute_moves_what_is_saved_and_runs_what_was_dropped() -> None:
    """None: nothing twice. Selective: the attention core twice, its scores transient. Full: the forward pass and its
    collectives twice, all but the boundary transient."""
    ones = np.zeros(len(Term))
    ones[[Term.FORWARD, Term.BACKWARD, Term.CORE, Term.CONVERT_FORWARD, Term.REGATHER]] = 1, 10, 100, 1000, 10_000
    ones[[Term.SAVED, Term.SCORES, Term.BOUNDARY]] = 1, 10, 100
    time, _, _, saved, transient, _ = zip(*(ones @ criteria(Policy(recompute)) for recompute in Recompute), strict=True)
    assert dict(zip(Recompute, time, strict=True)) == {
        Recompute.NONE: 11_011, Recompute.SELECTIVE: 11_111, Recompute.FULL: 2_012}
    assert dict(zip(Recompute, saved, strict=True)) == {
        Recompute.NONE: 111, Recompute.SELECTIVE: 101, Recompute.FULL: 100}
    assert all(a + b == 111 for a, b in zip(saved, transient, strict=True))
    assert [conversion_weights(recompute)[0] for recompute in Recompute] == [1, 1, 2]
