"""The seconds of weights' gradients: a part of the backward pass, and in no criterion twice."""

import pytest
from hypothesis import given, settings
from small_layers import graphs, real_setting

from autoplan.intraop.layer_problem import layer_problem
from autoplan.intraop.strategies import OpStrategies
from autoplan.intraop.terms import Policy, Term, criteria
from autoplan.model.graph import ModelGraph
from autoplan.workload import Recompute


@pytest.mark.parametrize("recompute", Recompute)
def test_they_are_in_the_backward_pass_already(recompute: Recompute) -> None:
    assert (criteria(Policy(recompute))[Term.WEIGHT_GRADIENT] == 0).all()


@settings(max_examples=5, deadline=None)
@given(graphs())
def test_every_weight_has_a_gradient_that_may_wait(model: ModelGraph) -> None:
    """Of a product with a weight it is a part of the backward pass, of a look-up all of it, of others nothing."""
    setting = real_setting((1, 2), 2, 512)
    for layer in model.classes:
        problem = layer_problem(layer, setting, roles=("data", "tensor"))
        assert problem is not None
        for node in problem.nodes:
            if not isinstance(node.content, OpStrategies):
                assert (node.terms[:, Term.WEIGHT_GRADIENT] == 0).all()
                continue
            backward, weight = node.terms[:, Term.BACKWARD], node.terms[:, Term.WEIGHT_GRADIENT]
            kind = node.content.op.kind
            assert (weight == (backward if kind == "embedding" else weight if kind == "contraction" else 0.0)).all()
            assert kind != "contraction" or ((weight > 0) & (weight < backward)).all()
