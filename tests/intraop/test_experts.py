"""Layers of experts: what expert parallelism sends, whose gradients it sums, and that the solvers find the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from byte_prices import model, pick, sent, setting
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from small_layers import every_choice, real_setting, without

from autoplan.intraop.layer_problem import AxisLayout, LayerProblem, LayoutNode, layer_problem
from autoplan.intraop.problem import IntraOpProblem
from autoplan.intraop.solve import solve
from autoplan.intraop.strategies import OpStrategies
from autoplan.intraop.terms import Criterion, Policy, Term, conversion_weights, criteria
from autoplan.model.graph import BATCH, EXPERTS, SEQ, LayerClass
from autoplan.workload import Recompute

HIDDEN, FFN, NUM_EXPERTS, TOP_K, BYTES = 512, 256, 8, 2, 4
COPIES = 16 * 256 * TOP_K * HIDDEN * BYTES  # bytes of all copies of all tokens of the micro-batch
FORWARD, BACKWARD = (Term.CONVERT_FORWARD,), (Term.CONVERT_BACKWARD,)
EXPERT_PARALLEL = ("data", "expert", "tensor")


def layer(**moe: object) -> LayerClass:
    """A whole layer; `moe` changes its mixture."""
    mixture = {"experts": NUM_EXPERTS, "top_k": TOP_K, "ffn": FFN, **moe}
    return model(hidden=HIDDEN, moe=mixture, gated=True, norm="rms").layer(1)


def test_tokens_go_to_their_experts_and_back_each_way() -> None:
    """tokens · top_k · hidden · bytes on each device, twice forward and twice backward, and nothing else."""
    for terms in (FORWARD, BACKWARD):
        assert sent(layer(), setting((1, 4, 1)), EXPERT_PARALLEL, terms) == {
            ("all_to_all", 4): pytest.approx(2 * COPIES / 4)}
        assert sent(layer(), setting((2, 4, 1)), EXPERT_PARALLEL, terms) == {
            ("all_to_all", 4): pytest.approx(2 * COPIES / 8)}


@pytest.mark.parametrize(("change", "times"), [
    ({"capacity_factor": 1.25}, 1.25), ({"imbalance": 1.5}, 1.5), ({"top_k": 1}, 0.5)])
def test_places_that_are_not_filled_travel_too(change: dict[str, object], times: float) -> None:
    found = sent(layer(**change), setting((1, 4, 1)), EXPERT_PARALLEL, FORWARD)
    assert found == {("all_to_all", 4): pytest.approx(times * 2 * COPIES / 4)}


def test_experts_gradients_are_summed_over_their_replicas_alone() -> None:
    experts = 3 * NUM_EXPERTS * HIDDEN * FFN * BYTES
    whole = layer()
    dense = sum(op.numel(param) for op, param in whole.params() if op.kind != "experts") * BYTES
    assert sent(whole, setting((2, 4, 1)), EXPERT_PARALLEL, (Term.SYNC,)) == {
        ("all_reduce", 2): pytest.approx(experts / 4), ("all_reduce", 8): pytest.approx(dense)}
    assert sent(whole, setting((1, 8, 1)), EXPERT_PARALLEL, (Term.SYNC,)) == {("all_reduce", 8): pytest.approx(dense)}


def test_whole_experts_on_a_tensor_parallel_group_swap_tokens_that_are_split() -> None:
    """Each device sends the copies of its part of the sequence, over both axes at once."""
    roles = ("data", "expert", "tensor_sequence_expert")
    found = sent(layer(), setting((1, 2, 4)), roles, FORWARD, kept_split=True)
    assert found[("all_to_all", 8)] == pytest.approx(2 * COPIES / 8)
    assert ("all_gather", 8) not in found and ("all_reduce", 8) not in found


def pinned(shape: tuple[int, ...], roles: tuple[str, ...], **moe: object) -> LayerProblem:
    problem = layer_problem(layer(**moe), setting(shape), roles=roles)
    assert problem is not None
    return problem


def test_experts_parts_are_shared_by_a_tensor_parallel_group() -> None:
    problem = pinned((1, 2, 4), ("data", "expert", "tensor_sequence"))
    taken = {node.content.op.name: [node.content.op.dims[dim].name if dim >= 0 else ""
                                    for dim in node.content.assign[0]]
             for node in problem.nodes if isinstance(node.content, OpStrategies)}
    assert taken["expert_up"] == taken["expert_down"] == ["", EXPERTS, "ffn"]
    assert taken["router"] == taken["dispatch"] == taken["combine"] == ["", BATCH, SEQ]
    (dispatched,) = (node.content for node in problem.nodes if node.name == "layout:dispatch")
    assert isinstance(dispatched, LayoutNode)
    assert dispatched.states.tolist() == [[AxisLayout.WHOLE, AxisLayout.INNER, AxisLayout.SUMMED]]


def test_a_layer_keeps_what_was_sent_to_its_experts() -> None:
    """Its input, the scores twice in fp32, the copies' places, what experts read, gate, up and their product."""
    whole = pinned((1, 1, 1), EXPERT_PARALLEL)
    tokens, copies = 16 * 256, 16 * 256 * TOP_K
    mlp = without(layer())
    alone = layer_problem(mlp, setting((1, 1, 1)), roles=EXPERT_PARALLEL)
    assert alone is not None
    kept = alone.terms(pick(alone))[Term.SAVED]
    expected = BYTES * (tokens * HIDDEN + copies * (HIDDEN + 3 * FFN)) + 8 * tokens * NUM_EXPERTS + 8 * copies
    assert kept == expected
    assert whole.terms(pick(whole))[Term.SAVED] > kept


def test_experts_that_do_not_divide_have_no_recipe() -> None:
    assert layer_problem(layer(experts=6), setting((1, 4, 1)), roles=EXPERT_PARALLEL) is None


@hypothesis_settings(max_examples=8, deadline=None)
@given(st.sampled_from([(2,), (4,)]), st.sampled_from([1, 4]), st.integers(1, 8),
       st.sampled_from([(Recompute.NONE), Recompute.FULL]))
def test_the_solvers_agree_with_brute_force(shape: tuple[int, ...], batch: int, m: int, recompute: Recompute) -> None:
    plain = model(hidden=256, moe={"experts": 4, "top_k": 2, "ffn": 1024})
    problem = layer_problem(without(plain.layer(1), "norm2", "add2"), real_setting(shape, batch, 512))
    assert problem is not None
    _, terms = every_choice(problem)
    column = criteria(Policy(recompute))[:, [Criterion.T_MICRO_BATCH, Criterion.T_STEP]] @ np.array([m, 1])
    best = (terms @ column).min()
    forward, backward = conversion_weights(recompute)
    ilp = IntraOpProblem(
        tuple(node.name for node in problem.nodes), tuple(node.terms @ column for node in problem.nodes),
        tuple((edge.u, edge.v) for edge in problem.edges),
        tuple(m * (forward * edge.forward + backward * edge.backward) for edge in problem.edges))
    for solver in ("elimination", "highs"):
        found = solve(ilp, solver)
        assert found.status == "optimal" and found.cost == pytest.approx(best, rel=1e-9)
