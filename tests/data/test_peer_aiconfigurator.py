import numpy as np
import pandas as pd
import predict_aiconfigurator as peer
import pytest

from pinn.errors import PinnError
from pinn.training.data.engine_deployments import read_engines, read_other_campaign
from pinn.training.data.released import released_predictions
from pinn.training.data.silicon import read_silicon

installed = pytest.mark.skipif(
    not peer.is_installed(), reason="the extra 'peers' (aiconfigurator 0.12.0) is not installed"
)


@pytest.fixture(scope="module")
def rows():
    return read_silicon()[0]


@pytest.fixture(scope="module")
def everything():
    return released_predictions()


@pytest.fixture(scope="module")
def released(rows, everything):
    """Return the peer's predictions of the vLLM rows."""
    return everything[everything["row_id"].isin(rows["row_id"])]


def errors_percent(rows, released, name):
    both = rows.merge(released, on="row_id", suffixes=("", "_peer"))
    return (both[f"{name}_peer"] / both[name] - 1).abs().dropna() * 100


def test_every_row_has_a_prediction_or_a_reason(rows, released):
    assert list(released["row_id"]) == list(rows["row_id"])
    answered = released["recipe"] != ""
    assert answered.sum() == 835
    assert (released["reason"] == "").equals(answered)
    assert released["tpot_s"].notna().equals(answered)
    assert released["ttft_s"].notna().equals(answered)


def test_rows_of_other_engines_have_a_prediction_or_a_reason(rows, everything):
    others = pd.concat([read_engines()[0], read_other_campaign()[0]])
    assert list(everything["row_id"]) == [*rows["row_id"], *others["row_id"]]
    answered = everything["recipe"] != ""
    assert answered.sum() == 835 + 1190
    assert (everything["reason"] == "").equals(answered)


def test_attention_replicas_share_the_batch():
    rows = read_engines()[0]
    row = rows[rows["data_parallel_size"] == 8].iloc[0]
    asked = peer.request(row, "adapter")
    assert (asked["tp_size"], asked["attention_dp_size"], asked["moe_ep_size"]) == (1, 8, 8)
    assert asked["backend_name"] == "trtllm"
    assert asked["batch_size"] * 8 == row["concurrency"]


def test_released_figures(rows, released):
    """Absolute percentage errors: a slip in reading rows or units would be far off these."""
    tpot, ttft = (errors_percent(rows, released, name) for name in ("tpot_s", "ttft_s"))
    assert tpot.median() == pytest.approx(10.6, abs=0.1)
    assert tpot.mean() == pytest.approx(12.9, abs=0.1)
    assert ttft.median() == pytest.approx(29.7, abs=0.1)
    assert ttft.mean() == pytest.approx(35.6, abs=0.1)


@installed
def test_three_rows_recomputed(rows, released):
    """Regenerate with python scripts/predict_aiconfigurator.py data/peers."""
    chosen = [released.index[released["recipe"] == recipe][0] for recipe in peer.RECIPES]
    again = peer.predict(rows.loc[chosen])
    expected = released.loc[chosen]
    assert list(again["recipe"]) == list(peer.RECIPES)
    for name in ("ttft_s", "tpot_s"):
        np.testing.assert_allclose(again[name], expected[name], rtol=1e-5)


def test_without_the_package_the_error_names_it(rows, monkeypatch):
    monkeypatch.setattr(peer, "VERSION", "0")
    with pytest.raises(PinnError, match="pip install --pre aiconfigurator==0"):
        peer.predict(rows.iloc[:1])


def test_what_is_asked_for_expert_parallel_rows(rows):
    row = rows[rows["enable_expert_parallel"]].iloc[0]
    asked = peer.request(row, "adapter")
    assert asked["moe_tp_size"] == 1
    assert asked["moe_ep_size"] == asked["tp_size"] == row["tensor_parallel_size"]
    assert asked["batch_size"] == row["concurrency"]


def test_dense_models_have_no_expert_arguments(rows):
    llama = rows[rows["model"].str.contains("Llama")].iloc[0]
    asked = peer.request(llama, "adapter")
    assert not [name for name in asked if name.startswith("moe")]
    assert peer.request(llama, "checkpoint") is None


def test_unknown_model_or_recipe(rows):
    with pytest.raises(PinnError, match="AIConfigurator has no model 'a/b'"):
        peer.request(rows.iloc[0].replace(rows.iloc[0]["model"], "a/b"), "adapter")
    with pytest.raises(PinnError, match="the recipe 'guess' is unknown"):
        peer.request(rows.iloc[0], "guess")
