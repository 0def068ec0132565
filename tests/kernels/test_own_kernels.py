"""Kernels that other engines run: what is said of them is what the measured tables say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import EXPERT_TIMES, FUSED_TRITON, TORCH_FLOW, XQA_TIME
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.tables.attention import DECODE_LAYOUT
from pinn.kernels.tables.gemm import MOE_LAYOUT
from pinn.kernels.tables.table import VLLM, TableSource, bytes_per_element, flop_rate
from pinn.kernels.tables.work import experts_hit_balanced, moe_work
from pinn.physics.batch_sums import alike
from pinn.specs.batch import parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

SHAPE = ["kv_precision", "sequences", "context_tokens", "heads", "kv_heads", "head_dim", "window"]
TRTLLM = ("trtllm", "1.3.0rc20")
SGLANG = ("sglang", "0.5.14")


def timed(systems, engine) -> pd.DataFrame:
    """Shapes that vLLM and another engine timed, long enough for launches not to count."""
    found = []
    for system in systems:
        sources = (TableSource(system, version=VLLM), TableSource(system, *engine))
        own, other = (DECODE_LAYOUT.read(load_gpu(system), s)[0] for s in sources)
        found.append(own.merge(other, on=SHAPE, suffixes=("", "_other")))
    rows = pd.concat(found, ignore_index=True)
    long = (rows["seconds"] >= 30e-6) & (rows["window"] == 0) & rows["head_dim"].isin([64, 128])
    return rows[long].assign(ratio=rows["seconds_other"] / rows["seconds"])


def means(rows):
    return {name: np.exp(np.log(g["ratio"]).mean()) for name, g in rows.groupby("kv_precision")}


def test_xqa_takes_what_the_tables_of_hopper_say():
    rows = timed(("h100_sxm", "h200_sxm"), TRTLLM)
    assert len(rows) > 10_000
    found = means(rows)
    assert found["bf16"] == pytest.approx(XQA_TIME[16], abs=0.005)
    assert found["fp8"] == pytest.approx(XQA_TIME[8], abs=0.005)


@pytest.mark.parametrize(
    ("systems", "engine", "kernels"),
    [
        (("b200_sxm", "b300_sxm"), TRTLLM, {"torch_flow"}),
        (("h100_sxm", "h200_sxm"), SGLANG, {"fa3"}),
    ],
)
def test_where_vllms_kernels_run_they_take_as_long(systems, engine, kernels):
    rows = timed(systems, engine)
    assert set(rows["kernel_other"]) == kernels
    assert list(means(rows).values()) == pytest.approx([1.0, 1.0], abs=0.09)


@pytest.mark.parametrize(("cache", "bits"), [("auto", 16), ("fp8", 8)])
def test_a_composed_step_is_other_in_decode_attention_alone(kernels, cache, bits):
    model, gpu = load_model("Llama-3.1-8B"), load_gpu("H100")
    batches = alike([parse_batch("64 decode @ 2048 + 1 prefill 512 @ 0")])
    vllms, own = (
        compose(
            kernels, Deployment(model, gpu, ServingSpec(engine=e, kv_cache_dtype=cache)), batches
        )
        for e in ("vllm", "trtllm")
    )
    for name, theirs, mine in zip(COMPOSED_PARTS, vllms[0], own[0], strict=True):
        factor = XQA_TIME[bits] if name == "decode_attention" else 1.0
        assert mine == pytest.approx(factor * theirs), name


EXPERTS = ["tokens", "hidden", "width", "experts", "top_k", "tensor_parallel", "expert_parallel"]
MXFP4 = ("w4a16_mxfp4",)


def timed_experts(systems, engine) -> pd.DataFrame:
    """mxfp4 experts that vLLM and another engine timed, and whether reading them takes longest."""
    found = []
    for system in systems:
        gpu = load_gpu(system)
        sources = (
            TableSource(system, version=VLLM, formats=MXFP4),
            TableSource(system, *engine, MXFP4),
        )
        own, other = (MOE_LAYOUT.read(gpu, s)[0] for s in sources)
        rows = own.merge(other, on=EXPERTS, suffixes=("", "_other"))
        value = {name: rows[name].to_numpy(dtype=float) for name in [*EXPERTS, "matrices"]}
        hit = experts_hit_balanced(
            *(value[n] for n in ("tokens", "experts", "top_k", "expert_parallel"))
        )
        work = moe_work(value, hit, bytes_per_element(rows["precision"]))
        read_s = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
        compute_s = work.flop / flop_rate(gpu, rows["precision"])
        ratio = rows["seconds_other"] / rows["seconds"]
        found.append(rows.assign(ratio=ratio, reading=read_s >= compute_s))
    rows = pd.concat(found, ignore_index=True)
    return rows[rows["seconds"] >= 30e-6]


@pytest.mark.parametrize(
    ("engine", "kernels", "label"),
    [
        (TRTLLM, TORCH_FLOW, "moe_torch_flow"),
        (SGLANG, FUSED_TRITON, "sglang_fused_moe_triton"),
    ],
)
def test_mxfp4_experts_take_what_the_tables_of_hopper_say(engine, kernels, label):
    rows = timed_experts(("h100_sxm", "h200_sxm"), engine)
    small = rows[rows["experts"] == 32]
    assert set(small["kernel_other"]) == {label}
    assert len(small) > 300
    for reading, time in zip((True, False), EXPERT_TIMES[kernels], strict=True):
        ratios = small.loc[small["reading"] == reading, "ratio"]
        assert np.exp(np.log(ratios).mean()) == pytest.approx(time, abs=0.005)


def test_where_vllms_mxfp4_kernels_run_they_take_as_long():
    rows = timed_experts(("b200_sxm", "b300_sxm"), SGLANG)
    same = rows[rows["kernel"].str.contains("flashinfer_trtllm")]
    assert set(same["kernel_other"]) == {"sglang_flashinfer_trtllm_moe"}
    for _, part in same.groupby("reading"):
        assert np.exp(np.log(part["ratio"]).mean()) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("engine", "family"), [("trtllm", TORCH_FLOW), ("sglang", FUSED_TRITON)])
@pytest.mark.parametrize(("batch", "bound"), [("8 decode @ 2048", 0), ("4 prefill 4096 @ 0", 1)])
def test_composed_experts_take_as_long_as_the_engines_own(kernels, engine, family, batch, bound):
    model, gpu = load_model("openai/gpt-oss-20b"), load_gpu("H100")
    batches = alike([parse_batch(batch)])
    vllms, own = (
        compose(kernels, Deployment(model, gpu, ServingSpec(engine=e)), batches)[0]
        for e in ("vllm", engine)
    )
    column = list(COMPOSED_PARTS).index("experts")
    assert own[column] == pytest.approx(EXPERT_TIMES[family][bound] * vllms[column])
