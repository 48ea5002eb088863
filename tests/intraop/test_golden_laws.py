"""What known recipes send, to the byte: every law is a textbook statement about one block or one model."""

from __future__ import annotations

import numpy as np
import pytest
from byte_prices import Ledger, model, part, pick, sent, setting

from autoplan.intraop.layer_problem import AxisLayout, LayoutNode, ParamNode, layer_problem
from autoplan.intraop.strategies import NONE, OpStrategies
from autoplan.intraop.terms import Term
from autoplan.model.graph import LayerClass

FORWARD = (Term.CONVERT_FORWARD,)
BACKWARD = (Term.CONVERT_BACKWARD, Term.REGATHER)
ONCE = (Term.SYNC, Term.GATHER_STEP)
EACH = (Term.GATHER, Term.REDUCE)
ALL = (*FORWARD, *BACKWARD, *ONCE, *EACH)

LAYERS, BATCH, SEQ, HIDDEN, FFN = 2, 16, 256, 512, 2048
STREAM_BYTES = BATCH * SEQ * HIDDEN * 4
MATRICES = 4 * HIDDEN**2 + 2 * HIDDEN * FFN
NORM_BYTES = LAYERS * 2 * HIDDEN * 4
PARAM_BYTES = LAYERS * MATRICES * 4 + NORM_BYTES


def block(first: str, last: str, **changes: object) -> LayerClass:
    return part(model(**changes).layer(1), first, last)


def attention_block(**changes: object) -> LayerClass:
    return block("norm1", "add1", **changes)


def mlp_block(**changes: object) -> LayerClass:
    return block("norm2", "add2", **changes)


def weights(layer: LayerClass) -> int:
    return 4 * layer.num_params()


def total(*ledgers: Ledger) -> Ledger:
    keys = {key for ledger in ledgers for key in ledger}
    return {key: sum(ledger.get(key, 0.0) for ledger in ledgers) for key in keys}


def check(got: Ledger, expected: dict[tuple[str, int], float]) -> None:
    assert got == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------ data parallelism and ZeRO

BLOCKS = pytest.mark.parametrize("layer", [
    mlp_block(), mlp_block(gated=True), mlp_block(biases=("mlp",), norm="layer"), attention_block(),
    attention_block(kv_heads=2, biases=("qkv", "o"), qk_norm=True, positions="rotary"),
], ids=["plain mlp", "gated mlp", "mlp with biases", "attention", "attention with everything"])


@BLOCKS
@pytest.mark.parametrize(("zero", "once", "each"), [
    (0, {"all_reduce": 1}, {}),
    (1, {"reduce_scatter": 1, "all_gather": 1}, {}),
    (2, {"all_gather": 1}, {"reduce_scatter": 1}),
    (3, {}, {"reduce_scatter": 1, "all_gather": 2}),
], ids=["zero-0", "zero-1", "zero-2", "zero-3"])
def test_data_parallelism_costs_the_gradient_sync_of_its_weights(
        layer: LayerClass, zero: int, once: dict[str, int], each: dict[str, int]) -> None:
    on = setting((8,))
    for terms, expected in ((ONCE, once), (EACH, each), ((*FORWARD, *BACKWARD), {})):
        check(sent(layer, on, ("data",), terms, zero=zero),
              {(kind, 8): times * weights(layer) for kind, times in expected.items()})


@BLOCKS
def test_replicas_of_the_same_work_send_nothing(layer: LayerClass) -> None:
    problem = layer_problem(layer, setting((2, 4)))
    assert problem is not None
    choice = []
    for node in problem.nodes:
        content = node.content
        if isinstance(content, OpStrategies):
            match = (content.assign == NONE).all(axis=1)
        elif isinstance(content, LayoutNode):
            match = (content.states == AxisLayout.WHOLE).all(axis=1)
        else:
            assert isinstance(content, ParamNode)
            match = (content.layouts == -1).all(axis=1)
        choice.append(int(np.flatnonzero(match)[0]))
    terms = problem.terms(choice)
    assert not terms[list(ALL)].any()
    assert terms[Term.WEIGHTS] == weights(layer)


@BLOCKS
def test_nothing_is_priced_below_zero(layer: LayerClass) -> None:
    problem = layer_problem(layer, setting((2,)), zero=(0, 1, 2, 3))
    assert problem is not None
    assert all((node.terms >= 0).all() for node in problem.nodes)
    assert all((edge.forward >= 0).all() and (edge.backward >= 0).all() for edge in problem.edges)


# ------------------------------------------------------------------ tensor and sequence parallelism

@pytest.mark.parametrize("layer", [mlp_block(), mlp_block(gated=True), attention_block(),
                                   attention_block(kv_heads=8, positions="rotary", qk_norm=False)],
                         ids=["plain mlp", "gated mlp", "attention", "rotary attention"])
def test_column_then_row_costs_one_all_reduce_each_way(layer: LayerClass) -> None:
    """The gradients of q, k, v (of gate, up) are summed before the one reduction. No parameter is reduced."""
    on = setting((8,))
    check(sent(layer, on, ("tensor",), FORWARD), {("all_reduce", 8): STREAM_BYTES})
    check(sent(layer, on, ("tensor",), BACKWARD), {("all_reduce", 8): STREAM_BYTES})
    check(sent(layer, on, ("tensor",), (*ONCE, *EACH)), {})


@pytest.mark.parametrize("layer", [mlp_block(), mlp_block(gated=True), attention_block()],
                         ids=["plain mlp", "gated mlp", "attention"])
def test_sequence_parallelism_gathers_and_scatters_the_same_tensors(layer: LayerClass) -> None:
    on = setting((8,))
    each_way = {("all_gather", 8): float(STREAM_BYTES), ("reduce_scatter", 8): float(STREAM_BYTES)}
    roles = ("tensor_sequence",)
    check(sent(layer, on, roles, FORWARD), each_way)
    check(sent(layer, on, roles, BACKWARD), each_way)
    split = total(each_way, {("all_gather", 8): STREAM_BYTES})  # gathered once more for the backward pass
    check(sent(layer, on, roles, FORWARD, kept_split=True), each_way)
    check(sent(layer, on, roles, BACKWARD, kept_split=True), dict(split))
    # each device's norm sees a part of the tokens
    check(sent(layer, on, roles, (*ONCE, *EACH)), {("all_reduce", 8): HIDDEN * 4})


def test_norms_are_reduced_over_the_axes_that_split_tokens() -> None:
    layer = mlp_block(norm="layer")  # a weight and a bias
    norms, matrices = 2 * HIDDEN * 4, 2 * HIDDEN * FFN * 4
    on = setting((2, 4))
    check(sent(layer, on, ("data", "tensor"), ONCE), {("all_reduce", 2): matrices / 4 + norms})
    check(sent(layer, on, ("data", "tensor_sequence"), ONCE),
          {("all_reduce", 2): matrices / 4, ("all_reduce", 8): norms})


def test_biases_are_reduced_over_data_alone() -> None:
    """A column-parallel bias is split, a row-parallel one is added to the finished sum: neither is partial over tp."""
    plain, biased = mlp_block(), mlp_block(biases=("mlp",))
    on = setting((2, 4))
    roles = ("data", "tensor")
    more = total(sent(biased, on, roles, ALL), {k: -v for k, v in sent(plain, on, roles, ALL).items()})
    check({key: n for key, n in more.items() if abs(n) > 1e-3}, {("all_reduce", 2): (FFN / 4 + HIDDEN) * 4})


def test_query_key_norms_are_reduced_over_the_heads() -> None:
    """Each device norms its own heads with the same weight, so the gradient is partial over tp."""
    layer = attention_block(qk_norm=True)
    check(sent(layer, setting((8,)), ("tensor",), ONCE), {("all_reduce", 8): 2 * (HIDDEN // 8) * 4})


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_repeated_key_and_value_heads_sum_the_gradients_of_their_copies(kv_heads: int) -> None:
    """More devices than key/value heads: each head is on 8 / kv_heads devices, with its own queries on each.

    Nothing more is sent in a micro-batch; once a step the gradients of the copies' weights are summed.
    """
    layer, on = attention_block(kv_heads=kv_heads), setting((8,))
    check(sent(layer, on, ("tensor",), FORWARD), {("all_reduce", 8): STREAM_BYTES})
    check(sent(layer, on, ("tensor",), BACKWARD), {("all_reduce", 8): STREAM_BYTES})
    head = HIDDEN * (HIDDEN // 8) * 4
    check(sent(layer, on, ("tensor",), ONCE), {("all_reduce", 8 // kv_heads): 2 * head})
    problem = layer_problem(layer, on, roles=("tensor",))
    assert problem is not None
    held = problem.terms(pick(problem))[Term.WEIGHTS]
    assert held == (2 * HIDDEN * HIDDEN / 8 + HIDDEN) * 4 + 2 * head  # q and o in 8 parts; the norm; a head


def test_context_parallelism_gathers_keys_and_values() -> None:
    """All K and V forward (all-gather), their gradients summed and split (reduce-scatter); weights are synchronised."""
    layer = attention_block(kv_heads=2)
    key_bytes = BATCH * SEQ * 2 * (HIDDEN // 8) * 4
    on = setting((8,))
    check(sent(layer, on, ("context",), FORWARD), {("all_gather", 8): 2 * key_bytes})
    check(sent(layer, on, ("context",), BACKWARD), {("reduce_scatter", 8): 2 * key_bytes})
    check(sent(layer, on, ("context",), ONCE), {("all_reduce", 8): weights(layer)})


# ------------------------------------------------------------------ both ends of the model

def test_a_vocabulary_parallel_embedding_is_reduced_once_forward() -> None:
    embedding = model().layer(0)
    on = setting((8,))
    check(sent(embedding, on, ("tensor",), FORWARD), {("all_reduce", 8): STREAM_BYTES})
    check(sent(embedding, on, ("tensor",), BACKWARD), {})
    check(sent(embedding, on, ("tensor",), (*ONCE, *EACH)), {})
    check(sent(embedding, on, ("tensor_sequence",), FORWARD), {("reduce_scatter", 8): STREAM_BYTES})
    check(sent(embedding, on, ("tensor_sequence",), BACKWARD), {("all_gather", 8): STREAM_BYTES})


def test_a_vocabulary_parallel_loss_exchanges_twelve_bytes_a_token() -> None:
    head = model().layer(3)
    on = setting((2, 4))
    check(sent(head, on, ("data", "tensor"), FORWARD), {("all_reduce", 4): 12 * BATCH / 2 * SEQ})
    check(sent(head, on, ("data", "tensor"), BACKWARD), {("all_reduce", 4): STREAM_BYTES / 2})
    check(sent(head, on, ("data", "tensor"), ONCE), {("all_reduce", 2): (HIDDEN * 1024 / 4 + HIDDEN) * 4})


# ------------------------------------------------------------------ whole models, as XLA emits them

DATA = LAYERS * MATRICES * 4
CASES = {
    # name: (mesh, roles, zero stage, gathered tensors kept split, bytes by collective and group size)
    "dp8": ((8,), ("data",), 0, False, {("all_reduce", 8): PARAM_BYTES}),
    "tp8": ((8,), ("tensor",), 0, False, {("all_reduce", 8): 4 * LAYERS * STREAM_BYTES}),
    "tp8_sp": ((8,), ("tensor_sequence",), 0, False, {
        ("all_gather", 8): 4 * LAYERS * STREAM_BYTES, ("reduce_scatter", 8): 4 * LAYERS * STREAM_BYTES,
        ("all_reduce", 8): NORM_BYTES}),
    "zero1": ((8,), ("data",), 1, False, {("reduce_scatter", 8): PARAM_BYTES, ("all_gather", 8): PARAM_BYTES}),
    # XLA gathers once where it keeps the gathered weights, twice with recompute; runtimes free them, so twice.
    "zero3_remat": ((8,), ("data",), 3, False, {
        ("all_gather", 8): 2 * PARAM_BYTES, ("reduce_scatter", 8): PARAM_BYTES}),
    "dp2_tp4": ((2, 4), ("data", "tensor"), 0, False, {
        ("all_reduce", 4): 4 * LAYERS * STREAM_BYTES / 2, ("all_reduce", 2): DATA / 4 + NORM_BYTES}),
    "dp2_tp4_sp": ((2, 4), ("data", "tensor_sequence"), 0, False, {
        ("all_gather", 4): 4 * LAYERS * STREAM_BYTES / 2, ("reduce_scatter", 4): 4 * LAYERS * STREAM_BYTES / 2,
        ("all_reduce", 2): DATA / 4, ("all_reduce", 8): NORM_BYTES}),
}
# Megabytes that XLA (jax 0.10.2, CPU, fused q/k/v) emitted for these cases. Of dp2_tp4_sp the norms (8 kB over 8
# devices here) are left out: XLA reduces them over 4 devices, then over 2.
XLA_MEGABYTES = {
    "dp8": {"all_reduce": 25.1740}, "tp8": {"all_reduce": 67.1089},
    "tp8_sp": {"all_gather": 67.1089, "reduce_scatter": 67.1089, "all_reduce": 0.0082},
    "zero1": {"reduce_scatter": 25.1740, "all_gather": 25.1740},
    "zero3_remat": {"all_gather": 50.3480, "reduce_scatter": 25.1740},
    "dp2_tp4": {"all_reduce": 33.5544 + 6.2996},
    "dp2_tp4_sp": {"all_gather": 33.5544, "reduce_scatter": 33.5544, "all_reduce": 6.2915},
}


@pytest.mark.parametrize("name", CASES)
def test_whole_models_send_what_xla_emits(name: str) -> None:
    shape, roles, zero, kept_split, expected = CASES[name]
    one = sent(model().layer(1), setting(shape), roles, ALL, zero=zero, kept_split=kept_split)
    got = {key: LAYERS * n for key, n in one.items()}
    check(got, {key: float(n) for key, n in expected.items()})
    by_kind: dict[str, float] = {}
    for (kind, size), n in got.items():
        if (name, size) != ("dp2_tp4_sp", 8):
            by_kind[kind] = by_kind.get(kind, 0.0) + n / 1e6
    assert by_kind == pytest.approx(XLA_MEGABYTES[name], abs=1e-4)


def test_zero2_reduces_every_micro_batch_and_gathers_once() -> None:
    """XLA's case with 4 micro-steps: RS 4 × 25.1740 MB + AG 25.1740 MB."""
    layer, on = model().layer(1), setting((8,))
    each, once = (sent(layer, on, ("data",), terms, zero=2) for terms in (EACH, ONCE))
    assert LAYERS * 4 * each["reduce_scatter", 8] / 1e6 == pytest.approx(4 * 25.1740, abs=4e-4)
    assert LAYERS * once["all_gather", 8] / 1e6 == pytest.approx(25.1740, abs=1e-4)
    assert len(each) == len(once) == 1


def test_arguments_of_xla_zero1_step_are_our_state() -> None:
    """XLA's argument bytes of the ZeRO-1 case, 33,564,672, are weights, a share of Adam's moments, and two batches."""
    problem = layer_problem(model().layer(1), setting((8,)), zero=(1,), roles=("data",))
    assert problem is not None
    terms = LAYERS * problem.terms(pick(problem, zero=1))
    batches = 2 * STREAM_BYTES / 8
    ours = terms[Term.WEIGHTS] + terms[Term.STATES] + batches
    assert ours == pytest.approx(33_564_672, rel=1e-12)
