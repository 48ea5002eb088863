"""Collectives read off HLO text: every way to write groups, loops, tuples, all-reduces of which slices are used."""

from __future__ import annotations

import pytest

from autoplan.judge.hlo import sent, wire_bytes
from autoplan.sharding import Collective

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER


ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  ROOT %s = f32[] add(%a, %a)\n}\n\n"


def module(*lines: str, more: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (f"HloModule m\n\n{ADD}{more}\nENTRY %main.1 (p: f32[8,4]) -> f32[8,4] {{\n"
            f"  %p = f32[8,4]{{1,0}} parameter(0)\n{body}\n}}\n")


@pytest.mark.parametrize(("groups", "size"), [
    ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
    ("replica_groups=[1,8]<=[8]", 8),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", 4),
    ("replica_groups=mesh['axis_0'=2,'axis_1'=4], device_ids=([2,4]T(1,0)) {'axis_0','axis_1'}", 8),
    ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)4}", 4),
])
def test_groups_are_read_in_every_form(groups: str, size: int) -> None:
    text = module(f"ROOT %ar = f32[8,4]{{1,0}} all-reduce(%p), channel_id=1, {groups}, to_apply=%add")
    assert sent(text) == {(AR, size): wire_bytes(AR, size, 128.0)}


def test_groups_of_one_device_send_nothing() -> None:
    assert sent(module("ROOT %ar = f32[8,4]{1,0} all-reduce(%p), replica_groups={{0},{1}}, to_apply=%add")) == {}


@pytest.mark.parametrize(("line", "expected"), [
    ("%g = f32[32,4]{1,0} all-gather(%p), replica_groups=[1,4]<=[4], dimensions={0}", {(AG, 4): 512 * 3 / 4}),
    ("%g = bf16[32,4]{1,0} all-gather(%p), replica_groups=[1,4]<=[4], dimensions={0}", {(AG, 4): 256 * 3 / 4}),
    ("%s = f32[2,4]{1,0} reduce-scatter(%p), replica_groups=[1,4]<=[4], to_apply=%add", {(RS, 4): 128 * 3 / 4}),
    ("%c = f32[8,4]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", {(Collective.PERMUTE, 2): 128}),
    ("%a = (f32[2,4]{1,0}, f32[2,4]{1,0}) all-to-all(%x, %y), replica_groups={{0,1}}",
     {(Collective.ALL_TO_ALL, 2): 64 / 2}),
])
def test_bytes_are_those_of_the_whole_tensor_or_of_what_a_device_holds(
        line: str, expected: dict[tuple[Collective, int], float]) -> None:
    assert sent(module(line)) == expected


def test_a_reduction_of_which_each_device_keeps_a_slice_is_a_reduce_scatter() -> None:
    fusion = ("%cut (a: f32[8,4], i: s32[]) -> f32[2,4] {\n"
              "  %a = f32[8,4]{1,0} parameter(0)\n  %i = s32[] parameter(1)\n"
              "  %t = f32[8,4]{1,0} bitcast(%a)\n  ROOT %d = f32[2,4]{1,0} dynamic-slice(%t, %i, %i)\n}\n")
    reduce = "%ar = f32[8,4]{1,0} all-reduce(%p), replica_groups=[1,4]<=[4], to_apply=%add"
    cut = "%f = f32[2,4]{1,0} fusion(%ar, %i), kind=kLoop, calls=%cut"
    assert sent(module(reduce, cut, more=fusion)) == {(RS, 4): wire_bytes(RS, 4, 128)}
    whole = "%n = f32[8,4]{1,0} negate(%ar)"
    assert sent(module(reduce, cut, whole, more=fusion)) == {(AR, 4): wire_bytes(AR, 4, 128)}
    assert sent(module(reduce, more=fusion)) == {(AR, 4): wire_bytes(AR, 4, 128)}


def test_parts_of_a_combined_reduction_are_told_apart() -> None:
    text = module(
        "%ar = (f32[8,4]{1,0}, f32[6]{0}) all-reduce(%p, %q), replica_groups=[1,2]<=[2], to_apply=%add",
        "%a = f32[8,4]{1,0} get-tuple-element(%ar), index=0",
        "%s = f32[4,4]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={4,4}",
        "%b = f32[6]{0} get-tuple-element(%ar), index=1",
        "%n = f32[6]{0} negate(%b)")
    assert sent(text) == {(RS, 2): wire_bytes(RS, 2, 128), (AR, 2): wire_bytes(AR, 2, 24)}


def test_collectives_in_a_loop_count_as_often_as_it_runs() -> None:
    body = ("%body (t: f32[8,4]) -> f32[8,4] {\n  %t = f32[8,4]{1,0} parameter(0)\n"
            "  ROOT %g = f32[8,4]{1,0} all-reduce(%t), replica_groups=[1,2]<=[2], to_apply=%add\n}\n"
            "%cond (t: f32[8,4]) -> pred[] {\n"
            "  %t = f32[8,4]{1,0} parameter(0)\n  ROOT %k = pred[] constant(true)\n}\n")
    loop = ('ROOT %w = f32[8,4]{1,0} while(%p), condition=%cond, body=%body, '
            'backend_config={"known_trip_count":{"n":"5"}}')
    assert sent(module(loop, more=body)) == {(AR, 2): 5 * wire_bytes(AR, 2, 128)}
