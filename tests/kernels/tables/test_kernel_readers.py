"""Readers of measured kernels: units, counts, and every rule that refuses rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_tables import GPU, write_table

from pinn.errors import PinnError
from pinn.kernels.tables import table
from pinn.kernels.tables.attention import (
    DECODE_LAYOUT,
    LATENT_DECODE_LAYOUT,
    LATENT_PREFILL_LAYOUT,
    PREFILL_LAYOUT,
)
from pinn.kernels.tables.gemm import GEMM_LAYOUT, MOE_LAYOUT
from pinn.kernels.tables.table import VLLM, TableSource, sources
from pinn.kernels.tables.tables import (
    ALL_REDUCE_LAYOUT,
    EXCHANGE_LAYOUT,
    FUSED_LAYOUT,
    read_all_reduces,
    read_kernel_tables,
)
from pinn.specs.gpu import load_gpu

H100 = TableSource("h100_sxm", version=VLLM)


def reasons(report):
    """Return refusal counts by the first words of their reason."""
    assert report.accepted + sum(report.refused.values()) == report.read
    return {" ".join(r.split()[:3]): count for r, count in report.refused.items()}


def gemm(m, n, k, ms, dtype="bfloat16"):
    return {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": ms}


def test_gemm_rows_are_in_seconds_and_known_formats(tmp_path):
    write_table(tmp_path, "gemm", "gemm_perf", [gemm(8, 4096, 8192, 0.1)])
    rows, report = GEMM_LAYOUT.read(GPU, H100, tmp_path)
    assert rows[["gpu", "precision", "m", "n", "k"]].iloc[0].tolist() == [
        "H-TEST", "bf16", 8, 4096, 8192,
    ]  # fmt: skip
    assert rows["seconds"].iloc[0] == pytest.approx(1e-4)
    assert (report.read, report.accepted) == (1, 1)
    assert report.sha256


def test_the_newest_whole_release_is_read_and_of_newer_tables_what_later_ones_time_again(
    tmp_path, monkeypatch
):
    sizes = {"0.9.1": (1, 2), VLLM: (1, 2, 4), "0.31.0": (4, 8), "0.33.1.dev19262": (16,)}
    for ms, (version, rows) in enumerate(sizes.items(), start=1):
        table_rows = [gemm(m, 4096, 8192, ms / 10) for m in rows]
        write_table(tmp_path, "gemm", "gemm_perf", table_rows, version)
    newest = TableSource("h100_sxm")
    assert GEMM_LAYOUT.path(newest, tmp_path).parent.name == VLLM
    found, reports = GEMM_LAYOUT.read_all([newest], {"h100_sxm": GPU}, tmp_path)
    seconds = found.set_index("m")["seconds"].to_dict()
    assert seconds == pytest.approx({1: 2e-4, 2: 2e-4, 4: 3e-4, 8: 3e-4})
    assert [report.version for report in reports] == ["vllm 0.31.0", f"vllm {VLLM}"]
    assert reports[1].refused == {"measured again in a later release": 1}
    assert len(GEMM_LAYOUT.read_all([H100], {"h100_sxm": GPU}, tmp_path)[0]) == 3
    monkeypatch.setattr(table, "systems_folder", lambda: tmp_path)
    assert GEMM_LAYOUT.path(newest).parent.name == VLLM
    _, report = GEMM_LAYOUT.read(GPU, newest)
    assert (report.source, report.version) == (
        f"h100_sxm/gemm/vllm/{VLLM}/gemm_perf.parquet", f"vllm {VLLM}"
    )  # fmt: skip
    error = r"has no measured kernels, expected \*/moe_perf.parquet: install aiconfigurator-core"
    with pytest.raises(PinnError, match=error):
        MOE_LAYOUT.path(newest, tmp_path)


def test_gemm_refuses_by_rule(tmp_path):
    # 67 MB of weights take 67 us from memory. 8 MB fit the cache of a timing loop with six copies.
    rows = [
        gemm(8, 4096, 8192, 0.1),
        gemm(8, 4096, 8192, 0.2, "fp8_block"),
        gemm(8, 4096, 8192, 0.05),
        gemm(8, 2048, 2048, 0.009),
        gemm(8, 4096, 8192, 0.1, "sq"),
        gemm(8, 4096, 8192, np.nan),
    ]
    write_table(tmp_path, "gemm", "gemm_perf", rows)
    kept, report = GEMM_LAYOUT.read(GPU, H100, tmp_path)
    assert reasons(report) == {
        "format not used": 1,
        "fp8_block rows are": 1,
        "no time": 1,
        "read from a": 1,
        "below the floor": 1,
    }
    assert len(kept) == 1


def test_gemm_refuses_odd_single_rows_and_spikes(tmp_path):
    series = [(1, 0.3), (2, 0.1), (4, 0.11), (8, 0.3), (16, 0.12), (32, 0.13)]
    write_table(tmp_path, "gemm", "gemm_perf", [gemm(m, 4096, 8192, t) for m, t in series])
    kept, report = GEMM_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["m"].tolist() == [2, 4, 16, 32]
    assert reasons(report) == {"outlier: one matrix": 1, "outlier: over 1.3x": 1}


def test_a_missing_column_names_itself_and_the_file(tmp_path):
    path = write_table(tmp_path, "gemm", "gemm_perf", [{"gemm_dtype": "fp8", "m": 1, "n": 1}])
    with pytest.raises(PinnError, match=r"'k', 'latency'") as error:
        GEMM_LAYOUT.read(GPU, H100, tmp_path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(PinnError, match=r"the table of measured kernels .* does not exist"):
        GEMM_LAYOUT.read(GPU, H100, tmp_path)


def attention(sequences, context, ms, **other):
    row = {
        "batch_size": sequences,
        "isl": 1,
        "step": context - 1,
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "kv_cache_dtype": "bfloat16",
        "kernel_source": "fa",
        "window_size": 0,
        "latency": ms,
    }
    return {**row, **other}


def test_decode_attention_counts_the_new_token_and_refuses_warm_caches(tmp_path):
    # 4096 bytes per token: 4096 tokens are 17 MB, which take 17 us, in a cache of 55 MB.
    rows = [
        attention(1, 16, 0.01),
        attention(4, 1024, 0.02),
        attention(4, 8192, 0.15),
        attention(4, 8192, 0.12),
        attention(4, 8192, 0.15, kv_cache_dtype="int3"),
    ]
    write_table(tmp_path, "attention", "generation_attention_perf", rows)
    kept, report = DECODE_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["context_tokens"].tolist() == [16, 8192]
    assert reasons(report) == {
        "format not used": 1,
        "keys and values": 1,
        "below the floor": 1,
    }


def test_a_fall_back_gives_only_many_heads_that_share_nothing(tmp_path):
    rows = [
        attention(4, 8192, 0.9, num_heads=16, num_key_value_heads=16),
        attention(4, 8192, 0.9, num_heads=8, num_key_value_heads=8),
        attention(4, 8192, 0.9, num_heads=16, num_key_value_heads=8),
    ]
    write_table(tmp_path, "attention", "generation_attention_perf", rows)
    source = replace(H100, ungrouped_heads_above=8)
    kept, report = DECODE_LAYOUT.read(GPU, source, tmp_path)
    assert kept[["heads", "kv_heads"]].to_numpy().tolist() == [[16, 16]]
    assert reasons(report) == {"heads that vLLM's": 2}


def test_prefill_attention_takes_fresh_prompts_only(tmp_path):
    rows = [
        attention(2, 1, 0.5, isl=1024, step=0),
        attention(2, 1, 0.5, isl=1024, step=128),
        attention(2, 1, 0.001, isl=1024, step=0),
    ]
    write_table(tmp_path, "attention", "context_attention_perf", rows)
    kept, report = PREFILL_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["tokens"].tolist() == [1024]
    assert reasons(report) == {"after cached tokens": 1, "below the floor": 1}


def expert(tokens, ms, **other):
    row = {
        "moe_dtype": "bfloat16",
        "num_tokens": tokens,
        "hidden_size": 4096,
        "inter_size": 2048,
        "topk": 2,
        "num_experts": 8,
        "moe_tp_size": 1,
        "moe_ep_size": 1,
        "distribution": "balanced",
        "kernel_source": "triton",
        "latency": ms,
    }
    return {**row, **other}


def test_moe_refuses_by_rule(tmp_path):
    # One expert has 50 MB; 1, 2 and 4 tokens hit 2, 4 and 8 experts if distributed evenly.
    good = [expert(t, ms) for t, ms in ((1, 0.15), (2, 0.25), (4, 0.5), (8, 0.55))] * 6
    rows = [
        *good,
        expert(4, 0.5, distribution="power_law_1.2"),
        expert(4, 0.5, moe_dtype="fp8", kernel_source="vllm_modeloptfp8moe_x"),
        expert(4, 0.5, moe_dtype="w4a8_mxfp4_mxfp8", kernel_source="sglang_mxfp4_flashinfer_x"),
        expert(8, 0.35),
    ]
    write_table(tmp_path, "moe", "moe_perf", rows)
    kept, report = MOE_LAYOUT.read(GPU, H100, tmp_path)
    assert reasons(report) == {
        "uneven routing": 1,
        "modelopt fp8 on": 1,
        "kernel as called": 1,
        "below the floor": 1,
    }
    assert len(kept) == len(good)
    assert set(kept["matrices"]) == {3.0}


def test_experts_are_routed_evenly_however_crowded(tmp_path):
    # 64 tokens with top-k 2 are 16 pairs for each of 8 experts.
    rows = [
        expert(tokens, ms, distribution=routing)
        for tokens in (4, 63, 64, 4096)
        for routing, ms in (("balanced", 2.0), ("power_law_1.01", 3.0), ("power_law_1.2", 4.0))
    ]
    write_table(tmp_path, "moe", "moe_perf", rows)
    kept, report = MOE_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["tokens"].tolist() == [4, 63, 64, 4096]
    assert kept["seconds"].tolist() == pytest.approx([2e-3] * 4)
    assert reasons(report) == {"uneven routing": 8}


def test_moe_refuses_shapes_that_route_to_fewer_experts(tmp_path):
    rows = [expert(t, 0.3) for t in (4, 8, 16)] + [expert(1, 0.3)]
    write_table(tmp_path, "moe", "moe_perf", rows)
    _, report = MOE_LAYOUT.read(GPU, H100, tmp_path)
    assert reasons(report) == {"tokens are routed": 4}


def test_ungated_experts_have_two_matrices(tmp_path):
    shape = {"hidden_size": 2688, "inter_size": 1856, "topk": 6, "num_experts": 128}
    write_table(tmp_path, "moe", "moe_perf", [expert(1, 0.5, **shape)])
    rows, _ = MOE_LAYOUT.read(GPU, H100, tmp_path)
    assert rows["matrices"].tolist() == [2.0]


def test_all_reduce_sizes_are_16_bit_elements_from_graphs(tmp_path):
    rows = [
        {"num_gpus": 2, "message_size": 1024, "backend": "vllm_graph", "latency": 0.005},
        {"num_gpus": 2, "message_size": 1024, "backend": "vllm_eager", "latency": 0.02},
        {"num_gpus": 2, "message_size": 2**29, "backend": "vllm_graph", "latency": 1.0},
    ]
    write_table(tmp_path, "comm", "custom_allreduce_perf", rows, allreduce_dtype="bfloat16")
    kept, report = ALL_REDUCE_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["bytes"].tolist() == [2048]
    assert kept["seconds"].tolist() == pytest.approx([5e-6])
    assert reasons(report) == {"launched individually, not": 1, "below the floor": 1}


def test_fused_all_reduces_are_read_whatever_launched_them(tmp_path):
    """TensorRT-LLM's tables have no back ends; a name that others give there is not looked at."""
    rows = [
        {"num_gpus": 2, "message_size": 1024, "latency": 0.004},
        {"num_gpus": 4, "message_size": 2**20, "latency": 0.03},
        {"num_gpus": 4, "message_size": 2**20, "latency": 0.03, "allreduce_dtype": "float32"},
        {"num_gpus": 4, "message_size": 2**21, "latency": np.nan},
        # 64 MiB over three quarters of links of 100 GB/s: half a millisecond at least.
        {"num_gpus": 4, "message_size": 2**25, "latency": 0.5},
        {"num_gpus": 4, "message_size": 2**25, "latency": 0.51},
    ]
    write_table(
        tmp_path, "comm", "custom_allreduce_perf",
        [{"allreduce_dtype": "bfloat16", **row} for row in rows],
    )  # fmt: skip
    kept, report = FUSED_LAYOUT.read(GPU, H100, tmp_path)
    assert kept[["gpus", "bytes"]].to_numpy().tolist() == [[2, 2048], [4, 2**21], [4, 2**26]]
    assert kept["seconds"].tolist() == pytest.approx([4e-6, 3e-5, 5.1e-4])
    assert reasons(report) == {"elements are not": 1, "no time": 1, "below the floor": 1}
    assert "backend" not in kept


def test_fused_all_reduces_are_tensorrt_llms_of_every_gpu_with_nvlink():
    found = sources("fused_all_reduce")
    assert {source.backend for source in found} == {"trtllm"}
    systems = {source.system: load_gpu(source.system) for source in found}
    assert all(gpu.has_nvlink for gpu in systems.values())
    rows, reports = FUSED_LAYOUT.read_all(found, systems)
    assert {report.version for report in reports} == {"trtllm 1.3.0rc20"}
    assert len(rows) == sum(report.accepted for report in reports)
    assert set(rows["gpu"]) == {gpu.name for gpu in systems.values()}
    ranks = rows.groupby("gpu")["gpus"].agg(set)
    assert ranks["H100-SXM"] >= {2, 4, 8}


def reduce_rows(gpus, bus_gb_per_s, sizes=(2**27, 2**28, 2**29)):
    """Return all-reduces of 16-bit elements at a given bandwidth of each link under a ring."""
    moved = 2 * (gpus - 1) / gpus * 2 / (bus_gb_per_s * 1e9)
    return [
        {"num_gpus": gpus, "message_size": n, "backend": "vllm_graph", "latency": 1e3 * n * moved}
        for n in sizes
    ]


def test_all_reduces_over_a_shared_path_are_refused(tmp_path):
    """If each GPU has a link of its own, a ring of eight loads each link like a pair does."""
    for slow in (2, 4, 8):
        rows = [row for n in (2, 4, 8) for row in reduce_rows(n, 20 if n == slow else 45)]
        write_table(tmp_path, "comm", "custom_allreduce_perf", rows, allreduce_dtype="bfloat16")
        kept, report = ALL_REDUCE_LAYOUT.read(GPU, H100, tmp_path)
        assert set(kept["gpus"]) == {2, 4, 8} - {slow}
        assert reasons(report) == {"ranks share a": 3}


def test_all_reduces_a_little_slower_among_more_ranks_stay(tmp_path):
    rows = [row for n, rate in ((2, 45), (4, 35), (8, 25)) for row in reduce_rows(n, rate)]
    write_table(tmp_path, "comm", "custom_allreduce_perf", rows, allreduce_dtype="bfloat16")
    assert len(ALL_REDUCE_LAYOUT.read(GPU, H100, tmp_path)[0]) == 9


def test_a_disturbed_all_reduce_is_refused(tmp_path):
    rows = reduce_rows(2, 45, [2**n for n in range(20, 27)])
    rows[3]["latency"] *= 3
    write_table(tmp_path, "comm", "custom_allreduce_perf", rows, allreduce_dtype="bfloat16")
    kept, report = ALL_REDUCE_LAYOUT.read(GPU, H100, tmp_path)
    assert 2**24 not in kept["bytes"].tolist()
    assert reasons(report) == {"outlier: over 1.3x": 1}


def test_l40s_takes_each_number_of_ranks_from_a_machine_that_does_not_share_paths():
    gpus = {"l40s": load_gpu("L40S")}
    rows, reports = read_all_reduces(gpus)
    source = rows.groupby("gpus")["source"].first()
    assert ["vllm" in source[n] for n in (2, 4, 8)] == [True, False, False]
    _, exchanges = EXCHANGE_LAYOUT.read_all(sources("exchange"), gpus)
    assert [r.accepted for r in (*reports, *exchanges)] == [23, 46, 126]
    for report in (*reports, *exchanges):
        assert report.read == report.accepted + sum(report.refused.values())


def test_an_exchange_is_a_gather_and_a_scatter_of_as_many_bytes(tmp_path):
    row = {"nccl_dtype": "half", "num_gpus": 8, "message_size": 1024, "latency": 0.02}
    gather, scatter = ({**row, "op_name": name} for name in ("all_gather", "reduce_scatter"))
    alone = {**gather, "message_size": 2048}
    rows = [gather, {**scatter, "latency": 0.03}, alone, {**row, "op_name": "alltoall"},
            {**gather, "nccl_dtype": "int8"}]  # fmt: skip
    write_table(tmp_path, "comm", "nccl_perf", rows)
    kept, report = EXCHANGE_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["seconds"].tolist() == pytest.approx([5e-5])
    assert kept["bytes"].tolist() == [2048]
    assert list(reasons(report).values()) == [1, 1, 1]


def test_latent_attention_is_what_the_context_adds(tmp_path):
    rows = [
        {"step": 2, "latency": 0.1},
        {"step": 4096, "latency": 0.14},
        {"step": 4096, "latency": 0.2, "gemm_type": "fp8_block"},
    ]
    write_table(
        tmp_path,
        "mla",
        "mla_generation_module_perf",
        [{"gemm_type": "bfloat16", **r} for r in rows],
        model="deepseek-ai/DeepSeek-V3",
        kv_cache_dtype="bfloat16",
        num_heads=16,
        batch_size=8,
        kernel_source="x",
    )
    kept, report = LATENT_DECODE_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["core_seconds"].tolist() == pytest.approx([0.0, 4e-5])
    assert reasons(report) == {"projections not in": 1}


def test_latent_attention_of_prompts(tmp_path):
    # 8192 tokens with 16 heads of 192 + 128: 0.34 TFLOP.
    rows = [
        {},
        {"gemm_type": "fp8_block"},
        {"kernel_source": "TRTLLM_RAGGED", "mla_dtype": "fp8"},
        {"model": "moonshotai/Kimi-K3"},
        {"latency": 0.3},
    ]
    usual = {
        "latency": 1.6,
        "gemm_type": "bfloat16",
        "kernel_source": "FLASH_ATTN",
        "mla_dtype": "bfloat16",
        "model": "deepseek-ai/DeepSeek-V3",
    }
    write_table(
        tmp_path,
        "mla",
        "mla_context_module_perf",
        [{**usual, **row} for row in rows],
        kv_cache_dtype="fp8",
        num_heads=16,
        batch_size=1,
        isl=8192,
    )
    kept, report = LATENT_PREFILL_LAYOUT.read(GPU, H100, tmp_path)
    assert kept["seconds"].tolist() == pytest.approx([1.6e-3])
    assert kept["tokens"].tolist() == [8192]
    assert reasons(report) == {
        "projections not in": 1,
        "not the kernel": 1,
        "shape is not": 1,
        "below the floor": 1,
    }


def test_the_package_s_own_tables_add_up():
    tables = read_kernel_tables({"a100_sxm": load_gpu("a100_sxm")})
    for report in tables.reports:
        assert report.read == report.accepted + sum(report.refused.values())
    assert set(tables.moe["precision"]) == {"bf16", "int4_wo"}
    for name in ("gemm", "decode_attention", "prefill_attention", "moe", "all_reduce"):
        rows = getattr(tables, name)
        assert len(rows) > 0
        assert (rows["gpu"] == "A100-SXM-80GB").all()
        assert np.isfinite(rows["seconds"]).all()


def test_int4_experts_on_blackwell_multiply_far_below_16_bit_ones():
    """Marlin's rate hardly grows after Hopper, which explains slow int4 prefills on B200."""
    systems = {name: load_gpu(name) for name in ("h100_sxm", "b200_sxm")}
    moe, _ = MOE_LAYOUT.read_all(sources("moe"), systems)
    large = moe[(moe["tokens"] >= 8192) & (moe["tensor_parallel"] * moe["expert_parallel"] == 1)]
    flop = 2 * large["tokens"] * large["top_k"] * large["matrices"]
    rate = flop * large["hidden"] * large["width"] / large["seconds"]
    median = rate.groupby([large["gpu"], large["precision"]]).median()
    assert median["B200-SXM", "int4_wo"] < 0.4 * median["B200-SXM", "bf16"]
    assert median["B200-SXM", "int4_wo"] < 1.3 * median["H100-SXM", "int4_wo"]
    assert median["B200-SXM", "bf16"] > 1.5 * median["H100-SXM", "bf16"]
