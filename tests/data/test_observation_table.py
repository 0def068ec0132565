import json

import pandas as pd
import pytest
from observation_row import observation_row

from pinn.common.files import ReadReport
from pinn.errors import PinnError
from pinn.measurements.deployments import observations as table
from pinn.training.data.engine_deployments import import_silicon

ROW = observation_row(date="2026-01-01", series="s")


def rows(*changes):
    return pd.DataFrame([ROW | {"row_id": f"r{i}"} | c for i, c in enumerate(changes)])


def report(accepted):
    return ReadReport("file.csv", "1.0", "ff", accepted + 1, accepted, {"a filter": 1})


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "new" / "observations.parquet"
    table.write_observations(rows({}, {}, {}), path, report(3))
    return path


def test_round_trip(written):
    again = table.read_observations(written)
    pd.testing.assert_frame_equal(again, table.validate(rows({}, {}, {})))
    manifest = table.read_manifest(written)
    assert manifest.rows == 3
    assert manifest.report == report(3)


def test_only_the_two_files_are_left(written):
    names = sorted(path.name for path in written.parent.iterdir())
    assert names == ["observations.manifest.json", "observations.parquet"]


def test_a_failed_write_leaves_the_old_file(written):
    before = written.read_bytes()

    def fail(target):
        target.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        table.replace_atomically(written, fail)
    assert written.read_bytes() == before
    test_only_the_two_files_are_left(written)


def test_a_changed_table_is_refused(written):
    table.validate(rows({}, {}, {"tpot_s": 0.02})).to_parquet(written, index=False)
    with pytest.raises(PinnError, match="was changed or cut off"):
        table.read_observations(written)


def test_a_truncated_table_is_refused(written):
    written.write_bytes(written.read_bytes()[:-100])
    with pytest.raises(PinnError, match="changed or cut off"):
        table.read_observations(written)


def test_a_truncated_table_with_its_own_digest_is_refused(written):
    written.write_bytes(written.read_bytes()[:-100])
    path = table.manifest_path(written)
    values = json.loads(path.read_text()) | {"table_sha256": table.file_sha256(written)}
    path.write_text(json.dumps(values))
    with pytest.raises(PinnError, match="not a readable Parquet file"):
        table.read_observations(written)


def test_missing_files_are_named(written):
    table.manifest_path(written).rename(written.parent / "away")
    with pytest.raises(PinnError, match=r"manifest.json does not exist"):
        table.read_observations(written)
    (written.parent / "away").rename(table.manifest_path(written))
    written.unlink()
    with pytest.raises(PinnError, match=r"the table of observations .* does not exist"):
        table.read_observations(written)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"report": {}}', '{"report": {"read": 1}}'])
def test_other_json_is_no_manifest(written, text):
    table.manifest_path(written).write_text(text)
    with pytest.raises(PinnError, match="not a"):
        table.read_manifest(written)


def test_another_schema_is_refused(written):
    path = table.manifest_path(written)
    path.write_text(path.read_text().replace(table.SCHEMA, "observations of another day"))
    with pytest.raises(PinnError, match="this version reads"):
        table.read_observations(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tpot_s": -0.01}, "tpot_s must be above 0 s, got -0.01"),
        ({"ttft_s": 0.0}, "ttft_s must be above 0 s"),
        ({"ttft_s": float("inf")}, "ttft_s must be above 0 s"),
        ({"ttft_s": None}, "ttft_s is missing in 1 row"),
        ({"ttft_s": "fast"}, "ttft_s must be above 0 s, got fast"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        (
            {"max_num_batched_tokens": "0"},
            "--max-num-batched-tokens must be a positive whole number",
        ),
        ({"max_num_seqs": "many"}, "max_num_seqs must be a whole number, got 'many'"),
        ({"prompt_tokens": 10.5}, "prompt_tokens must be a whole number"),
        ({"enable_expert_parallel": 3}, "enable_expert_parallel must be true or false"),
        ({"model": None}, "model is missing"),
        ({"row_id": "r0"}, r"have 1 row\(s\) twice, of which the first is 'r0'"),
    ],
)
def test_bad_values_are_refused(change, message):
    with pytest.raises(PinnError, match=message):
        table.validate(rows({}, change))


def test_missing_column_and_empty_table_are_refused():
    with pytest.raises(PinnError, match=r"lack the column\(s\) gpu, ttft_s"):
        table.validate(rows({}).drop(columns=["gpu", "ttft_s"]))
    with pytest.raises(PinnError, match="empty"):
        table.validate(rows({}).iloc[:0])


def test_the_report_must_count_these_rows(tmp_path):
    with pytest.raises(PinnError, match="the table has 1 rows, but its read report accepts 2"):
        table.write_observations(rows({}), tmp_path / "a.parquet", report(2))


def test_a_foreign_file_is_refused_and_nothing_written(tmp_path):
    (tmp_path / "silicon.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PinnError, match=str(tmp_path / "silicon.csv")):
        import_silicon(tmp_path / "o.parquet", tmp_path / "silicon.csv")
    assert not (tmp_path / "o.parquet").exists()


def test_import_of_the_measured_deployments(tmp_path):
    path = tmp_path / "silicon.parquet"
    counts = import_silicon(path)
    assert counts.accepted == 838
    assert "838  accepted" in counts.table()
    assert len(table.read_observations(path)) == counts.accepted
    assert table.read_manifest(path).report == counts
