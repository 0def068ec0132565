"""Example of docs/training.md: a released checkpoint, fine-tuned on a user's own rows."""

import shutil
from pathlib import Path

import numpy as np
from pages import ROOT, blocks

from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.network import CoefficientNetwork
from pinn.training.serving_fit import predict


def median_ape(weights, rows):
    found = predict(CoefficientNetwork.from_weights(weights), rows)
    return np.median(np.abs(found.tpot_s / rows.tpot_s - 1))


def test_the_example_of_the_page_brings_the_network_closer_to_the_rows(tmp_path, monkeypatch):
    (example,) = (b for b in blocks(ROOT / "docs" / "training.md") if b.language == "python")
    shutil.copytree(ROOT / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(ROOT / "tests" / "data" / "own_deployments.csv", tmp_path / "own.csv")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example.text, "docs/training.md", "exec"), names)
    before, after = names["checkpoint"], load_checkpoint(Path("tuned.safetensors"))
    rows = names["rows"]
    assert median_ape(after.network, rows) < 0.7 * median_ape(before.network, rows)
    assert after.metadata["fine_tuned_on"]["accepted"] == len(rows)
    assert after.network.settings == before.network.settings
