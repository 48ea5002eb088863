"""The twelve textbook cases, priced and compiled: our bytes are XLA's and the textbook's, but where it is said.

Payloads in MB are those of `tests/intraop/test_golden_laws.py`, turned into the bytes that a device sends.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
from textbook import (
    BATCH,
    FFN,
    HIDDEN,
    LAYERS,
    SEQ,
    accumulated,
    model,
    pipeline,
    placed,
    stacked,
    times,
)

from autoplan.intraop.layer_problem import layer_problem
from autoplan.intraop.terms import Term
from autoplan.judge.hlo import Sent, wire_bytes
from autoplan.judge.predicted import BytePrices, byte_setting, flat_mesh
from autoplan.judge.worker import compiled
from autoplan.sharding import Collective

AR, AG, RS, A2A = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
STREAM = BATCH * SEQ * HIDDEN * 4
NORMS = LAYERS * 2 * HIDDEN * 4
MATRICES = LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * FFN) * 4
PARAMS = MATRICES + NORMS
LAYER = model().layer(1)


def wire(payload: dict[tuple[Collective, int], float]) -> Sent:
    return {(kind, group): wire_bytes(kind, group, nbytes) for (kind, group), nbytes in payload.items()}


def check(got: Sent, expected: Sent, tolerance: float = 1e-3) -> None:
    """Equal, kind by kind and group by group, to a part of all bytes."""
    total = sum(expected.values())
    assert all(got[key] <= tolerance * total for key in set(got) - set(expected))
    for key, nbytes in expected.items():
        assert got.get(key, 0.0) == pytest.approx(nbytes, rel=tolerance, abs=tolerance * total), key


CASES = {
    # name: (mesh, roles, zero stage, payload by collective and group size)
    "dp8": ((8,), ("data",), 0, {(AR, 8): PARAMS}),
    "tp8": ((8,), ("tensor",), 0, {(AR, 8): 4 * LAYERS * STREAM}),
    "tp8_sp": ((8,), ("tensor_sequence",), 0, {
        (AG, 8): 4 * LAYERS * STREAM, (RS, 8): 4 * LAYERS * STREAM, (AR, 8): NORMS}),
    "zero1": ((8,), ("data",), 1, {(RS, 8): PARAMS, (AG, 8): PARAMS}),
    "zero3_remat": ((8,), ("data",), 3, {(AG, 8): 2 * PARAMS, (RS, 8): PARAMS}),
    "dp2_tp4": ((2, 4), ("data", "tensor"), 0, {
        (AR, 4): 4 * LAYERS * STREAM / 2, (AR, 2): MATRICES / 4 + NORMS}),
    "dp2_tp4_sp": ((2, 4), ("data", "tensor_sequence"), 0, {
        (AG, 4): 4 * LAYERS * STREAM / 2, (RS, 4): 4 * LAYERS * STREAM / 2, (AR, 2): MATRICES / 4, (AR, 8): NORMS}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_sends_what_xla_emits(name: str, pool: ProcessPoolExecutor) -> None:
    shape, roles, zero, payload = CASES[name]
    ours, layer = placed(LAYER, shape, roles, zero)
    got = pool.submit(compiled, stacked(layer)).result()
    check(times(LAYERS, ours), wire(payload))
    check(got.sent, wire(payload))


def test_momentum_changes_nothing_of_what_is_sent_but_the_arguments(pool: ProcessPoolExecutor) -> None:
    """DP8 with SGD and with Adam: to the byte, weights, twice the moments, and a batch's inputs and gradients."""
    _, layer = placed(LAYER, (8,), ("data",))
    plain = pool.submit(compiled, stacked(layer, moments=0)).result()
    adam = pool.submit(compiled, stacked(layer, moments=2)).result()
    assert plain.sent == adam.sent
    assert plain.argument_bytes == PARAMS + 2 * STREAM / 8
    assert adam.argument_bytes == 3 * PARAMS + 2 * STREAM / 8


def test_zero1_holds_what_we_say(pool: ProcessPoolExecutor) -> None:
    _, layer = placed(LAYER, (8,), ("data",), 1)
    assert pool.submit(compiled, stacked(layer)).result().argument_bytes == 33_564_672


def test_unfused_siblings_are_reduced_each_by_xla_and_once_by_us(pool: ProcessPoolExecutor) -> None:
    """Separate q, k, v under TP8: XLA reduces the partial gradient of each, 6 a layer; the textbook and we the sum."""
    ours, layer = placed(LAYER, (8,), ("tensor",))
    got = pool.submit(compiled, stacked(layer, fused=False)).result()
    check(got.sent, wire({(AR, 8): 6 * LAYERS * STREAM}))
    check(times(LAYERS, ours), wire({(AR, 8): 4 * LAYERS * STREAM}))


def test_zero2_reduces_every_micro_batch(pool: ProcessPoolExecutor) -> None:
    """Four micro-batches in a loop: gradients are scattered in each, weights gathered once."""
    ours, layer = placed(LAYER, (8,), ("data",), 2)
    got = pool.submit(accumulated, stacked(layer), 4).result()
    check(got.sent, wire({(RS, 8): 4 * PARAMS, (AG, 8): PARAMS}))
    check(times(LAYERS, ours), wire({(RS, 8): PARAMS, (AG, 8): PARAMS}))


def test_xla_keeps_gathered_weights_where_it_may_and_runtimes_gather_twice(pool: ProcessPoolExecutor) -> None:
    """ZeRO-3 without recompute: one gather of XLA's, for which the whole weights are kept until the backward pass."""
    ours, layer = placed(LAYER, (8,), ("data",), 3)
    got = pool.submit(compiled, stacked(layer, regather=False)).result()
    check(got.sent, wire({(AG, 8): PARAMS, (RS, 8): PARAMS}))
    check(times(LAYERS, ours), wire({(AG, 8): 2 * PARAMS, (RS, 8): PARAMS}))


def test_experts_exchange_their_tokens(pool: ProcessPoolExecutor) -> None:
    """Expert parallelism over 8: four all-to-alls of the tokens' places, and the gradients of all but the experts."""
    experts, top_k, ffn = 8, 2, 256
    layer = model(moe={"experts": experts, "top_k": top_k, "ffn": ffn, "capacity_factor": 1.0}).layer(1)
    ours, where = placed(layer, (8,), ("expert",))
    got = pool.submit(compiled, stacked(where)).result()
    held = top_k * STREAM / 8  # a device's places, as many as there are copies of its tokens
    dense = (4 * HIDDEN**2 + HIDDEN * experts + 2 * HIDDEN) * 4
    expected = wire({(A2A, 8): LAYERS * 4 * held, (AR, 8): LAYERS * dense})
    check(times(LAYERS, ours), expected)
    check(got.sent, expected)


def test_a_pipeline_hands_on_each_micro_batch_twice(pool: ProcessPoolExecutor) -> None:
    """GPipe with 8 stages and 16 micro-batches: XLA's loop sends a boundary tensor each way in each of M + p − 1 ticks;
    we count the M that hold something."""
    stages, micro_batches, sequences = 8, 16, 2
    setting = byte_setting(flat_mesh((1,), ("data",)), sequences, SEQ, "adam", BytePrices())
    problem = layer_problem(LAYER, setting, roles=("data",))
    assert problem is not None
    boundary = problem.terms([0] * len(problem.nodes))[Term.BOUNDARY]
    assert boundary == sequences * SEQ * HIDDEN * 4
    got = pool.submit(pipeline, stages, micro_batches, sequences).result()
    assert got[Collective.PERMUTE, 2] == 2 * (micro_batches + stages - 1) * boundary
