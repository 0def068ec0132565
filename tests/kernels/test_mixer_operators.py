"""Roofline fits of recurrent and sparse mixers: laws, and errors on held-out shapes."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.kernels.exclusion import Exclusion
from pinn.kernels.heldout import error_grid, mixer_errors
from pinn.kernels.mixer_operators import (
    RECURRENT,
    RECURRENT_SIZES,
    SPARSE,
    MixerFits,
    mixer_shapes,
    operator_terms,
    read_all_mixers,
    read_mixer_kernels,
    timed_operators,
)
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu

H100 = {"h100_sxm": load_gpu("h100_sxm")}
BY_NAME = {gpu.name: gpu for gpu in H100.values()}
ALL_SIZES = {"batch_size", "isl", "step", "index_heads", "heads", "top_k", "hidden_size"}
SIZES = {
    "batch_size": 4, "seq_len": 300, "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32,
    "head_v_dim": 128, "chunk_size": 64, "state": 4, "isl": 100, "step": 3000,
    "heads": 16, "hidden_size": 4096,
}  # fmt: skip


def products(gpu, _form, rows, columns, depth):
    """Return the seconds of fp8 multiplications at the datasheet's rate."""
    read_s = columns * depth / gpu.memory_bandwidth_bytes_per_s
    return np.maximum(read_s, 2 * rows * columns * depth / gpu.peak_flop_per_s["fp8"])


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(timed_operators())),
    st.sampled_from(["batch_size", "seq_len", "step"]),
    st.integers(1, 64),
)
def test_no_term_falls_with_requests_tokens_or_context(name, grown, by):
    larger = SIZES | {grown: SIZES[grown] + by}
    rows = pd.DataFrame([SIZES, larger]).assign(gpu="H100-SXM")
    before, after = operator_terms(timed_operators()[name], rows, BY_NAME)
    assert (after >= before * (1 - 1e-12)).all()
    assert (before >= 0).all()


def test_a_recurrence_knows_no_context():
    longer = SIZES | {"seq_len": 100_000, "step": 100_000}
    rows = pd.DataFrame([SIZES, longer]).assign(gpu="H100-SXM")
    before, after = operator_terms(timed_operators()["gated delta decode"], rows, BY_NAME)
    assert np.array_equal(before, after)


@pytest.mark.parametrize(
    "name", ["gated delta decode", "KDA decode", "Mamba-2 scan", "Mamba-2 update"]
)
def test_left_out_shapes_are_near(name):
    table = mixer_errors([name], H100)
    assert table.loc[table["left_out"] == "shapes", "median"].item() < 0.08
    assert "without shapes" in error_grid(table).markdown()


def test_a_fit_holds_on_its_chip_and_elsewhere_and_says_where_there_is_none():
    """A GPU without a table runs like the pool of all others, at its datasheet's rates."""
    tables, _ = read_all_mixers(H100)
    fits = MixerFits.fit(tables, BY_NAME, products)
    sizes = {name: np.array([0.0, 4.0, 8.0]) for name in ("batch_size", "seq_len")}
    sizes |= {name: np.full(3, float(SIZES[name])) for name in RECURRENT_SIZES[2:]}
    for operator in ("gated delta scan", "KDA decode", "Mamba-2 update"):
        here, there = (
            fits.seconds(operator, load_gpu(gpu), sizes) for gpu in ("h100_sxm", "a100_sxm")
        )
        assert here[0] == there[0] == 0
        assert (np.diff(here) > 0).all()
        assert (there[1:] > 0).all()
    assert fits.seconds("lightning", load_gpu("h100_sxm"), sizes) is None
    assert set(mixer_shapes(tables)) == {RECURRENT, SPARSE}


@pytest.mark.parametrize(
    ("name", "most"),
    [("CSA decode", 0.05), ("HCA decode", 0.05), ("HCA prompt", 0.15), ("streams after", 0.1)],
)
def test_what_a_module_holds_beside_is_not_fitted_and_makes_it_whole(name, most):
    """Projections of DeepSeek-V4 and the bytes of its streams are counted elsewhere in a step."""
    operator = timed_operators()[name]
    rows, _ = read_mixer_kernels(operator, H100)
    beside = operator.included(rows, BY_NAME["H100-SXM"], products)
    fits = MixerFits.fit({name: rows}, BY_NAME, products)
    sizes = {column: rows[column].to_numpy(float) for column in rows if column in ALL_SIZES}
    found = fits.seconds(name, BY_NAME["H100-SXM"], sizes)
    assert (beside > 0).all()
    assert np.median(np.abs((found + beside) / rows["seconds"] - 1)) < most


def test_a_held_out_model_takes_its_own_kernels_away():
    tables, _ = read_all_mixers(H100)
    scans, scores = tables["gated delta scan"], tables["indexer scores"]
    hybrid = Exclusion(models=(load_model("Qwen/Qwen3-Next-80B-A3B-Instruct"),))
    gone = scans[hybrid.mixer_rows(scans)]
    assert set(gone["num_v_heads"]) <= {32, 16, 8, 4}
    assert 0 < len(gone) < len(scans)
    assert not hybrid.mixer_rows(scores).any()
    sparse = Exclusion(models=(load_model("zai-org/GLM-5"),))
    assert sparse.mixer_rows(scores).all()
    assert not sparse.mixer_rows(scans).any()


def test_measured_states_are_read_and_written_in_fp32():
    """At 512 requests the kernel takes 1.0 to 1.3 times as long as moving the bytes."""
    rows, reports = read_mixer_kernels(timed_operators()["gated delta decode"], H100)
    large = rows[(rows["batch_size"] == 512) & (rows["num_v_heads"] == 64)]
    floor = 512 * 64 * 128 * 128 * 8 / 3.35e12
    assert len(large)
    assert large["seconds"].between(floor, 1.3 * floor).all()
    assert all(r.accepted + sum(r.refused.values()) == r.read for r in reports)
