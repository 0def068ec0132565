"""No row of a held-out model or GPU, or of its near copies, is trained on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pinn.kernels.exclusion import Exclusion, attention_shapes, gemm_shapes
from pinn.specs.catalog import load_model

LLAMA = "meta-llama/Llama-3.1-70B"


def moe_rows(*shapes):
    rows = pd.DataFrame(shapes, columns=["hidden", "width", "experts", "top_k"])
    return rows.assign(gpu="H100-SXM")


def test_a_model_s_own_multiplications_at_every_tensor_parallel_size():
    shapes = gemm_shapes(load_model(LLAMA))
    assert {(10240, 8192), (5120, 8192), (1280, 8192)} <= shapes  # qkv at TP 1, 2, 8
    assert {(8192, 28672), (8192, 3584)} <= shapes  # down at TP 1, 8
    assert {(128256, 8192), (16032, 8192)} <= shapes  # head at TP 1, 8


def test_gemm_rows_within_three_percent_of_both_widths():
    rows = pd.DataFrame(
        {"gpu": "H100-SXM", "n": [10240, 10500, 10600, 10240], "k": [8192, 8000, 8192, 7168]}
    )
    excluded = Exclusion(models=(load_model(LLAMA),)).gemm_rows(rows)
    assert excluded.tolist() == [True, True, False, False]


def test_attention_rows_of_the_local_heads():
    assert (8, 1, 128, 0) in attention_shapes(load_model(LLAMA))
    rows = pd.DataFrame(
        [(8, 1, 128, 0), (8, 1, 128, 128), (8, 2, 128, 0), (64, 8, 64, 0)],
        columns=["heads", "kv_heads", "head_dim", "window"],
    ).assign(gpu="H100-SXM")
    excluded = Exclusion(models=(load_model(LLAMA),)).attention_rows(rows)
    assert excluded.tolist() == [True, False, False, False]


def test_experts_and_near_copies():
    rows = moe_rows(
        (4096, 1536, 128, 8),  # Qwen3-235B itself
        (4000, 1500, 130, 6),  # all sizes within 5 %
        (4096, 1200, 128, 8),  # same experts and top-k, close widths
        (2048, 768, 128, 8),  # same experts and top-k, other widths
        (4096, 1536, 256, 8),  # twice the experts
    )
    excluded = Exclusion(models=(load_model("Qwen/Qwen3-235B-A22B"),)).moe_rows(rows)
    assert excluded.tolist() == [True, True, True, False, False]


def test_every_mla_row_goes_with_a_model_of_that_latent_shape():
    rows = pd.DataFrame({"gpu": ["H100-SXM", "B200-SXM"]})
    assert Exclusion(models=(load_model("moonshotai/Kimi-K2.5"),)).latent_rows(rows).all()
    assert not Exclusion(models=(load_model(LLAMA),)).latent_rows(rows).any()


@pytest.mark.parametrize("name", [LLAMA, "openai/gpt-oss-120b", "MiniMaxAI/MiniMax-M2.5"])
def test_no_excluded_row_is_left(tables, name):
    model = load_model(name)
    exclude = Exclusion(models=(model,), gpus=("A100-SXM-80GB",))
    kept = exclude.apply(tables)
    shapes = gemm_shapes(model)
    for n, k in kept.gemm[["n", "k"]].drop_duplicates().to_numpy():
        assert all(abs(n / w - 1) > 0.03 or abs(k / d - 1) > 0.03 for w, d in shapes)
    columns = ["heads", "kv_heads", "head_dim", "window"]
    for rows in (kept.decode_attention, kept.prefill_attention):
        assert not set(map(tuple, rows[columns].to_numpy())) & attention_shapes(model)
    if model.moe is not None:
        for rows in (kept.moe, kept.other_experts):
            same = (rows["hidden"] == model.hidden_size) & (rows["width"] == model.moe.width)
            assert not (same & (rows["experts"] == model.moe.experts)).any()
    for rows in (
        kept.gemm, kept.decode_attention, kept.moe, kept.other_experts, kept.all_reduce
    ):  # fmt: skip
        assert len(rows) > 0
        assert (rows["gpu"] != "A100-SXM-80GB").all()


def test_fitting_sees_only_rows_that_are_kept(tables, monkeypatch):
    """The rows that reach the training of each operator are exactly those that are kept."""
    from pinn.kernels import surrogates
    from pinn.kernels.surrogate import OperatorSurrogate

    exclude = Exclusion(models=(load_model("openai/gpt-oss-120b"),), gpus=("A100-SXM-80GB",))
    kept, seen = exclude.apply(tables), {}

    class StopError(Exception):
        pass

    def record(operator, rows, *_, **__):
        seen[operator.name] = rows
        if operator.name == "moe":
            raise StopError
        return OperatorSurrogate.__new__(OperatorSurrogate)

    monkeypatch.setattr(surrogates.OperatorSurrogate, "fit", record)
    with pytest.raises(StopError):
        surrogates.KernelSurrogates.fit(tables, exclude=exclude)
    for name, rows in seen.items():
        pd.testing.assert_frame_equal(rows, getattr(kept, name))
    assert len(seen["gemm"]) < len(tables.gemm)


def test_nothing_excluded_keeps_everything(tables):
    kept = Exclusion().apply(tables)
    assert len(kept.gemm) == len(tables.gemm)
    assert np.array_equal(kept.moe["seconds"], tables.moe["seconds"])
