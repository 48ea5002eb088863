"""Cuts that are given: the equal layers of each stage."""

import pytest
from tiny import NAMED_ONLY, cluster, llama, pricer_of, searched

import autoplan
from autoplan.errors import InputError
from autoplan.plan import check
from autoplan.search.space import Pins
from autoplan.workload import Schedule

CUT = {"pp": 4, "micro_batch_size": 1, "global_batch_size": 16}


@pytest.mark.parametrize("layers", [(2, 2, 2, 2), (3, 3, 2, 0), (0, 4, 4, 0), (1, 1, 1, 5)])
@pytest.mark.parametrize("runtime", ["plain", "megatron-lm"])
def test_a_given_cut_is_the_plans_cut_and_the_best_cut_is_no_slower(layers, runtime):
    model, machines = llama(layers=8), cluster("dgx-h100:4")
    given = autoplan.estimate(model, machines, layers=layers, runtime=runtime, **CUT)
    best = autoplan.estimate(model, machines, runtime=runtime, **CUT)
    ends = [1 + sum(layers[:index + 1]) for index in range(4)]
    ends[-1] += 1  # the head
    assert [stage.layers for stage in given.stages] == [
        (start, end - 1) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert check.problems(given) == []
    assert best.predicted.iteration_time_s <= given.predicted.iteration_time_s * (1 + 1e-12)
    own = [stage.layers[1] - stage.layers[0] + (0 < stage.index < 3) for stage in best.stages]
    assert autoplan.estimate(model, machines, layers=own, runtime=runtime, **CUT).predicted == best.predicted


def test_a_search_keeps_the_cut_that_is_fixed():
    found = autoplan.plan(llama(layers=8), cluster("dgx-h100:4"), global_batch_size=16, gap=NAMED_ONLY,
                          fix={"layers": [3, 5]})
    assert [stage.layers for stage in found.stages] == [(0, 3), (4, 9)] and found.parallelism.pp == 2
    assert all(other.parallelism.pp == 2 and other.parallelism.schedule is Schedule.ONE_F_ONE_B
               for other in found.alternatives)


@pytest.mark.parametrize(("layers", "more", "told"), [
    ([2, 2, 2, 3], {}, "add up to 9, but the model has 8 equal layers"), ([4, 4], {}, "2 stages, but pp is 4"),
    ([4, 0, 2, 2], {}, "between the first and the last needs a layer"),
    ([2, 2, 2, 2], {"schedule": "interleaved", "virtual_stages": 2}, "interleaving cuts equal chunks"),
    ([], {}, "must be a list"), (8, {}, "must be a list"), ([2, 2, 2.0, 2], {}, "whole number"),
    ([2, 2, 5, -1], {}, "whole number"),
])
def test_cuts_that_cannot_be(layers, more, told):
    with pytest.raises(InputError, match=told) as caught:
        autoplan.estimate(llama(layers=8), cluster("dgx-h100:4"), layers=layers, **CUT, **more)
    assert caught.value.key == "layers"


def test_pins_of_layers_say_how_many_stages():
    pricer = pricer_of(llama(layers=8), cluster("dgx-h100:4"), 8)
    given = searched(pricer, Pins(pp=2, layers=(3, 5)))
    assert {(one.num_stages, one.layers, one.schedule) for one in given} == {(2, (3, 5), Schedule.ONE_F_ONE_B)}
