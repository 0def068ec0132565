"""``pinn breakdown``: table, JSON, CSV and plot."""

import json

import numpy as np
import pytest
from matplotlib.image import imread

from pinn.specs.batch import parse_batch
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import batch_seconds
from pinn.training.breakdown import PARTS
from pinn.training.breakdown_picture import PART_LOOKS

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
MIXED = "1 prefill 512 @ 0 + 16 decode @ 600"


@pytest.fixture
def no_kernels(monkeypatch):
    """As where nobody fitted any."""
    monkeypatch.setattr("pinn.api.breakdown.find_kernels", lambda *_: None)


def test_the_spelling_of_the_last_release_still_works(run, kernels_folder):
    options = (*LLAMA, "--batch", MIXED, "--kernels", kernels_folder)
    assert run("account", *options).stdout == run("breakdown", *options).stdout


def test_the_account_names_every_part_and_the_kernels_behind_it(run, kernels_folder):
    options = (*LLAMA, "--batch", MIXED, "--kernels", kernels_folder)
    result = run("breakdown", *options, "--explain")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    for text in (*PARTS, f"{MIXED}: time by part", "same shape", "x 1.00"):
        assert text in result.stdout
    assert "kernels of the composed step" in result.stdout
    assert "overheads: assumed" in result.stdout
    rests_on = "of the kernel time is within 1.1x of sizes measured on H100-SXM"
    for printed in (result.stdout, run("breakdown", *options).stdout):
        assert rests_on in " ".join(printed.split())


def test_the_account_of_two_steps_is_one_screen(run, kernels_folder):
    lines = run("breakdown", *LLAMA, "--kernels", kernels_folder).stdout.splitlines()
    assert len(lines) <= 25, "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line} >= {*PARTS, "step", "roofline"}


def test_parts_features_and_kernels_add_up_to_the_step(run, tmp_path, kernels_folder, measured):
    path = tmp_path / "a.json"
    batches = ["64 decode @ 2000", MIXED]
    result = run("breakdown", *LLAMA, "--batch", batches[0], "--batch", batches[1], "--kernels",
                 kernels_folder, "--json", path)  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    surrogate, (llama, *_) = measured
    times = 1e6 * batch_seconds(
        surrogate.coefficients([llama]).beta[0], llama, [parse_batch(b) for b in batches]
    )
    assert [step["network_us"] for step in report["steps"]] == pytest.approx(times)
    for step in report["steps"]:
        for which in ("network_us", "composed_us"):
            assert sum(part[which] for part in step["parts"]) == pytest.approx(step[which])
        of_features = sum(each["network_us"] for each in step["features"])
        assert of_features == pytest.approx(step["network_us"])
        assert [each["feature"] for each in step["features"]] == list(STEP_FEATURES)
        assert all(kernel["stretch"] >= 1 for kernel in step["kernels"])


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_it_says_what_is_missing(run, tmp_path):
    path = tmp_path / "a.json"
    result = run("breakdown", *LLAMA, "--json", path)
    assert result.exit_code == 0, result.output
    assert "--kernels" in result.stdout
    (decode, _) = json.loads(path.read_text())["steps"]
    assert decode["composed_us"] is None
    assert decode["kernels"] == []
    assert decode["network_us"] > decode["floor_us"]


def test_kernels_beside_the_checkpoint_are_found(run, tmp_path, kernels_folder, checkpoint_path):
    (tmp_path / "own.safetensors").write_bytes(checkpoint_path.read_bytes())
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "all").symlink_to(kernels_folder)
    result = run("breakdown", *LLAMA, "--checkpoint", tmp_path / "own.safetensors", "--explain")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "kernels" / "all") in result.stdout


def test_plots_are_pictures_with_and_without_kernels(run, tmp_path, monkeypatch, kernels_folder):
    with_kernels, alone = tmp_path / "a.png", tmp_path / "b.svg"
    result = run("breakdown", *LLAMA, "--kernels", kernels_folder, "--plot", with_kernels)
    assert result.exit_code == 0, result.output
    picture = imread(with_kernels)
    assert picture.shape[0] > 500
    assert picture.shape[1] > 1000
    # Readable in black and white: many shades of grey are left, and hatches beside them.
    shades, pixels = np.unique(picture[..., :3].mean(-1).round(2), return_counts=True)
    assert (pixels > 1000).sum() > 5, shades
    monkeypatch.setattr("pinn.api.breakdown.find_kernels", lambda *_: None)
    assert run("breakdown", *LLAMA, "--plot", alone).exit_code == 0
    assert "<svg" in alone.read_text()


def test_what_cannot_be_used_is_refused_in_one_line(refused, tmp_path):
    assert "ends in .png" in refused("breakdown", *LLAMA, "--plot", tmp_path / "a.txt")
    assert "no kernel surrogates at" in refused("breakdown", *LLAMA, "--kernels", tmp_path)
    assert "of the batch cannot be read" in refused("breakdown", *LLAMA, "--batch", "many")


def test_no_two_parts_of_a_step_look_alike():
    looks = list(PART_LOOKS.values())
    assert len(set(looks)) == len(looks) == len(PARTS)
