"""Kernel surrogates as a whole: files, nearest measured kernel, held-out tables, accuracy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from quick_plans import QUICK

from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.gemm_attention_moe import Gemm, Moe
from pinn.kernels.hardware import is_known
from pinn.kernels.heldout import (
    FOLDS,
    TABLE_COLUMNS,
    fold_of_rows,
    held_out_table,
)
from pinn.kernels.latent import LatentCore, LatentPrefill
from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.tables.attention import LATENT_DECODE_LAYOUT
from pinn.kernels.tables.table import sources
from pinn.specs.gpu import load_gpu

H100 = load_gpu("H100")


def sample(kernels: KernelSurrogates) -> list[np.ndarray]:
    sizes = np.array([1.0, 17, 300, 5000])
    return [
        kernels.gemm.seconds(H100, "fp8", sizes, 8192, 4096),
        kernels.decode_attention.seconds(H100, "fp8", 16, sizes, 8, 1, 128, 128),
        kernels.prefill_attention.seconds(H100, "bf16", 2, sizes, 8, 1, 128, 0),
        kernels.moe.seconds(H100, "int4_wo", sizes, 7168, 2048, 384, 8, 8, 1, 3),
        kernels.all_reduce.seconds(H100, [[2], [3], [8]], sizes * 1e4),
        kernels.all_reduce.seconds(load_gpu("H200"), 8, sizes * 1e4),
        kernels.fused_all_reduce.seconds(H100, [[2], [3], [8]], sizes * 1e3),
        kernels.exchange.seconds(H100, [[2], [3], [8]], sizes * 1e4),
        kernels.latent_decode_attention_seconds(H100, "bf16", 4, sizes, 16, 512, 64),
        kernels.latent_prefill_attention_seconds(H100, 1, sizes, 0, 16, 192, 128),
    ]


def test_saved_and_loaded_surrogates_are_the_same(kernels, tmp_path):
    replace(kernels, metadata={**kernels.metadata, "note": "x"}).save(tmp_path)
    loaded = KernelSurrogates.load(tmp_path)
    for before, after in zip(sample(kernels), sample(loaded), strict=True):
        np.testing.assert_array_equal(before, after)
    assert loaded.metadata["note"] == "x"
    assert loaded.metadata["rows"] == kernels.metadata["rows"]
    sizes = {"m": 10, "n": 1000, "k": 4096}
    near = [k.measured["gemm"].nearest("H100-SXM", "fp8", sizes) for k in (kernels, loaded)]
    assert near[0] == near[1]


def test_files_that_do_not_belong_together_are_refused(kernels, tmp_path):
    kernels.save(tmp_path)
    with pytest.raises(PinnError, match=r"kernel surrogates .*kernels\.json does not exist: fit"):
        KernelSurrogates.load(tmp_path / "nowhere")
    file = tmp_path / "kernels.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(PinnError, match="differs from the hash"):
        KernelSurrogates.load(tmp_path)
    structure = json.loads((tmp_path / "kernels.json").read_text())
    (tmp_path / "kernels.json").write_text(json.dumps({**structure, "layout": 99}))
    with pytest.raises(PinnError, match="layout 99"):
        KernelSurrogates.load(tmp_path)


@pytest.mark.parametrize("part", ["curves", "pools"])
def test_files_of_before_that_lack_a_fit_are_refused(kernels, tmp_path, part):
    kernels.save(tmp_path)
    structure = json.loads((tmp_path / "kernels.json").read_text())
    del structure["keys"][f"fused_all_reduce.{part}"]
    (tmp_path / "kernels.json").write_text(json.dumps(structure))
    with pytest.raises(PinnError) as refused:
        KernelSurrogates.load(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path / 'kernels.json'} lacks the fits of fused_all_reduce.{part}: "
        "refit the kernel surrogates with 'python scripts/fit_surrogates.py'"
    )


def test_the_nearest_measured_kernel_and_its_stretch(kernels):
    near = kernels.measured["gemm"].nearest("H100-SXM", "bf16", {"m": 16, "n": 4096, "k": 8192})
    assert near.stretch == 0
    assert (near.gpu, near.shape["n"], near.shape["m"]) == ("H100-SXM", 4096, 16)
    far = kernels.measured["gemm"].nearest("H100-SXM", "bf16", {"m": 16, "n": 262144, "k": 8192})
    assert far.stretch == pytest.approx(np.log(262145 / 65537))
    deep = {"sequences": 1, "context_tokens": 1e6, "heads": 32, "kv_heads": 8, "head_dim": 128}
    deep["window"] = 0
    assert kernels.measured["decode_attention"].nearest("H100-SXM", "bf16", deep).stretch > 1


def test_a_kernel_never_timed_on_a_chip_is_nearest_on_another(kernels):
    shape = {"tokens": 8, "hidden": 7168, "width": 2048, "experts": 384, "top_k": 8}
    shape |= {"tensor_parallel": 1, "expert_parallel": 1, "matrices": 3}
    near = kernels.measured["moe"].nearest("B200-SXM", "int4_wo", shape)
    assert near.precision == "int4_wo"
    assert near.gpu in {"H100-SXM", "A100-SXM-80GB"}


def test_even_quick_fits_beat_the_plain_roofline(kernels, tables):
    for operator in (Gemm(), Moe()):
        rows = getattr(tables, operator.name).sample(4000, random_state=0)
        surrogate = getattr(kernels, operator.name)
        ratio = surrogate.seconds_as_measured(rows, tables.gpus) / rows["seconds"]
        assert np.median(np.abs(ratio - 1)) < 0.25


def test_folds_hold_whole_shapes(tables):
    fold = fold_of_rows(tables.moe, Moe.group)
    shapes = tables.moe.assign(fold=fold).groupby(list(Moe.group))["fold"]
    assert set(fold) == set(range(FOLDS))
    assert (shapes.nunique() == 1).all()


def test_held_out_tables_name_what_is_left_out_chips_and_formats(tables):
    told: list[str] = []
    table = held_out_table(
        tables, ("A100-SXM-80GB",), operators=(Moe(),), plans=QUICK, fits={"moe": 1},
        progress=told.append,
    )  # fmt: skip
    assert told == ["without shapes: moe", "without A100-SXM-80GB: moe"]
    assert tuple(table.columns) == TABLE_COLUMNS
    shapes, gpus = (table[table["left_out"] == left] for left in ("shapes", "A100-SXM-80GB"))
    assert {"H100-SXM", "all"} <= set(shapes["gpu"])
    assert (table["median"] <= table["p90"]).all()
    assert set(gpus["gpu"]) == {"A100-SXM-80GB", "all"}


def test_without_rows_it_says_so(tables):
    exclude = Exclusion(gpus=tuple(g for g in tables.gpus))
    with pytest.raises(PinnError, match="its tables have no usable rows"):
        KernelSurrogates.fit(tables, exclude=exclude, plans=QUICK)


def test_latent_attention_without_measurements_runs_at_four_fifths_of_the_rates():
    """The slower rate counts: the cache's for few heads, arithmetic for many with 8-bit keys."""
    unmeasured = LatentCore.fit(pd.DataFrame(), {})
    few = unmeasured.seconds(H100, "bf16", 64.0, 8192.0, 16.0, 512, 64)
    read = 64 * 8192 * 576 * 2 / H100.memory_bandwidth_bytes_per_s
    assert few == pytest.approx(read / 0.8)
    many = unmeasured.seconds(H100, "fp8", 64.0, 8192.0, 128.0, 512, 64)
    compute = 64 * 8192 * 128 * 2 * (576 + 512) / H100.peak_flop_per_s["bf16"]
    assert many == pytest.approx(compute / 0.8)


def test_latent_attention_finds_the_start_and_the_rates_of_made_modules():
    """Modules are made of known parts and a context; few bytes take more than their share."""
    grid = [(s, t, h) for s in (1, 16, 128) for t in (2, 1024, 32768) for h in (8, 32)]
    rows = pd.DataFrame(grid, columns=["sequences", "context_tokens", "heads"], dtype=float)
    sizes = (*rows[["sequences", "context_tokens", "heads"]].to_numpy().T, 512, 64)
    weights = np.array([1.2, 0.1, 0.0, 9.0])
    core = LatentCore({(H100.name, "bf16"): weights}).seconds(H100, "bf16", *sizes)
    rows = rows.assign(
        gpu=H100.name, kv_precision="bf16", core_seconds=core, seconds=core + 3e-5 * rows["heads"]
    )
    fitted = LatentCore.fit(rows, {H100.name: H100})
    np.testing.assert_allclose(fitted.weights[H100.name, "bf16"], weights, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(fitted.weights["*", "bf16"], fitted.weights[H100.name, "bf16"])
    per_byte = core[:-1] / (rows["sequences"] * rows["context_tokens"])[:-1]
    assert per_byte.iloc[0] > 2 * per_byte.iloc[-1]


def test_measured_latent_decodes_of_few_requests_are_reproduced():
    """4 to 32 requests with 1,024 to 8,192 tokens add a time within 8 % of the module's."""
    b200 = load_gpu("B200")
    source = next(one for one in sources("latent_decode") if one.system == "b200_sxm")
    rows, _ = LATENT_DECODE_LAYOUT.read(b200, source)
    core = LatentCore.fit(rows, {b200.name: b200})
    few = rows.query(
        "kv_precision == 'fp8' and 4 <= sequences <= 32"
        " and 1024 <= context_tokens <= 8192 and heads in (8, 16)"
    )
    sizes = (few[c].to_numpy(float) for c in ("sequences", "context_tokens", "heads"))
    added = core.seconds(b200, "fp8", *sizes, 512, 64)
    assert len(few) >= 20
    assert abs(((added - few["core_seconds"]) / few["seconds"]).median()) < 0.08


def test_latent_prefill_without_measurements_runs_at_four_fifths_of_the_rates():
    """The time is that of moving operands once, plus multiplying."""
    unmeasured = LatentPrefill.fit(pd.DataFrame(), {}, lambda *_: np.zeros(0))
    seconds = unmeasured.seconds(H100, 1.0, 8192.0, 0.0, 16.0, 192, 128)
    moving = 8192 * 16 * (2 * 192 + 2 * 128) * 2 / H100.memory_bandwidth_bytes_per_s
    compute = 8192 * 8193 / 2 * 16 * 2 * (192 + 128) / H100.peak_flop_per_s["bf16"]
    assert seconds == pytest.approx((moving + compute) / 0.8)


def test_latent_prefill_finds_the_rates_of_modules_made_of_known_parts():
    h200, true = load_gpu("H200"), {H100.name: 1.1, "H200-SXM": 1.4}
    grid = [(s, t, h) for s in (1, 8) for t in (256, 2048, 16384) for h in (8, 32, 128)]
    parts = []
    for chip in (H100, h200):
        rows = pd.DataFrame(grid, columns=["sequences", "tokens", "heads"], dtype=float)
        sequences, tokens, heads = rows.to_numpy().T
        core = LatentPrefill({(chip.name,): np.array([2.0, true[chip.name]])})
        passes = 5 * 2 * 7168 * rows["sequences"] * rows["tokens"]
        seconds = (
            3e-5
            + passes / chip.memory_bandwidth_bytes_per_s
            + 4 * 3e-4  # four projections
            + core.seconds(chip, sequences, tokens, 0.0, heads, 192, 128)
        )
        parts.append(rows.assign(gpu=chip.name, seconds=seconds))
    gpus = {H100.name: H100, h200.name: h200}
    fitted = LatentPrefill.fit(pd.concat(parts), gpus, lambda _, __, m, *___: np.full(len(m), 3e-4))
    for chip, weight in true.items():
        np.testing.assert_allclose(fitted.weights[chip,], [2.0, weight], rtol=1e-6)
    assert 1.1 < fitted.weights["*",][1] < 1.4


def test_measured_latent_modules_are_projections_and_the_fitted_attention(kernels, tables):
    rows = tables.latent_prefill.query("sequences == 1 and tokens == 32768 and heads == 128")
    assert len(rows) == 2  # two formats of the cache
    attention = kernels.latent_prefill_attention_seconds(H100, 1, 32768, 0, 128, 192, 128)
    share = attention / rows["seconds"].to_numpy()
    flop = 128 * 2 * (192 + 128) * 32768 * 32769 / 2
    assert (flop / H100.peak_flop_per_s["bf16"] / rows["seconds"] < share).all()
    assert (share < 1).all()


def test_measured_all_reduce_is_reproduced_and_other_chips_take_the_pool(kernels, tables):
    rows = tables.all_reduce.query("gpu == 'H100-SXM' and gpus == 8")
    found = kernels.all_reduce.seconds(H100, 8, rows["bytes"].to_numpy())
    np.testing.assert_allclose(found, np.maximum.accumulate(rows["seconds"]), rtol=1e-9)
    h200 = kernels.all_reduce.seconds(load_gpu("H200"), 8, 2e6)
    assert h200 == pytest.approx(kernels.all_reduce.seconds(H100, 8, 2e6), rel=0.6)


def test_measured_fused_all_reduces_are_reproduced(kernels, tables):
    rows = tables.fused_all_reduce.query("gpu == 'H100-SXM' and gpus == 4")
    rows = rows.sort_values("bytes").query("bytes >= 256")
    found = kernels.fused_all_reduce.seconds(H100, 4, rows["bytes"].to_numpy())
    np.testing.assert_allclose(found, np.maximum.accumulate(rows["seconds"]), rtol=1e-9)
    # Where a release fuses, the kernel is the faster one.
    assert (found < kernels.all_reduce.seconds(H100, 4, rows["bytes"].to_numpy()))[
        rows["bytes"] <= 2**18
    ].all()


def test_only_chips_that_were_trained_on_carry_a_name_tag(kernels):
    """Attention on an unknown chip depends on its generation, not on its datasheet's values."""
    surrogate = kernels.decode_attention
    same = replace(H100, name="H100-of-my-own", source="a file")
    assert is_known([H100, same, load_gpu("H200")], surrogate.chips).tolist() == [True, True, False]
    alike = surrogate.seconds(same, "bf16", 8, 4096, 8, 1, 128, 0)
    assert alike == surrogate.seconds(H100, "bf16", 8, 4096, 8, 1, 128, 0)
