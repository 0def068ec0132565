"""Files of every layout that was ever released load, or are refused with what to do about it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pinn.engines.configurations import make_deployment
from pinn.errors import PinnError
from pinn.kernels import stored
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.coefficient_set import read_coefficient_set
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.intervals import SCHEMA, calibration_path, read_calibration

RELEASED = Path(__file__).parent / "released"


def files(kind: str) -> list[Path]:
    found = sorted((RELEASED / kind).iterdir())
    assert found, f"no released {kind}"
    return found


def numbers_of(kind: str, path: Path, folder: Path) -> np.ndarray:
    """Return the predictions or contents of a kind's file."""
    if kind == "checkpoints":
        load_checkpoint(path)
        deployment = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
        return Surrogate.load(path).coefficients([deployment]).beta
    if kind == "coefficients":
        found = read_coefficient_set(path)
        return np.concatenate([found.coefficients.beta[0], found.coefficients.alpha[0]])
    if kind == "kernels":
        shutil.copy(path, folder / stored.STRUCTURE)
        (folder / stored.TENSORS).write_bytes(b"of another time")
        return np.array([len(stored.read(folder)[0])], float)
    checkpoint = folder / "pinn.safetensors"
    checkpoint.write_bytes(b"of another time")
    shutil.copy(path, calibration_path(checkpoint))
    return np.array([read_calibration(checkpoint).level])


#: What each kind of file says to do where it is refused.
REMEDIES = {
    "checkpoints": r"(has the checkpoint format \d, but this version of pinn reads \d: use .*, or "
    r"train a new checkpoint|"
    r"from this version \(in .*\): train a new checkpoint) with 'python train\.py'",
    "coefficients": r"differ from this version's features \(.*\): write the file again "
    r"with 'pinn coefficients --json' or 'pinn calibrate'",
    "kernels": r"has the layout \d, expected \d: refit .* with "
    r"'python scripts/fit_surrogates\.py'"
    r"|copy both files again",
    "intervals": r"fit the (checkpoint's intervals again|intervals of )",
}


@pytest.mark.parametrize("kind", REMEDIES)
def test_released_files_load_or_say_what_to_do(kind: str, tmp_path: Path) -> None:
    for path in files(kind):
        folder = tmp_path / path.stem
        folder.mkdir()
        said, numbers = "", np.ones(1)
        try:
            numbers = numbers_of(kind, path, folder)
        except PinnError as error:
            said = str(error)
        assert not said or re.search(REMEDIES[kind], said), f"{path.name}: {said}"
        assert np.isfinite(numbers).all(), path.name
        assert (numbers >= 0).all(), path.name
        assert numbers.any(), path.name


@pytest.mark.parametrize("kind", ["checkpoints", "coefficients"])
def test_the_oldest_layouts_are_refused(kind: str, tmp_path: Path) -> None:
    """Their features are not those of today: what would be predicted would be something else."""
    with pytest.raises(PinnError, match=REMEDIES[kind]):
        numbers_of(kind, files(kind)[0], tmp_path)


def test_intervals_of_other_layouts_are_refused(tmp_path: Path) -> None:
    schemas = {path: json.loads(path.read_text())["schema"] for path in files("intervals")}
    before = [path for path, schema in schemas.items() if schema != SCHEMA]
    assert {schemas[path] for path in before} >= {f"pinn intervals {i}" for i in (1, 2, 3)}
    for path in before:
        with pytest.raises(
            PinnError,
            match="has the format of another version: fit the checkpoint's intervals again",
        ):
            numbers_of("intervals", path, tmp_path)


def test_files_are_read_without_coefficients_that_are_0(tmp_path: Path) -> None:
    tree = json.loads((RELEASED / "coefficients" / "2026-11-24-6a0a36f.json").read_text())
    tree["beta"]["launched_layer"] = tree["beta"].pop("eager_layer")
    path = tmp_path / "coefficients.json"
    path.write_text(json.dumps(tree))
    values = {name: entry["value"] for name, entry in tree["alpha"].items()}
    found = dict(zip(REQUEST_FEATURES, read_coefficient_set(path).alpha.tolist(), strict=True))
    assert found == {name: value for name, value in values.items() if value}
    tree["alpha"]["queue_to_schedule.kv_usage"]["value"] = 1e-3
    path.write_text(json.dumps(tree))
    with pytest.raises(PinnError, match=r"\(queue_to_schedule\.kv_usage\): write the file"):
        read_coefficient_set(path)
