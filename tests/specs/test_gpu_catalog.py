import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from pinn.common.files import data_folder
from pinn.errors import PinnError
from pinn.specs.gpu import find_gpu, gpu_aliases, list_gpus, load_gpu
from pinn.specs.other_vendors import vendor_of
from pinn.specs.precision import precision

SYSTEMS = Path(find_spec("aiconfigurator_core").origin).parent / "systems"
SHARED = [path for path in sorted(SYSTEMS.glob("*.yaml")) if find_gpu(path.stem)]
FILES = sorted(data_folder("gpus").glob("*.json"))


def write(path, values):
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("H100", "H100-SXM"),
        ("h100_sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("A100", "A100-SXM-80GB"),
        ("a100-80gb", "A100-SXM-80GB"),
        ("h200_sxm", "H200-SXM"),
        ("B200", "B200-SXM"),
        ("gb200", "GB200"),
        ("rtx_pro_6000_server", "RTX-PRO-6000-Server"),
        ("4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("rtx a6000", "A6000"),
        ("Tesla T4", "T4"),
        ("h800", "H800-SXM"),
    ],
)
def test_aliases(name, canonical):
    assert load_gpu(name).name == canonical


def test_the_required_gpus_are_there():
    required = """A100-SXM-40GB A100-SXM-80GB A100-PCIe-40GB A100-PCIe-80GB H100-SXM H100-PCIe
    H100-NVL H200-SXM B200-SXM B300-SXM GB200 GB300 L40S L4 A30 RTX-PRO-6000-Server RTX-3090
    RTX-4090 RTX-5090 RTX-6000-Ada A10 A10G A40 A6000 T4 L20 L40 H20 H800-SXM A800-SXM-80GB
    RTX-PRO-6000-Workstation"""
    assert set(required.split()) <= set(list_gpus())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_datasheets_are_dense_and_in_si_units(path):
    gpu = load_gpu(path)
    peaks = gpu.peak_flop_per_s
    assert path.stem == gpu.name
    assert 1e11 < gpu.memory_bandwidth_bytes_per_s < 1e13
    assert 1.5e10 < gpu.memory_bytes < 4e11
    assert 1e9 < gpu.pcie_bandwidth_bytes_per_s <= gpu.link_bandwidth_bytes_per_s < 1e12
    assert gpu.has_nvlink == (gpu.link_bandwidth_bytes_per_s > gpu.pcie_bandwidth_bytes_per_s)
    assert ("fp8" in peaks) == (gpu.compute_capability >= 8.9)
    assert ("fp4" in peaks) == (gpu.compute_capability >= 10)
    if "fp8" in peaks:  # a sparse figure beside a dense one would show as a factor 4
        assert peaks["fp8"] / peaks["bf16"] == pytest.approx(2, rel=0.02)
    # A multiprocessor does 1,024 (Ada) to 8,192 (Blackwell) dense FLOP per clock of 1 to 2.5 GHz.
    assert 0.5e12 < peaks["bf16"] / gpu.sm_count < 20e12
    assert len(gpu.source) > 40


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_figures_agree_with_an_independent_table(path):
    values, gpu = yaml.safe_load(path.read_text()), load_gpu(path.stem)
    chip, node = values["gpu"], values["node"]
    tolerance = 0.13 if gpu.name == "RTX-PRO-6000-Server" else 0.03  # see the file's source
    assert gpu.memory_bandwidth_bytes_per_s == pytest.approx(chip["mem_bw"], rel=tolerance)
    assert gpu.memory_bytes == pytest.approx(chip["mem_capacity"], rel=0.07)
    assert gpu.link_bandwidth_bytes_per_s == pytest.approx(node["intra_node_bw"])
    assert gpu.compute_capability * 10 == pytest.approx(chip["sm_version"])
    for kind, name in {"bf16": "bfloat16", "fp8": "fp8", "int8": "int8", "fp4": "fp4"}.items():
        theirs = chip.get(f"{name}_tc_flops")
        assert (theirs is None) == (kind not in gpu.peak_flop_per_s)
        assert theirs is None or gpu.peak_flop_per_s[kind] == pytest.approx(theirs, rel=0.04)


def test_formats_without_a_rate_of_their_own_run_at_the_bf16_rate():
    a100 = load_gpu("A100")
    for name in ("fp8", "nvfp4", "int4_wo"):
        assert a100.matmul_flop_per_s(precision(name)) == a100.peak_flop_per_s["bf16"]


def test_a_new_gpu_needs_only_a_file(tmp_path):
    values = json.loads((data_folder("gpus") / "L4.json").read_text())
    path = write(tmp_path / "new.json", {**values, "name": "L5", "sm_count": 77})
    assert (load_gpu(path).name, load_gpu(str(path)).sm_count) == ("L5", 77)


def test_an_unknown_gpu_names_the_nearest_and_how_to_list_all():
    with pytest.raises(PinnError) as error:
        load_gpu("H1000")
    near, remedy = str(error.value).split("?", 1)
    assert near == "the GPU 'H1000' is unknown: did you mean H100-SXM, A100-SXM-80GB or H100-NVL"
    assert "'pinn gpus' lists all names" in remedy
    assert len(str(error.value)) < 160


@pytest.mark.parametrize(
    ("name", "vendor"),
    [("MI300X", "AMD"), ("AMD_Instinct_MI355X", "AMD"), ("gfx942", "AMD"), ("Gaudi3", "Intel"),
     ("TPU-v6e", "Google"), ("trn2", "AWS"), ("Ascend910B", "Huawei")],
)  # fmt: skip
def test_another_vendor_is_not_supported(name, vendor, tmp_path):
    with pytest.raises(PinnError, match=f"{name}.* is a GPU of {vendor}, which is not supported"):
        load_gpu(name)
    values = json.loads((data_folder("gpus") / "H100-SXM.json").read_text())
    for what in ({"name": name}, {"name": "mine", "source": f"{name} datasheet"}):
        path = write(tmp_path / "card.json", {**values, **what})
        with pytest.raises(PinnError, match=f"{vendor}, which is not supported"):
            load_gpu(path)
    foreign = {name: {"TFlopsPeak": 1307, "BwPeakTBs": 5.3, "MemoryGiB": 192}}
    with pytest.raises(PinnError, match=f"{vendor}, which is not supported"):
        load_gpu(write(tmp_path / "hardware.json", foreign))


def test_no_known_gpu_is_of_another_vendor():
    for name in list_gpus():
        gpu = load_gpu(name)
        assert not [text for text in (name, gpu.source, *gpu_aliases(gpu)) if vendor_of(text)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n"name": "x",\n', r"gpu.json, line 3: malformed JSON"),
        ("[]", r"gpu.json: the file of a GPU must be a JSON object"),
        ("{}", r"gpu.json has no GPU"),
        ('{"peak_flop_per_s": {}}', r"gpu.json: the GPU lacks .*memory_bandwidth_bytes_per_s"),
        ('{"X1": {"TFlopsPeak": 100}}', r"gpu.json: GPU X1 has no bandwidth: add one of"),
        ('{"X1": {"BwPeakTBs": 1}}', r"gpu.json: GPU X1 has no compute rate: add one of"),
        ('{"X1": {"BwPeakTBs": "1", "TFlopsPeak": 1}}', r"X1: BwPeakTBs must be a positive number"),
        ('{"X1": {"BwPeakTBs": 0, "TFlopsPeak": 1}}', r"X1: BwPeakTBs must be a positive number"),
    ],
)
def test_bad_files_name_file_value_and_remedy(tmp_path, content, message):
    path = tmp_path / "gpu.json"
    path.write_text(content)
    with pytest.raises(PinnError, match=message) as error:
        load_gpu(path)
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(PinnError, match=r"nowhere.json: cannot be read"):
        load_gpu(tmp_path / "nowhere.json")


@pytest.mark.parametrize("broken", ["memory_bandwidth_bytes_per_s", "sm_count"])
def test_own_layout_checks_numbers(tmp_path, broken):
    values = json.loads((data_folder("gpus") / "L4.json").read_text())
    with pytest.raises(PinnError, match=rf"{broken} must be a number in SI units, got 'x'"):
        load_gpu(write(tmp_path / "a.json", {**values, broken: "x"}))
    with pytest.raises(PinnError, match=rf"{broken} must be .* in SI units"):
        load_gpu(write(tmp_path / "b.json", {**values, broken: 0}))


def test_plain_foreign_layout_of_a_known_chip(tmp_path):
    entry = {
        "memory_bandwidth_gb_s": 3000,
        "compute_tflops_fp16": 900,
        "memory_gb": 80,
        "sm_count": 130,
    }
    gpu, known = load_gpu(write(tmp_path / "g.json", {"H100": entry})), load_gpu("H100")
    assert gpu.memory_bandwidth_bytes_per_s == 3e12
    assert gpu.peak_flop_per_s == {**known.peak_flop_per_s, "bf16": 9e14}
    assert (gpu.sm_count, gpu.memory_bytes) == (130, 80 * 2**30)
    assert gpu.link_bandwidth_bytes_per_s == known.link_bandwidth_bytes_per_s
    assert "all other values are from H100-SXM" in gpu.source


def test_blis_layout_of_several_gpus(tmp_path):
    entries = {
        "H100": {"TFlopsPeak": 989.5, "TFlopsFP8": 1979, "BwPeakTBs": 3.35, "MemoryGiB": 80},
        "L40S": {"TFlopsEff": 362.05, "TFlopsFP8": 1466, "BwEffTBs": 0.864, "memory_gb": 48},
    }
    path = write(tmp_path / "hardware.json", entries)
    assert load_gpu(f"{path}#H100").peak_flop_per_s["fp8"] == 1979e12
    with pytest.warns(
        UserWarning, match=r"the FP8 rate of GPU .*L40S is 4.0 times.*half of this rate is used"
    ):
        assert load_gpu(f"{path}#L40S").peak_flop_per_s["fp8"] == 733e12
    for choice in (str(path), f"{path}#B200"):
        with pytest.raises(PinnError, match=r"has H100, L40S.*give .*#NAME to choose"):
            load_gpu(choice)


def test_missing_fields_of_an_unknown_chip_are_conservative_and_stated(tmp_path):
    path = write(tmp_path / "x.json", {"X1": {"BwPeakTBs": 2.039, "TFlopsPeak": 312}})
    gpu = load_gpu(path)
    assert (gpu.sm_count, gpu.l2_bytes) == (108, pytest.approx(40 * 2**20))
    assert not gpu.has_nvlink
    assert "estimated: compute_capability" in gpu.source
    assert gpu.memory_bytes <= min(load_gpu(name).memory_bytes for name in ("A30", "A100"))
