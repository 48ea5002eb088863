"""A fixed sample of the strategies of every kind of operator, priced and compiled: XLA sends what we price."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
from compiler_matrix import AXIS_BY_AXIS, MESHES, OWN_ROWS, REPEATED_HEADS, Case, agrees, by_kind, cases, operators

from autoplan.judge.hlo import Sent
from autoplan.judge.worker import Compiled, compiled

STRIDE = 8  # of each operator's strategies on a mesh every eighth is compiled here; benchmarks/compiler_matrix.py: all
OPS = operators()
SAMPLE = {str(case): case for index, (name, op) in enumerate(OPS.items()) for shape in MESHES
          for case in list(cases(name, op, shape))[index % STRIDE::STRIDE]}
KNOWN = {str(case): case for name in ("norm1", "attention", "position", "embedding") for shape in ((2, 4),)
         for case in cases(name, OPS[name], shape) if case.known}


@pytest.fixture(scope="module")
def got(pool: ProcessPoolExecutor) -> dict[str, Sent]:
    every = SAMPLE | KNOWN
    results: list[Compiled] = list(pool.map(compiled, [case.program for case in every.values()]))
    return {name: one.sent for name, one in zip(every, results, strict=True)}


@pytest.mark.parametrize("name", [name for name, case in SAMPLE.items() if case.known is None])
def test_a_strategy_sends_what_xla_emits(name: str, got: dict[str, Sent]) -> None:
    assert agrees(SAMPLE[name].predicted, got[name]), (SAMPLE[name].predicted, got[name])


@pytest.mark.parametrize("name", KNOWN)
def test_where_xla_is_known_to_do_otherwise_it_sends_more(name: str, got: dict[str, Sent]) -> None:
    """But for the rows of learned positions, where it sends less: runtimes reduce the whole table."""
    case = KNOWN[name]
    ours, theirs = sum(case.predicted.values()), sum(got[name].values())
    assert ours > theirs if case.known == OWN_ROWS else ours < theirs
    assert not agrees(case.predicted, got[name])


def test_the_sample_has_every_kind_and_every_exception() -> None:
    assert {OPS[case.name].kind for case in SAMPLE.values()} == {
        "attention", "contraction", "elementwise", "embedding", "loss", "norm"}
    assert {case.known for case in KNOWN.values()} == {AXIS_BY_AXIS, OWN_ROWS, REPEATED_HEADS}
    assert len(SAMPLE) > 90


def test_agreeing_is_by_kind_of_collective() -> None:
    one = next(case for case in SAMPLE.values() if len(by_kind(case.predicted, {})) == 1)
    assert isinstance(one, Case)
    ((kind, size), nbytes), = list(one.predicted.items())[:1]
    assert agrees({(kind, size): nbytes}, {(kind, 2 * size): nbytes * (1 + 5e-4)})
    assert not agrees({(kind, size): nbytes}, {(kind, size): nbytes * 1.01})
    assert not agrees({(kind, size): nbytes}, {})
