"""Picks by predictions, priced by measurements."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.evaluation.decisions import SLACK, decide, decision_table
from pinn.training.data.silicon import read_silicon

#: Path of an independent script: main(predictions.csv, silicon.parquet) prints a table by method.
TOOL = os.environ.get("PINN_DECISION_LOSS_TOOL")
PREDICTIONS = Path(__file__).parents[2] / "checkpoints" / "pinn.predictions.csv"


@pytest.fixture(scope="module")
def observations():
    return read_silicon()[0]


@pytest.fixture(scope="module")
def predictions():
    """Return predictions of held-out models by three methods."""
    rows = pd.read_csv(PREDICTIONS)
    methods = ["network", "aiconfigurator", "roofline"]
    return rows[(rows["split"] == "leave-one-model-out") & rows["method"].isin(methods)]


@pytest.fixture(scope="module")
def overall(predictions, observations):
    """Return decisions of all models together, by method."""
    table = decision_table(decide(predictions, observations))
    return table[table["held_out"] == "all"].set_index("method")


def _offer(tpot_s, measured_s, clients=(8, 16, 32)):
    """Return deployments of one model, on 1, 2 and 2 GPUs, whose TTFT is negligible."""
    count = len(tpot_s)
    observations = pd.DataFrame(
        {
            "row_id": [f"row {i}" for i in range(count)],
            "model": "a model",
            "gpu": "a GPU",
            "prompt_tokens": 1024,
            "output_tokens": 1024,
            "concurrency": clients,
            "tensor_parallel_size": [1, 2, 2],
        }
    )
    predictions = pd.DataFrame(
        {
            "split": "leave-one-model-out",
            "held_out": "a model",
            "row_id": observations["row_id"],
            "method": "a method",
            "tpot_s": tpot_s,
            "ttft_s": 1e-9,
            "tpot_measured_s": measured_s,
            "ttft_measured_s": 1e-9,
        }
    )
    return predictions, observations


def test_a_perfect_method_loses_nothing():
    decided = decide(*_offer([0.008, 0.009, 0.014], [0.008, 0.009, 0.014]))
    # At least three meet the limit only from 15 ms on: 8 / 8 ms, 16 / 9 ms / 2, 32 / 14 ms / 2.
    assert decided["limit_s"].tolist() == [0.015, 0.02, 0.03, 0.05]
    assert (decided["picked"] == "row 2").all()
    assert (decided["loss"] == 0).all()
    assert not decided["missed"].any()


def test_a_pick_is_priced_by_its_measurement():
    # The third is predicted beyond 15 ms: the first is picked, 1000 tokens/s instead of 1143.
    decided = decide(*_offer([0.008, 0.009, 0.016], [0.008, 0.009, 0.014]))
    first = decided.iloc[0]
    assert first["picked"] == "row 0"
    assert first["loss"] == pytest.approx(1 - (8 / 0.008) / (32 / 0.014 / 2), rel=1e-6)


@pytest.mark.parametrize(("beyond", "missed"), [(0.99 * SLACK, False), (1.01 * SLACK, True)])
def test_a_missed_limit_loses_everything_beyond_the_slack(beyond, missed):
    offer, observations = _offer([0.012, 0.013, 0.0149, 0.0149][:3], [0.01, 0.01, 0.01])
    offer.loc[2, "tpot_measured_s"] = 0.02 * (1 + beyond)
    offer = pd.concat([offer, offer.iloc[[0]].assign(row_id="row 3")], ignore_index=True)
    observations = pd.concat([observations, observations.iloc[[0]].assign(row_id="row 3")])
    decided = decide(offer, observations).set_index("limit_s").loc[0.02]
    assert decided["picked"] == "row 2"
    assert decided["missed"] == missed
    assert (decided["loss"] == 1) == missed


def test_no_pick_loses_everything_and_misses_nothing():
    decided = decide(*_offer([np.nan, 0.06, 0.07], [0.008, 0.009, 0.014]))
    assert decided["picked"].isna().all()
    assert (decided["loss"] == 1).all()
    assert not decided["missed"].any()


def test_splits_that_leave_no_part_out_are_passed_over():
    predictions, observations = _offer([0.008, 0.009, 0.014], [0.008, 0.009, 0.014])
    assert decide(predictions.assign(split="leave-one-tp-out"), observations).empty


def test_every_model_is_in_the_table(predictions, observations, overall):
    table = decision_table(decide(predictions, observations))
    parts = table[table["held_out"] != "all"]
    assert set(parts["held_out"]) == set(predictions["held_out"])
    for method, of_method in parts.groupby("method"):
        assert of_method["decisions"].sum() == overall.loc[method, "decisions"]
        mean = np.average(of_method["loss"], weights=of_method["decisions"])
        assert mean == pytest.approx(overall.loc[method, "loss"])


def test_the_left_out_network_loses_far_less_than_the_peer(overall):
    assert overall.loc["network", "loss"] <= 0.5 * overall.loc["aiconfigurator", "loss"]


@pytest.mark.skipif(TOOL is None, reason="PINN_DECISION_LOSS_TOOL names no script to compare with")
def test_an_independent_script_says_the_same(predictions, observations, overall, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("decision_loss", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    predictions.to_csv(tmp_path / "predictions.csv", index=False)
    observations.to_parquet(tmp_path / "silicon.parquet")
    tool.main(tmp_path / "predictions.csv", tmp_path / "silicon.parquet")
    lines = [line.rsplit(maxsplit=3) for line in capsys.readouterr().out.splitlines()[2:]]
    said = {method.strip(): [float(x) for x in numbers] for method, *numbers in lines}
    assert set(said) == set(overall.index)
    for method, row in overall.iterrows():
        ours = [row["decisions"], round(row["loss"], 1), round(row["missed"], 1)]
        assert said[method] == ours
