"""``pinn kernels``: held-out errors measured, written and shown."""

import pandas as pd
import pytest

from pinn.kernels.heldout import TABLE_COLUMNS

ROWS = [
    ("shapes", "gemm", "H100-SXM", "fp8", 100, 0.021, 0.03, 0.06, 0.0),
    ("shapes", "gemm", "all", "all", 100, 0.022, 0.034, 0.06, 0.0),
    ("shapes", "moe", "all", "all", 50, 0.05, 0.08, 0.2, -0.01),
    ("L40S", "gemm", "L40S", "fp8", 9, 0.11, 0.12, 0.2, 0.1),
    ("L40S", "gemm", "all", "all", 9, 0.12, 0.13, 0.2, 0.1),
    ("L40S", "moe", "all", "all", 0, None, None, None, None),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "held_out.csv"
    pd.DataFrame(ROWS, columns=list(TABLE_COLUMNS)).to_csv(path, index=False)
    return path


def test_errors_are_shown_per_operator(run, table):
    result = run("kernels", "errors", table)
    assert result.exit_code == 0, result.output
    caption, blank, *lines = result.stdout.splitlines()
    assert (caption.startswith("Median / mean absolute percentage error"), blank) == (True, "")
    assert lines == [
        "| held out | gemm | moe |",
        "|---|---:|---:|",
        "| shapes | 2.2 / 3.4 | 5.0 / 8.0 |",
        "| L40S | 12.0 / 13.0 | - |",
    ]


def test_what_is_no_such_table_is_refused(refused, tmp_path):
    assert "run 'pinn kernels score" in refused("kernels", "errors", tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "not a table of kernel errors" in refused("kernels", "errors", tmp_path / "other.csv")


def test_scores_are_written_as_the_table_that_is_shown(run, tmp_path, monkeypatch):
    scored = pd.DataFrame(ROWS, columns=list(TABLE_COLUMNS))

    def held_out_table(_, *, progress):
        progress("without shapes: moe")
        return scored

    monkeypatch.setattr("pinn.kernels.heldout.held_out_table", held_out_table)
    path = tmp_path / "held_out.csv"
    result = run("kernels", "score", "--out", path)
    assert result.exit_code == 0, result.output
    assert "without shapes: moe" in result.stderr
    pd.testing.assert_frame_equal(pd.read_csv(path), scored)
