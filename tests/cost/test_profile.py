"""Profiles: what measurements change, that nothing else does, and that corrected prices keep their laws."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.cluster import Axis, load
from autoplan.cost import measurements, profile
from autoplan.cost.model import CostModel
from autoplan.cost.profile import Correction, DeviceProfile, GroupCorrection, Profile
from autoplan.cost.refine import refine, scaled
from autoplan.errors import InputError

CLUSTER = load("dgx-a100-80gb:64")
DEVICE = CLUSTER.device.name
PLAIN = CostModel(CLUSTER)
LAWS = settings(max_examples=50, deadline=None)
factors = st.floats(0.02, 50)
sizes = st.integers(1, 40_000)
ATTENTION = {"batch": 2, "heads": 32, "kv_heads": 8, "head_dim": 128}


def corrected(fixed: float = 1, variable: float = 1, scale: float = 1) -> CostModel:
    """Prices under a profile that corrects everything alike."""
    one = Correction(fixed=fixed, variable=variable)
    kernels = dict.fromkeys(("gemm bf16", "attention forward", "attention backward", "attention decode", "memory norm"),
                            one)
    groups = [GroupCorrection(fixed=fixed, variable=variable, ranks=8, nodes=n) for n in (1, 2)]
    return CostModel(CLUSTER, profile=Profile(
        devices={DEVICE: DeviceProfile(scale=scale, kernels=kernels)},
        clusters={CLUSTER.name: dict.fromkeys(measurements.COLLECTIVES, groups)}))


def table(tmp_path: Path, *rows: str, header: str = "kind,target,seconds,m,n,k,bytes,ranks,nodes,operator") -> Path:
    path = tmp_path / "measured.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


@LAWS
@given(factors, factors, sizes, sizes, sizes, st.integers(0, 2), st.integers(1, 5_000))
def test_a_corrected_matmul_never_shrinks_with_a_size(fixed: float, variable: float, m: int, n: int, k: int,
                                                      which: int, more: int) -> None:
    costs = corrected(fixed, variable)
    large = [x + more * (i == which) for i, x in enumerate((m, n, k))]
    assert costs.matmul(*large) >= np.asarray(costs.matmul(m, n, k)) * (1 - 1e-12)


@LAWS
@given(factors, factors, st.floats(1, 1e11), st.floats(1, 1e3), st.sampled_from(measurements.COLLECTIVES),
       st.sampled_from([Axis(8, 8, 1, 1), Axis(4, 4, 1, 1), Axis(16, 8, 2, 1), Axis(8, 1, 8, 8)]))
def test_a_corrected_collective_never_shrinks_with_bytes(fixed: float, variable: float, nbytes: float, more: float,
                                                         op: str, axis: Axis) -> None:
    call: Callable[..., float] = getattr(corrected(fixed, variable), op)
    assert call(nbytes * more, axis) >= call(nbytes, axis) * (1 - 1e-9)
    assert call(0, axis) == 0


def test_launch_and_rest_are_corrected_apart() -> None:
    rest = corrected(variable=2.0)
    assert rest.matmul(8192, 8192, 8192) == pytest.approx(2 * float(PLAIN.matmul(8192, 8192, 8192)), rel=0.01)
    start = corrected(fixed=2.0)
    launch = PLAIN.launch("gemm", "bf16")
    assert float(start.matmul(16, 16, 16)) - float(PLAIN.matmul(16, 16, 16)) == pytest.approx(launch)
    whole = corrected(scale=1.5)
    for queries in (4096, 1):
        got, plain = (one.attention(**ATTENTION, q_len=queries, kv_len=4096) for one in (whole, PLAIN))
        assert got == pytest.approx(1.5 * float(plain))
    assert whole.memory_bound(1e9, "norm") == pytest.approx(1.5 * float(PLAIN.memory_bound(1e9, "norm")))
    assert whole.memory_bound(1e9, "activation") == pytest.approx(1.5 * float(PLAIN.memory_bound(1e9, "activation")))
    assert whole.all_reduce(1e9, 8) == PLAIN.all_reduce(1e9, 8)


def test_fp16_takes_what_bf16_measured_and_other_dtypes_do_not() -> None:
    costs = corrected(variable=2.0)
    assert costs.matmul(4096, 4096, 4096, dtype="fp16") == costs.matmul(4096, 4096, 4096, dtype="bf16")
    assert costs.matmul(4096, 4096, 4096, dtype="tf32") == PLAIN.matmul(4096, 4096, 4096, dtype="tf32")


def test_exact_predictions_change_nothing(tmp_path: Path) -> None:
    rows = [f"gemm,{DEVICE},{PLAIN.matmul(n, n, n)!r},{n},{n},{n},,,," for n in (128, 1024, 8192)]
    rows += [f"all_reduce,dgx-a100-80gb:64,{PLAIN.all_reduce(b, 8)!r},,,,{b},8,1," for b in (1024, 2**20, 2**30)]
    rows += [f"memory,{DEVICE},{PLAIN.memory_bound(2**28, 'norm')!r},,,,{2**28},,,norm"]
    found, changes = refine(measurements.read(table(tmp_path, *rows)))
    assert [(c.fixed, c.variable, c.before, c.after) for c in changes] == [(1, 1, 0, 0)] * 3
    costs = CostModel(CLUSTER, profile=found)
    assert costs.matmul(5000, 3000, 700) == PLAIN.matmul(5000, 3000, 700)
    assert costs.all_reduce(12345, 8) == PLAIN.all_reduce(12345, 8)


def test_factors_come_back_in_spite_of_an_outlier_and_survive_the_file(tmp_path: Path) -> None:
    true = corrected(fixed=3.0, variable=1.25)
    shapes = [(128, 512, 512), (512, 1024, 1024), (2048, 4096, 4096), (4096, 8192, 8192), (8192, 8192, 8192)]
    rows = [f"gemm,{DEVICE},{true.matmul(*s)!r},{s[0]},{s[1]},{s[2]},,,," for s in shapes * 3]
    rows.append(f"gemm,{DEVICE},{3 * float(true.matmul(4096, 4096, 4096))!r},4096,4096,4096,,,,")
    rows += [f"all_gather,dgx-a100-80gb:64,{true.all_gather(b, 8)!r},,,,{b},8,," for b in (512, 2**16, 2**24, 2**30)]
    found, changes = refine(measurements.read(table(tmp_path, *rows)), "measured.csv")
    path = tmp_path / "profile.json"
    path.write_text(found.to_json(), encoding="utf-8")
    back = profile.load(path)
    assert back.to_json() == found.to_json()
    costs = CostModel(CLUSTER, profile=back)
    for shape in shapes:
        assert costs.matmul(*shape) == pytest.approx(float(true.matmul(*shape)), rel=0.03)
    assert costs.all_gather(2**27, 8) == pytest.approx(float(true.all_gather(2**27, 8)), rel=0.03)
    assert costs.all_gather(2**27, 16) == PLAIN.all_gather(2**27, 16)  # no group across nodes was measured
    assert all(change.after < change.before for change in changes)


def test_the_nearest_group_speaks_for_others() -> None:
    groups = [GroupCorrection(variable=v, ranks=r, nodes=1) for r, v in ((2, 2.0), (8, 4.0))]
    costs = CostModel(CLUSTER, profile=Profile(clusters={CLUSTER.name: {"all_reduce": groups}}))
    for ranks, factor in ((2, 2.0), (8, 4.0)):
        assert costs.all_reduce(2**30, ranks) == pytest.approx(factor * float(PLAIN.all_reduce(2**30, ranks)), rel=0.02)
    assert costs.all_reduce(2**30, 64) == PLAIN.all_reduce(2**30, 64)


def test_a_profile_of_other_machines_is_refused() -> None:
    other = scaled(Profile(), "h100-sxm5-80gb", 2.0)
    with pytest.raises(InputError, match=r"says nothing about this cluster.*h100-sxm5-80gb"):
        CostModel(CLUSTER, profile=other)


@pytest.mark.parametrize(("row", "words"), [
    (f"gemm,{DEVICE},5.5,8192,8192,8192,,,,", [":2", "seconds", "can't be", "the price is"]),
    (f"gemm,{DEVICE},-1,8192,8192,8192,,,,", [":2", "seconds", "above zero"]),
    (f"gemm,{DEVICE},nan,8192,8192,8192,,,,", [":2", "above zero"]),
    (f"gemm,{DEVICE},1e-3,8192,8192.5,8192,,,,", [":2", "n", "whole number"]),
    (f"gemm,{DEVICE},1e-3,8192,8192,,,,,", [":2", "k", "needs it"]),
    (f"gemm,{DEVICE},1e-3,8192,8192,8192,100,,,", [":2", "bytes", "no such column"]),
    ("gemm,a100,1e-3,8192,8192,8192,,,,", [":2", "target", "did you mean"]),
    ("gemm,,1e-3,8192,8192,8192,,,,", [":2", "target"]),
    (f"gemms,{DEVICE},1e-3,8192,8192,8192,,,,", [":2", "unknown kind"]),
    (f"all_reduce,{DEVICE},1e-3,,,,1000000,8,,", [":2", "needs a cluster"]),
    ("all_reduce,dgx-a100-80gb:64,1e-3,,,,1000000,1,,", [":2", "two ranks"]),
    ("all_reduce,dgx-a100-80gb:64,1e-3,,,,1000000,9,2,", [":2", "equally many"]),
    ("all_reduce,dgx-a100-80gb:64,1e-3,,,,1000000,256,16,", [":2", "larger than the cluster"]),
    (f"memory,{DEVICE},1e-3,,,,1000000000,,,softmax", [":2", "unknown kind of memory-bound"]),
    (f"gemm,{DEVICE},1e-3,1,1,1,,,,,9", [":2", "more cells"]),
])
def test_nonsense_is_refused_by_line(tmp_path: Path, row: str, words: list[str]) -> None:
    path = table(tmp_path, row)
    with pytest.raises(InputError) as caught:
        refine(measurements.read(path))
    assert str(caught.value).startswith(f"{path}:2")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("header", "words"), [
    ("kind,target,second", "unknown column, did you mean seconds"), ("kind,target,m", "a column is missing"),
    ("kind,target,seconds,m,m", "given twice"),
])
def test_bad_headers_are_refused(tmp_path: Path, header: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        measurements.read(table(tmp_path, header=header))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no measurements"):
        measurements.read(table(tmp_path))
    with pytest.raises(InputError, match="can't read the file"):
        measurements.read(tmp_path / "absent.csv")
    path = tmp_path / "profile.json"
    for text, words in (("{", "malformed JSON"), ('{"version": 2}', "another version"), ('{"wrong": 1}', "wrong")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=words):
            profile.load(path)
    path.write_text(json.dumps({"devices": {DEVICE: {"scale": -1}}}), encoding="utf-8")
    with pytest.raises(InputError, match="scale"):
        profile.load(path)
