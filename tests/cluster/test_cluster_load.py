"""Cluster files: what ships, what a reference means, and one clear error for everything that is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autoplan import specs
from autoplan.cluster import cluster_schema, describe, devices, load
from autoplan.errors import InputError

PROMISED = (
    "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "dgx1-v100-16gb",
    "dgx1-v100-32gb", "p3.16xlarge", "p4d.24xlarge", "p5.48xlarge", "g5.48xlarge", "nd-a100-v4", "nd-h100-v5",
    "a3-highgpu-8g", "a3-megagpu-8g", "l40s-8x", "rtx4090-8x", "mi300x-8x", "p3dn.24xlarge", "p5en.48xlarge",
    "p6-b200.48xlarge", "dgx-b300", "gb300-nvl72", "g4dn.metal", "g6.48xlarge", "mi355x-8x",
)

DEVICE = {"name": "mine", "memory_gib": 16, "hbm_bandwidth_gb_s": 900, "peak_tflops": {"fp16": 125},
          "flash_attention": False, "source": "measured here"}
SPEC: dict[str, Any] = {
    "device": "h100-sxm5-80gb", "gpus_per_node": 8, "source": "measured here",
    "intra": {"kind": "nvswitch", "bandwidth_gb_s": 450, "latency_us": 2},
    "network": {"kind": "infiniband", "nics": 8, "bandwidth_gbit_s": 400, "latency_us": 14},
}


def write(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


def changed(**changes: Any) -> dict[str, Any]:
    """SPEC with the values at dotted paths (a double underscore for the dot) replaced, or removed for `...`."""
    spec = copy.deepcopy(SPEC)
    for dotted, value in changes.items():
        *parents, key = dotted.split("__")
        target = spec
        for parent in parents:
            target = target[parent]
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return spec


def test_the_promised_names_ship() -> None:
    assert set(specs.names("cluster_specs")) == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_every_shipped_spec_loads_and_is_plausible(name: str) -> None:
    cluster = load(name)
    device, node = cluster.device, cluster.node
    assert cluster.name == node.name == name
    assert cluster.num_devices == node.gpus == (72 if name.endswith("nvl72") else 8)
    assert 1.5e10 < device.memory_bytes < 3.2e11
    assert 2.5e11 < device.hbm_bandwidth < 1e13
    assert device.peak_flops["fp16"] >= device.peak_flops["fp32"] > 8e12
    assert device.flash_attention == (device.name not in ("v100-sxm2-16gb", "v100-sxm2-32gb", "t4-16gb"))
    assert ("bf16" in device.peak_flops) == device.flash_attention
    assert node.intra.bandwidth > node.network.bandwidth > 0
    assert 1e-6 <= node.intra.latency < node.network.latency < 1e-4
    assert node.source and device.source


@pytest.mark.parametrize(("name", "node_bandwidth", "intra", "memory_gib"), [
    ("dgx-a100-80gb", 200e9, 300e9, 79.14), ("p4d.24xlarge", 50e9, 300e9, 39.5), ("p3.16xlarge", 3.125e9, 150e9, 15.77),
    ("p5.48xlarge", 400e9, 450e9, 79.11), ("dgx1-v100-32gb", 50e9, 150e9, 31.74), ("g5.48xlarge", 12.5e9, 31e9, 22.06),
    ("gb200-nvl72", 3600e9, 900e9, 184.31), ("a3-highgpu-8g", 100e9, 450e9, 79.11), ("mi300x-8x", 400e9, 448e9, 191.98),
])
def test_figures_in_si_units(name: str, node_bandwidth: float, intra: float, memory_gib: float) -> None:
    cluster = load(name)
    assert cluster.node_bandwidth == pytest.approx(node_bandwidth)
    assert cluster.node.intra.bandwidth == pytest.approx(intra)
    assert cluster.device.memory_bytes == int(memory_gib * 2**30)


def test_meshes_of_links_say_what_one_peer_gets() -> None:
    assert load("mi300x-8x").node.intra.peer_bandwidth == 64e9
    assert load("dgx1-v100-16gb").node.intra.peer_bandwidth == 25e9
    assert load("dgx-h100").node.intra.peer_bandwidth is None


def test_figures_from_memory_are_said() -> None:
    assert "from memory: network.nics, network.bandwidth_gbit_s" in load("p3.16xlarge").node.source
    assert "from memory" in load("g5.48xlarge").device.source
    assert "from memory" not in load("dgx-h100").node.source


def test_every_shipped_device_is_valid(tmp_path: Path) -> None:
    for name in devices():
        assert load(write(tmp_path, changed(device=name))).device.name == name


@pytest.mark.parametrize(("ref", "nodes", "per_node"), [
    ("dgx-h100", 1, 8), ("dgx-h100:64", 8, 8), ("dgx-h100:8", 1, 8), ("dgx-h100:4", 1, 4), ("dgx-h100:1", 1, 1),
    ("gb200-nvl72:8", 1, 8), ("gb200-nvl72:144", 2, 72), ("p4d.24xlarge:32", 4, 8),
])
def test_references_with_a_number_of_gpus(ref: str, nodes: int, per_node: int) -> None:
    cluster = load(ref)
    assert (cluster.num_nodes, cluster.gpus_per_node) == (nodes, per_node)


def test_paths(tmp_path: Path) -> None:
    path = write(tmp_path, changed(nodes=3, oversubscription=2))
    cluster = load(path)
    assert (cluster.name, cluster.num_devices, cluster.node_bandwidth) == ("mine", 24, 200e9)
    assert load(f"{path}:16").num_devices == 16


def test_an_inline_device(tmp_path: Path) -> None:
    device = load(write(tmp_path, changed(device=DEVICE))).device
    assert (device.name, device.memory_bytes, dict(device.peak_flops)) == ("mine", 16 * 2**30, {"fp16": 125e12})


def test_a_float_with_an_exponent_is_a_number(tmp_path: Path) -> None:
    text = yaml.safe_dump(SPEC).replace("latency_us: 14", "latency_us: 14e0")
    assert load(write(tmp_path, text)).node.network.latency == 14e-6


@pytest.mark.parametrize(("ref", "words"), [
    ("dgx-a100-80gb:12", ["12 GPUs", "8 or 16"]), ("dgx-h100:100", ["96 or 104"]), ("dgx-h100:0", ["at least 1"]),
    ("dgx-h100:-8", ["'-8'"]), ("dgx-h100:eight", ["'eight'"]), ("dgx-h100:", ["''"]), ("dgx-h100:8.0", ["'8.0'"]),
    ("dgx-h100:9999999999", ["at most 9 digits"]), ("dgx-h100:999999992", ["too many nodes"]),
    ("dgx-h10", ["unknown cluster; did you mean dgx-h100 or", "'dgx-h10'"]), ("", ["unknown cluster"]),
    ("devices", ["unknown cluster"]), ("missing.yaml", ["no such cluster file", "missing.yaml"]),
    ("no/where", ["no such cluster file"]), ("x" * 5000, ["unknown cluster"]),
    (None, ["cluster: not a reference to a cluster", "'NoneType'"]), (8, ["not a reference", "'int'"]),
])
def test_bad_references(ref: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load(ref)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


BAD: list[tuple[object, str | None, list[str]]] = [
    (changed(intra__bandwidth_gb_s=-1), "intra.bandwidth_gb_s", ["found -1", "more than 0"]),
    (changed(intra__bandwidth_gb_s=float("inf")), "intra.bandwidth_gb_s", ["found inf", "finite"]),
    (changed(intra__bandwidth_gb_s=float("nan")), "intra.bandwidth_gb_s", ["found nan", "finite"]),
    (changed(intra__bandwidth_gb_s="fast"), "intra.bandwidth_gb_s", ["found 'fast'", "a number"]),
    (changed(intra__kind="wifi"), "intra.kind", ["found 'wifi'", "'nvswitch'"]),
    (changed(intra__latency_us=...), "intra.latency_us", ["missing"]),
    (changed(intra__latency_us=0), "intra.latency_us", ["found 0", "more than 0"]),
    (changed(intra__bandwith_gb_s=1), "intra.bandwith_gb_s", ["unknown key", "did you mean bandwidth_gb_s"]),
    (changed(intra=None), "intra", ["null", "a mapping"]),
    (changed(network__nics=None), "network.nics", ["null", "a whole number"]),
    (changed(network__nics=0), "network.nics", ["found 0", "more than 0"]),
    (changed(network=[]), "network", ["found []", "a mapping"]),
    (changed(gpus_per_node=0), "gpus_per_node", ["found 0"]),
    (changed(gpus_per_node=8.5), "gpus_per_node", ["found 8.5", "a whole number"]),
    (changed(gpus_per_node=True), "gpus_per_node", ["found True", "a whole number"]),
    (changed(gpus_per_node=...), "gpus_per_node", ["missing", "GPUs of a node"]),
    (changed(gpu_per_node=8), "gpu_per_node", ["unknown key", "did you mean gpus_per_node"]),
    (changed(nodes="two"), "nodes", ["found 'two'", "a whole number"]),
    (changed(nodes=10**30), "nodes", ["at most 1000000"]),
    (changed(oversubscription=0.5), "oversubscription", ["found 0.5", "at least 1"]),
    (changed(source=""), "source", ["isn't empty"]),
    (changed(from_memory="intra"), "from_memory", ["a list"]),
    (changed(from_memory=[3]), "from_memory.0", ["found 3", "text"]),
    (changed(device="h100"), "device", ["unknown device", "h100-sxm5-80gb"]),
    (changed(device=None), "device", ["name of a device"]),
    (changed(device=[1]), "device", ["found [1]", "name of a device"]),
    (changed(device={**DEVICE, "memory_gib": 0}), "device.memory_gib", ["found 0"]),
    (changed(device={**DEVICE, "memory": 1}), "device.memory", ["unknown key", "memory_gib"]),
    (changed(device={k: v for k, v in DEVICE.items() if k != "name"}), "device.name", ["missing"]),
    (changed(device={**DEVICE, "peak_tflops": {"bf17": 1}}), "device.peak_tflops.bf17", ["'bf16'"]),
    (changed(device={**DEVICE, "peak_tflops": {"bf16": -1}}), "device.peak_tflops.bf16", ["found -1"]),
    (changed(device={**DEVICE, "peak_tflops": {}}), "device.peak_tflops", ["at least 1 item"]),
    (changed(device={**DEVICE, "flash_attention": "yes"}), "device.flash_attention", ["true or false"]),
    ([1], None, ["found [1]", "a mapping"]),
    ("just text", None, ["a mapping"]),
]


@pytest.mark.parametrize(("data", "key", "words"), BAD, ids=[f"{i}-{case[1]}" for i, case in enumerate(BAD)])
def test_bad_files(tmp_path: Path, data: object, key: str | None, words: list[str]) -> None:
    path = write(tmp_path, data)
    with pytest.raises(InputError) as caught:
        load(path)
    text = str(caught.value)
    assert caught.value.where == str(path) and caught.value.key == key
    assert "\n" not in text and text.startswith(f"{path}: {key}: " if key else f"{path}: ")
    for word in words:
        assert word in text


def test_the_schema_accepts_what_ships_and_refuses_what_is_bad() -> None:
    schema = cluster_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in PROMISED:
        validator.validate(specs.read_yaml(specs.shipped("cluster_specs") / f"{name}.yaml"))
    validator.validate(changed(device=DEVICE))
    assert not validator.is_valid(changed(gpus_per_node=0))
    assert not validator.is_valid(changed(extra=1))
    assert not validator.is_valid(changed(intra__kind="wifi"))


def test_describe_is_plain_data() -> None:
    facts = json.loads(json.dumps(describe(load("dgx-h100:64"))))
    assert (facts["name"], facts["num_devices"], facts["num_nodes"]) == ("dgx-h100", 64, 8)
    assert facts["node"]["network"]["bandwidth"] == 50e9
    assert facts["device"]["peak_flops"]["bf16"] == 989e12
    assert facts["memory_bytes"] == 64 * facts["device"]["memory_bytes"]
