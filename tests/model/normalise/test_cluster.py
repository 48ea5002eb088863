"""Where graphs are cut: repeats are found whole, clusters are the best by brute force."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.model.normalise.cluster import SLACK, cluster, layer_starts, widest_repeat


def test_a_transformers_layers_are_found_between_its_ends():
    kinds = ["embed", *["norm", "qkv", "attend", "o", "add", "norm", "up", "down", "add"] * 5, "norm", "head", "loss"]
    flops = [9 if kind in ("qkv", "attend", "o", "up", "down", "head") else 0 for kind in kinds]
    tensors = [0, 1, *[2, 2, 2, 2, 1, 2, 2, 2, 1] * 5, 1, 1, 0]
    starts = layer_starts(kinds, flops, tensors, tensors)
    assert starts == [0, *range(1, 47, 9)]


def test_two_kinds_of_layers_after_each_other_are_both_found():
    kinds = ["a", *["b", "c"] * 4, *["d", "e", "f"] * 3, "z"]
    starts = layer_starts(kinds, [1] * len(kinds), [1] * (len(kinds) + 1), [1] * (len(kinds) + 1))
    assert starts == [0, 1, 3, 5, 7, 9, 12, 15, 18]


def test_nothing_repeats_in_different_operators():
    assert widest_repeat(np.array(list("abcdef")), np.zeros(7)) is None


def brute_force(flops, crossing, most):
    """The least greatest cut of at most `most` clusters under the balance, or None."""
    most = max(1, min(most, sum(work > 0 for work in flops)))
    bound = max(sum(flops) / most * (1 + SLACK), max(flops))
    best = None
    for count in range(most):
        for cuts in itertools.combinations(range(1, len(flops)), count):
            parts = [sum(flops[a:b]) for a, b in itertools.pairwise((0, *cuts, len(flops)))]
            if max(parts) <= bound:
                worst = max((crossing[cut] for cut in cuts), default=0)
                best = worst if best is None else min(best, worst)
    return best


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=2, max_size=9), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_the_greatest_cut_is_the_least_possible(operators, most):
    flops, crossing = [work for work, _ in operators], [*(cost for _, cost in operators), 0]
    starts = cluster(flops, crossing, most)
    assert starts[0] == 0 and len(starts) <= max(1, most)
    expected = brute_force(flops, crossing, most) if any(flops) else 0
    if expected is not None:
        assert max((crossing[start] for start in starts[1:]), default=0) == expected
