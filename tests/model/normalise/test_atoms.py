"""Atoms: reshapes and unions keep sizes, and what goes through a reshape and back is the same axis again."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.model.normalise.atoms import AtomTable

SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=5)


def fresh(table, shape):
    return [(table.fresh(size),) for size in shape]


@given(SHAPES, st.data())
@settings(max_examples=50, deadline=None)
def test_joined_and_split_again_the_axes_are_the_same(shape, data):
    table = AtomTable()
    axes = fresh(table, shape)
    begin = data.draw(st.integers(0, len(shape)))
    end = data.draw(st.integers(begin, len(shape)))
    joined = [*shape[:begin], math.prod(shape[begin:end]), *shape[end:]] if end > begin else shape
    back = table.regroup(table.regroup(axes, joined), shape)
    for before, after, size in zip(axes, back, shape, strict=True):
        assert table.product(after) == size
        if size > 1:
            assert table.flat(before) == table.flat(after)


@given(st.sampled_from([(24, (4, 6), (2, 12)), (64, (8, 8), (4, 16)), (12, (12,), (3, 4))]))
def test_two_splits_of_one_axis_have_a_common_refinement(case):
    whole, first, second = case
    table = AtomTable()
    axis = fresh(table, [whole])
    a, b = table.regroup(axis, first), table.regroup(axis, second)
    flat = table.flat(axis[0])
    assert math.prod(table.size(atom) for atom in flat) == whole
    for axes in (a, b):
        assert tuple(atom for one in axes for atom in table.flat(one)) == flat


def test_a_split_is_seen_through_a_union_made_before():
    table = AtomTable()
    (a,), (b,) = fresh(table, [32, 32])
    table.unify((a,), (b,))
    heads, width = table.regroup([(a,)], [4, 8])
    assert table.flat((b,)) == (*heads, *width)


def test_sizes_without_a_common_refinement_stay_apart():
    table = AtomTable()
    axes = fresh(table, [6])
    table.regroup(axes, [2, 3])
    assert not table.unify(axes[0], table.regroup(fresh(table, [6]), [3, 2])[0])
    assert [table.product(axis) for axis in table.regroup(fresh(table, [4, 6]), [6, 4])] == [6, 4]


def test_parts_of_an_axis_know_it():
    table = AtomTable()
    axis = (table.fresh(8),)
    half = (table.cut(4, axis),)
    assert table.cut_from(half) == axis and table.cut_from(axis) is None


def test_a_copy_is_another_atom_that_knows_its_original():
    table = AtomTable()
    queries = table.fresh(16)
    keys = table.copy(queries)
    assert table.are_copies(queries, keys) and table.original(keys) == queries != keys
