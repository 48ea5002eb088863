"""A fixed sample of the strategies of every kind of operator, priced and compiled: XLA sends what we price."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
from compiler_matrix import MESHES, Case, agrees, cases, operators

from autoplan.judge.hlo import Sent
from autoplan.judge.known import AXIS_BY_AXIS, OWN_ROWS, PLACES, REPEATED_HEADS
from autoplan.judge.worker import compiled
from autoplan.sharding import Collective

STRIDE = 8  # of each operator's strategies on a mesh every eighth is compiled here; benchmarks/compiler_matrix.py: all
EXCEPTIONS = ("norm1", "attention", "router", "dispatch", "position")  # of these, all strategies on the first mesh
OPS = operators()

Judged = list[tuple[Case, Sent]]


@pytest.fixture(scope="module")
def judged(pool: ProcessPoolExecutor) -> Judged:
    chosen: dict[str, Case] = {}
    for index, (name, op) in enumerate(OPS.items()):
        for shape in MESHES:
            every = list(cases(name, op, shape))
            whole = name in EXCEPTIONS and shape == MESHES[0]
            chosen |= {str(case): case for case in (every if whole else every[index % STRIDE::STRIDE])}
    results = pool.map(compiled, [case.program for case in chosen.values()])
    return [(case, one.sent) for case, one in zip(chosen.values(), results, strict=True)]


@pytest.mark.parametrize("name", OPS)
def test_strategies_send_what_xla_emits(name: str, judged: Judged) -> None:
    for case, got in judged:
        if case.name == name and case.known is None:
            assert agrees(case.predicted, got), (str(case), case.predicted, got)


@pytest.mark.parametrize("known", [AXIS_BY_AXIS, REPEATED_HEADS, PLACES, OWN_ROWS])
def test_where_xla_is_known_to_do_otherwise_it_sends_more(known: str, judged: Judged) -> None:
    """But for the rows of learned positions, where it sends less: runtimes reduce the whole table."""
    some = [(case, got) for case, got in judged if case.known == known]
    assert some
    for case, got in some:
        ours, theirs = sum(case.predicted.values()), sum(got.values())
        assert theirs < ours if known == OWN_ROWS else ours < theirs, (str(case), case.predicted, got)


def test_the_sample_has_every_kind_and_every_mesh(judged: Judged) -> None:
    assert {OPS[case.name].kind for case, _ in judged if case.known is None} == {
        "attention", "contraction", "dispatch", "elementwise", "embedding", "experts", "loss", "norm", "router"}
    assert {case.shape for case, _ in judged} == set(MESHES)
    assert len(judged) > 90 and sum(bool(got) for _, got in judged) > 50


def test_agreeing_is_by_kind_of_collective() -> None:
    one: Sent = {(Collective.ALL_REDUCE, 4): 1000.0}
    assert agrees(one, {(Collective.ALL_REDUCE, 8): 1000.5})
    assert not agrees(one, {(Collective.ALL_REDUCE, 4): 1010.0})
    assert not agrees(one, {(Collective.REDUCE_SCATTER, 4): 1000.0})
    assert not agrees(one, {})
