"""``pinn kernels``: held-out errors measured, written and shown."""

import json

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
    assert result.stdout.splitlines() == [
        "| left out | gemm | moe |",
        "|---|---:|---:|",
        "| shapes | 2.2 / 3.4 | 5.0 / 8.0 |",
        "| L40S | 12.0 / 13.0 | - |",
    ]


def test_errors_are_shown_per_chip_and_format(run, table):
    result = run("kernels", "errors", table, "--by-format")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[2:] == [
        "| shapes | H100-SXM | fp8 | 2.1 / 3.0 | - |",
        "| L40S | L40S | fp8 | 11.0 / 12.0 | - |",
    ]


def test_what_is_no_such_table_is_refused(refused, tmp_path):
    assert "run 'pinn kernels score" in refused("kernels", "errors", tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "no table of kernel errors" in refused("kernels", "errors", tmp_path / "other.csv")
    message = refused("kernels", "score", "--out", tmp_path / "x.csv", "--operator", "sort")
    assert "unknown operators ['sort']" in message


def test_scores_are_written_as_the_table_that_is_shown(run, tmp_path, monkeypatch):
    scored = pd.DataFrame(ROWS, columns=list(TABLE_COLUMNS))
    asked = []

    def held_out_table(_, gpus, *, operators, seed, progress):
        asked.append((gpus, [o.name for o in operators], seed))
        progress("without some shapes: moe")
        return scored

    monkeypatch.setattr("pinn.kernels.heldout.held_out_table", held_out_table)
    path = tmp_path / "held_out.csv"
    result = run("kernels", "score", "--out", path, "--operator", "moe", "--gpu", "L40S")
    assert result.exit_code == 0, result.output
    assert asked == [(["L40S"], ["moe"], 0)]
    assert "without some shapes: moe" in result.stderr
    pd.testing.assert_frame_equal(pd.read_csv(path), scored)


def test_surrogates_say_what_they_rest_on(run, kernels_folder, tmp_path):
    result = run("kernels", "show", kernels_folder)
    assert result.exit_code == 0, result.output
    assert "left out    nothing" in result.stdout
    assert result.stdout.rstrip().endswith(", as it is now")
    for name in ("kernels.json", "kernels.safetensors"):
        (tmp_path / name).write_bytes((kernels_folder / name).read_bytes())
    structure = json.loads((tmp_path / "kernels.json").read_text())
    since = "0" * 16 + ", as it was then; it has changed since"
    for code, shown in (("0" * 64, since), (None, "unknown")):
        metadata = structure["metadata"] | {"code": code}
        (tmp_path / "kernels.json").write_text(json.dumps(structure | {"metadata": metadata}))
        result = run("kernels", "show", tmp_path)
        assert result.stdout.rstrip().endswith(f"code        {shown}")
