"""Measured deployments of one's own: what a file must have, and what it may leave out."""

from pathlib import Path

import pandas as pd
import pytest

from pinn.errors import PinnError
from pinn.measurements.deployments.measured import measured_deployments
from pinn.measurements.deployments.observations import COLUMNS, read_observations
from pinn.measurements.deployments.own import OPTIONAL, REQUIRED, import_own, read_own

EXAMPLE = Path(__file__).with_name("own_deployments.csv")
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def changed(tmp_path, **columns):
    path = tmp_path / "own.csv"
    pd.read_csv(EXAMPLE, dtype="str").assign(**columns).to_csv(path, index=False)
    return path


def test_the_example_is_read_with_defaults_for_what_it_leaves_out():
    rows, report = read_own(EXAMPLE)
    assert (report.read, report.accepted) == (5, 5)
    assert list(rows.columns) == list(COLUMNS)
    assert rows["row_id"].is_unique
    assert set(rows["engine"]) == {"vllm"}
    assert set(rows["data_parallel_size"]) == {1}
    first, *_ = measured_deployments(rows)
    assert (first.ttft_s, first.tpot_s, first.concurrency) == (0.081, 0.0079, 4)
    assert first.served.serving.max_num_batched_tokens == 8192
    assert first.served.gpu.name == "H100-SXM"


def test_rows_go_to_a_table_of_observations(tmp_path):
    import_own(tmp_path / "own.parquet", EXAMPLE)
    pd.testing.assert_frame_equal(read_observations(tmp_path / "own.parquet"), read_own(EXAMPLE)[0])


@pytest.mark.parametrize("column", REQUIRED)
def test_a_file_without_a_column_is_refused(tmp_path, column):
    path = tmp_path / "own.csv"
    pd.read_csv(EXAMPLE).drop(columns=column).to_csv(path, index=False)
    with pytest.raises(PinnError, match=rf"lacks the column\(s\) {column}.*docs/training.md"):
        read_own(path)


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"tpot_ms": "7.9"}, "has the column"),
        ({"tpot_s": "-1"}, "tpot_s must be above 0 s"),
        ({"concurrency": "1.5"}, "concurrency must be a whole number"),
        ({"enable_expert_parallel": "maybe"}, "enable_expert_parallel"),
        ({"row_id": "same"}, "twice"),
        ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens"),
    ],
)
def test_values_that_a_column_forbids_are_refused(tmp_path, columns, fault):
    with pytest.raises(PinnError, match=fault):
        read_own(changed(tmp_path, **columns))


def test_the_page_names_every_column():
    page = PAGE.read_text()
    assert all(f"`{name}`" in page for name in (*REQUIRED, *OPTIONAL, "row_id"))
