"""Every solver of the integer programs gives the same plan."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.errors import InputError
from autoplan.model.architectures import build
from autoplan.model.graph import ModelGraph
from autoplan.model.spec import parse


def small_model(*, tied: bool) -> ModelGraph:
    keys = {"layers": 2, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab_size": 50304, "max_positions": 2048,
            "seq_len": 2048, "tied_embeddings": tied, "positions": "rotary", "norm": "rms", "gated": True}
    return build(parse(keys, "test", "small"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cluster", ["dgx-a100-80gb:4", "g5.48xlarge:2"])
def test_milp_solvers_give_the_plan_of_elimination(cluster: str, tied: bool) -> None:
    model, machines = small_model(tied=tied), autoplan.load_cluster(cluster)
    plans = [autoplan.plan(model, machines, global_batch_size=16, solver=solver)
             for solver in ("auto", "highs", "pulp:CBC")]
    assert plans[1].search.solves > 0
    for other in plans[1:]:
        assert other.predicted.iteration_time_s == pytest.approx(plans[0].predicted.iteration_time_s, rel=1e-9)
        assert other.parallelism == plans[0].parallelism
        assert [stage.layers for stage in other.stages] == [stage.layers for stage in plans[0].stages]
        assert [stage.shardings for stage in other.stages] == [stage.shardings for stage in plans[0].stages]


def test_free_shardings_agree_too() -> None:
    """With no gap allowed the ILP's own shardings are solved, by elimination and by HiGHS alike."""
    model, machines = small_model(tied=True), autoplan.load_cluster("g5.48xlarge:2")
    plans = [autoplan.plan(model, machines, global_batch_size=4, solver=solver, gap=0.0, top=1,
                           fix={"pp": 1, "num_micro_batches": 2})
             for solver in ("auto", "highs")]
    assert plans[1].predicted.iteration_time_s == pytest.approx(plans[0].predicted.iteration_time_s, rel=1e-6)


def test_a_solver_that_is_not_there_is_an_input_error() -> None:
    with pytest.raises(InputError, match="solver"):
        autoplan.plan(small_model(tied=False), autoplan.load_cluster("dgx-a100-80gb:2"), global_batch_size=4,
                      solver="pulp:NOPE")
