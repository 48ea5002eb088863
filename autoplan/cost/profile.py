"""A profile: a user's own measurements as corrections of the shipped prices, and the file that holds it.

Every price has a part that doesn't depend on the size (launch, latency) and a part that does. A correction multiplies
the two by a factor each, so that a corrected price is still non-decreasing in every size and non-increasing in every
speed, whatever the factors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from autoplan.errors import InputError, Words
from autoplan.specs import unparsed, validated

if TYPE_CHECKING:
    from autoplan.cluster.types import Axis, Cluster

Array = NDArray[np.float64]
VERSION = 1
_SAME = {"bf16": "fp16", "fp16": "bf16"}  # one speed on every device that has both

Factor = Annotated[float, Field(ge=0.01, le=100)]


class Correction(BaseModel):
    """What multiplies the fixed part of a price (launch, latency) and the rest of it; how many rows said so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    fixed: Factor = Field(default=1.0, description="Multiplies the launch or latency.")
    variable: Factor = Field(default=1.0, description="Multiplies the rest of the time.")
    rows: int = Field(default=0, ge=0, description="Measurements that it was fitted to.")

    def __call__(self, time: Array, floor: float) -> Array:
        """Seconds `time`, of which `floor` don't depend on the size, corrected."""
        least = np.minimum(time, floor)
        return self.fixed * least + self.variable * (time - least)


class GroupCorrection(Correction):
    """Of a collective over groups of one size."""

    ranks: int = Field(ge=2, description="Devices of a group.")
    nodes: int = Field(ge=1, description="Nodes that a group spans.")


class DeviceProfile(BaseModel):
    """Corrections of the kernels of one device."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    scale: Factor = Field(default=1.0, description="Multiplies every kernel (fitted to whole steps).")
    kernels: dict[str, Correction] = Field(
        default={}, description='By "gemm DTYPE", "attention PHASE" or "memory KIND".')


class Profile(BaseModel):
    """What measurements change, by device and by cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    version: Literal[1] = Field(default=1, description="Of this file's form.")
    source: str = Field(default="", description="The file of measurements.")
    devices: dict[str, DeviceProfile] = Field(default={}, description="By the device's name.")
    clusters: dict[str, dict[str, list[GroupCorrection]]] = Field(
        default={}, description="By the cluster's name and the operation.")
    _file: str = PrivateAttr(default="")  # that it was read from

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    def of(self, cluster: Cluster) -> Refinement:
        """Return what applies to `cluster`. InputError where nothing does: the profile is of other machines."""
        device, collectives = self.devices.get(cluster.device.name), self.clusters.get(cluster.name, {})
        if device is None and not collectives:
            known = Words(", ".join((*self.devices, *self.clusters)) or "nothing")
            raise InputError("the profile says nothing about this cluster or its device",
                             where=self._file or self.source or None, key="devices, clusters", found=known,
                             allowed=f"the device {cluster.device.name} or the cluster {cluster.name}")
        return Refinement(device or DeviceProfile(), collectives)


@dataclass(frozen=True)
class Refinement:
    """What a profile says about one cluster."""

    device: DeviceProfile = field(default_factory=DeviceProfile)
    collectives: Mapping[str, list[GroupCorrection]] = field(default_factory=dict)

    def kernel(self, kind: str, group: str, time: Array, floor: float) -> Array:
        """Seconds of a kernel, corrected; group: a dtype, a phase or a kind of operator."""
        found = self.device.kernels.get(f"{kind} {group}") or self.device.kernels.get(f"{kind} {_SAME.get(group)}")
        if found is not None:
            time = found(time, floor)
        return time if self.device.scale == 1 else self.device.scale * time

    def collective(self, op: str, axis: Axis, price: Callable[[ArrayLike], Array]) -> Callable[[ArrayLike], Array]:
        """The price of a collective, corrected by the group measured that is nearest in size (as local as this one)."""
        alike = [one for one in self.collectives.get(op, []) if (one.nodes == 1) == axis.is_local]
        if not alike:
            return price
        near = min(alike, key=lambda one: (abs(math.log(one.ranks / axis.size)), abs(math.log(one.nodes / axis.nodes))))
        floor = float(price(1.0))

        def corrected(nbytes: ArrayLike) -> Array:
            return np.where(np.asarray(nbytes) > 0, near(price(nbytes), floor), 0.0)

        return corrected


def load(path: str | Path) -> Profile:
    """Read a profile. InputError for a file that can't be read or isn't one."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"can't read the profile: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is no profile: not UTF-8 text", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no profile: malformed JSON: {unparsed(error)}", where=str(path)) from None
    if isinstance(data, dict) and data.get("version", VERSION) != VERSION:
        raise InputError("a profile of another version", where=str(path), key="version", found=data["version"],
                         allowed=str(VERSION))
    profile = validated(Profile, data, str(path))
    profile._file = str(path)
    return profile


def profile_schema() -> dict[str, Any]:
    """JSON Schema of a profile."""
    return Profile.model_json_schema()
