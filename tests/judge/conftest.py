"""One process with eight virtual devices for all tests of the compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from autoplan.judge.worker import compiler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    pytest.importorskip("jax")
    with compiler(8) as process:
        yield process
