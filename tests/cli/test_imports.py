"""Commands that only predict start fast: they leave out what they do not need."""

import pytest

from pinn.common.files import cache_folder

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
TRAINING = {"torch", "lightning", "pandas", "matplotlib"}


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path, monkeypatch):
    """But compiled code, which takes half a minute and is no result."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache_folder()))
    monkeypatch.setenv("PINN_CACHE", str(tmp_path / "cache"))


def test_coefficients_need_numpy_alone(imported, tmp_path):
    out = tmp_path / "llama.json"
    found = imported("coefficients", *LLAMA, "--json", out)
    assert out.is_file()
    assert not found & (TRAINING | {"numba", "scipy", "pyarrow"})


def test_a_simulation_with_a_network_needs_no_torch(imported, tmp_path):
    load = tmp_path / "load.yaml"
    load.write_text("{prompt_tokens: 100, output_tokens: 8, concurrency: 4, requests: 20}")
    out = tmp_path / "run.json"
    found = imported("simulate", *LLAMA, "--workload", load, "--json", out)
    assert out.is_file()
    assert not found & TRAINING


@pytest.mark.parametrize("intervals", ["--intervals", "--no-intervals"])
def test_tables_of_a_network_without_intervals_need_no_torch(imported, tmp_path, intervals):
    out = tmp_path / "table.json"
    found = imported(
        "export", "table", "--configs", "model=Llama-3.1-8B gpu=H100", "--out", out, intervals
    )
    assert out.is_file()
    assert "torch" not in found


def test_many_configurations_need_no_torch(imported, tmp_path):
    out = tmp_path / "grid.csv"
    grid = "model=Llama-3.1-8B gpu=H100,A100"
    assert "torch" not in imported("coefficients", "--grid", grid, "--out", out)
    assert out.is_file()
