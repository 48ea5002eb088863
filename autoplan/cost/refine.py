"""From measurements to a profile: the two factors of each group of rows, fitted robustly to their prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autoplan.cluster import device as shipped_device
from autoplan.cluster import devices as shipped_devices
from autoplan.cluster import group as group_of
from autoplan.cluster import load as load_cluster
from autoplan.cluster.types import Axis, Cluster, Link, Node, NodeGroup
from autoplan.cost.measurements import COLLECTIVES
from autoplan.cost.model import CostModel
from autoplan.cost.profile import Correction, DeviceProfile, GroupCorrection, Profile
from autoplan.errors import InputError, nearest

if TYPE_CHECKING:
    from autoplan.cost.measurements import Measurement

Array = NDArray[np.float64]
FARTHEST = 20.0  # a measurement farther than this from its price, either way, is taken for a mistake
PRIOR = 0.05  # weight of "nothing changes" against a row; decides only what the rows leave open
NEGLIGIBLE = 1e-3  # relative change that is not worth a correction


@dataclass(frozen=True)
class Change:
    """What one group of rows changed: its factors, and the median |price/measured − 1| before and after."""

    target: str
    group: str
    rows: int
    fixed: float
    variable: float
    before: float
    after: float


def refine(rows: Iterable[Measurement], source: str = "") -> tuple[Profile, tuple[Change, ...]]:
    """Return the profile that kernels and collectives among `rows` make, and what it changes.

    InputError, naming file and line, for a target that isn't known, a group that the cluster hasn't, a dtype that the
    device hasn't, or a time that can't be: more than 20 times its price, or less than a twentieth of it.
    """
    machines: dict[str, CostModel] = {}
    groups: dict[tuple[str, str, tuple[int, int]], list[tuple[float, float, float]]] = {}
    for row in rows:
        costs = machines.setdefault(row.target, _machine(row))
        target = costs.cluster.name if row.kind in COLLECTIVES else costs.cluster.device.name
        name, axis, price, floor = _priced(row, costs)
        _check(row, price)
        key = (target, name, (axis.size, axis.nodes) if axis else (0, 0))
        groups.setdefault(key, []).append((price, floor, row.seconds))
    devices: dict[str, dict[str, Correction]] = {}
    clusters: dict[str, dict[str, list[GroupCorrection]]] = {}
    changes = []
    for (target, name, (ranks, nodes)), members in groups.items():
        price, floor, seconds = np.array(members).T
        fixed, variable = fit(price, floor, seconds)
        correction = Correction(fixed=fixed, variable=variable, rows=len(members))
        if ranks:
            clusters.setdefault(target, {}).setdefault(name, []).append(
                GroupCorrection(fixed=fixed, variable=variable, rows=len(members), ranks=ranks, nodes=nodes))
        else:
            devices.setdefault(target, {})[name] = correction
        after = correction(price, floor)
        changes.append(Change(target, f"{name} of {ranks} on {nodes}" if ranks else name, len(members), fixed, variable,
                              _error(price, seconds), _error(after, seconds)))
    kernels = {name: DeviceProfile(kernels=found) for name, found in devices.items()}
    return Profile(source=source, devices=kernels, clusters=clusters), tuple(changes)


def fit(price: Array, floor: Array, seconds: Array) -> tuple[float, float]:
    """Factors of the fixed and the variable part of prices that meet the measured seconds best, robustly.

    Least sum over rows of |log(corrected/measured)|, smoothed near zero; what the rows leave open stays at 1.
    """
    from scipy.optimize import least_squares

    least = np.minimum(price, floor)

    def residual(x: Array) -> Array:
        fixed, variable = np.exp(x)
        return np.append(np.log((fixed * least + variable * (price - least)) / seconds), PRIOR * x)

    found = least_squares(residual, np.zeros(2), bounds=(np.log(1 / 50), np.log(50)), loss="soft_l1", f_scale=0.02)
    factors = [1.0 if abs(x) < NEGLIGIBLE else float(f"{np.exp(x):.4g}") for x in found.x]
    return factors[0], factors[1]


def _machine(row: Measurement) -> CostModel:
    """The prices of a row's target: a cluster, or a device alone."""
    if row.target in shipped_devices():
        if row.kind in COLLECTIVES:
            raise InputError(f"{row.kind} needs a cluster, not a device", where=row.where, key="target",
                             found=row.target)
        link = Link("pcie", 1e9, 1e-6)
        node = Node(row.target, shipped_device(row.target), 1, link, 1, Link("ethernet", 1e9, 1e-6), "")
        return CostModel(Cluster(row.target, (NodeGroup(node, 1),), 1))
    try:
        return CostModel(load_cluster(row.target))
    except InputError as error:
        hint = nearest(row.target, shipped_devices())
        raise InputError(f"no device, {hint}; no cluster either: {error}" if hint else str(error), where=row.where,
                         key="target") from None


def _priced(row: Measurement, costs: CostModel) -> tuple[str, Axis | None, float, float]:
    """Return a row's group, the devices it runs on, its price and the part of it that doesn't depend on the size."""
    sizes, dtype = row.sizes, row.words.get("dtype", "bf16" if "bf16" in costs.cluster.device.peak_flops else "fp16")
    try:
        if row.kind == "gemm":
            price = costs.matmul(sizes["m"], sizes["n"], sizes["k"], batch=sizes.get("batch", 1), dtype=dtype)
            return f"gemm {dtype}", None, float(price), costs.launch("gemm", dtype)
        if row.kind == "attention":
            backward, causal = row.words.get("phase") == "backward", row.words.get("causal", "true") == "true"
            price = costs.attention(
                batch=sizes["batch"], heads=sizes["heads"], kv_heads=sizes["kv_heads"], q_len=sizes["q_len"],
                kv_len=sizes["kv_len"], head_dim=sizes["head_dim"], causal=causal, dtype=dtype, flash=True,
                backward=backward)
            phase = "decode" if sizes["q_len"] == 1 and not backward else "backward" if backward else "forward"
            return f"attention {phase}", None, float(price), costs.launch("attention", phase)
        if row.kind == "memory":
            kind = row.words.get("operator", "mixed")
            return f"memory {kind}", None, float(costs.memory_bound(sizes["bytes"], kind)), costs.launch("memory", kind)
        axis = _axis(row, costs.cluster)
        call = {"all_reduce": costs.all_reduce, "all_gather": costs.all_gather, "p2p": costs.p2p,
                "reduce_scatter": costs.reduce_scatter, "all_to_all": costs.all_to_all}[row.kind]
        return row.kind, axis, float(call(sizes["bytes"], axis)), float(call(1.0, axis))
    except InputError as error:
        raise error.at(row.where) from None


def _axis(row: Measurement, cluster: Cluster) -> Axis:
    """The group of a collective: `ranks` devices, on `nodes` nodes or as few as hold them."""
    ranks, nodes = int(row.sizes["ranks"]), row.sizes.get("nodes")
    if ranks < 2:
        raise InputError("a collective needs two ranks or more", where=row.where, key="ranks", found=ranks)
    if nodes is None:
        try:
            return group_of(cluster, ranks)
        except ValueError as error:
            raise InputError(f"no group of the cluster: {error}", where=row.where, key="ranks", found=ranks) from None
    if ranks % nodes:
        raise InputError("must be equally many on each node", where=row.where, key="ranks", found=ranks,
                         allowed=f"multiples of {int(nodes)}")
    return Axis(ranks, ranks // int(nodes), int(nodes), 1)


def _check(row: Measurement, price: float) -> None:
    """Raise InputError for a time that is no measurement of this on that machine."""
    if not 1 / FARTHEST <= row.seconds / price <= FARTHEST:
        raise InputError("can't be (is the unit seconds?)", where=row.where, key="seconds", found=row.seconds,
                         allowed=f"{price / FARTHEST:.3g} to {price * FARTHEST:.3g}: the price is {price:.3g}")


def _error(price: Array, seconds: Array) -> float:
    return float(np.median(np.abs(price / seconds - 1)))


def scaled(profile: Profile, device: str, scale: float) -> Profile:
    """The profile with every kernel of a device multiplied by `scale`."""
    was = profile.devices.get(device, DeviceProfile())
    return profile.model_copy(update={
        "devices": {**profile.devices, device: was.model_copy(update={"scale": float(f"{scale:.4g}")})}})
