"""Engines and releases that were measured."""

import io

import pandas as pd
import pytest
from count_measured import measured_releases
from observation_row import observation_row
from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.engines.recipe import ALL, releases_text
from pinn.training.data.engine_deployments import read_every_engine
from pinn.training.data.released import released_measurements


@pytest.fixture(scope="module")
def table():
    return measured_releases(read_every_engine()[0])


def test_the_committed_table_is_that_of_the_readers(table):
    text = table.to_csv(index=False)
    again = pd.read_csv(io.StringIO(text), dtype={"release": str}, keep_default_na=False)
    pd.testing.assert_frame_equal(released_measurements(), again)


def test_releases_add_up_to_their_engine(table):
    of_engine = table[table["release"] == ALL].set_index("engine")["rows"]
    by_release = table[table["release"] != ALL].groupby("engine")["rows"].sum()
    assert of_engine.to_dict() == by_release.to_dict()
    assert of_engine.to_dict() == {"sglang": 100, "trtllm": 498, "vllm": 838}


def test_configurations_and_points_of_made_up_rows():
    rows = [
        observation_row(date="2026-01-02"),
        observation_row(row_id="b", date="2026-01-01"),
        observation_row(row_id="c", concurrency=16, date="2026-01-03"),
        observation_row(row_id="d", tensor_parallel_size=4, engine_version="0.16.0", date=""),
    ]
    found = measured_releases(pd.DataFrame(rows)).set_index("release")
    assert list(found.index) == [ALL, "0.15.1", "0.16.0"]
    assert found["rows"].tolist() == [4, 3, 1]
    assert found["configurations"].tolist() == [2, 1, 1]
    assert found["points"].tolist() == [3, 2, 1]
    assert found.loc["0.15.1", ["since", "until"]].tolist() == ["2026-01-01", "2026-01-03"]


def test_releases_in_words():
    assert releases_text("vllm") == "0.10.2, 0.15.1 to 0.19.0"
    assert releases_text("none such") == ""


def test_the_command_prints_the_table():
    result = CliRunner().invoke(app, ["results", "--measured"])
    assert result.exit_code == 0
    # Long cells go on in lines that begin with a space.
    rows = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert len(rows) == 1 + len(released_measurements())
