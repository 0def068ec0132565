"""A checkpoint is published with its own tables and intervals, and with no others."""

import pandas as pd
import pytest

from pinn.common.files import file_sha256
from pinn.evaluation.folds import CHECKPOINT_COLUMN, TABLES, publish


@pytest.fixture
def trained(tmp_path):
    """Return a checkpoint with its tables and its intervals."""
    folder = tmp_path / "results"
    folder.mkdir()
    table = pd.DataFrame({"stage": ["0", "all"], "error": [0.25, 1.5]})
    for name in TABLES:
        table.to_csv(folder / name, index=False)
    (folder / "checkpoint.safetensors").write_bytes(b"a network")
    (folder / "checkpoint.intervals.json").write_text("{}")
    return folder / "checkpoint.safetensors"


def test_every_table_carries_the_checkpoints_hash(trained, tmp_path):
    target = publish(trained, tmp_path / "kept")
    assert target.read_bytes() == b"a network"
    assert target.with_suffix(".intervals.json").read_text() == "{}"
    for name in TABLES:
        before = pd.read_csv(trained.with_name(name), dtype={"stage": str})
        kept = pd.read_csv(target.with_suffix(f".{name}"), dtype={"stage": str})
        assert set(kept[CHECKPOINT_COLUMN]) == {file_sha256(target)}
        pd.testing.assert_frame_equal(kept.drop(columns=CHECKPOINT_COLUMN), before)


def test_tables_of_the_checkpoint_before_do_not_stay(trained, tmp_path):
    publish(trained, tmp_path / "kept")
    trained.with_name("serving_runs.csv").unlink()
    trained.write_bytes(b"another network")
    target = publish(trained, tmp_path / "kept")
    assert not target.with_suffix(".serving_runs.csv").exists()
    kept = pd.read_csv(target.with_suffix(".results.csv"))
    assert set(kept[CHECKPOINT_COLUMN]) == {file_sha256(target)}


def test_publishing_again_changes_nothing(trained, tmp_path):
    for _ in range(2):
        publish(trained, tmp_path / "kept")
        found = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
        assert len(found) == len(TABLES) + 2
    assert found["pinn.safetensors"] == b"a network"
