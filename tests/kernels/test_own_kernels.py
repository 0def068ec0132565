"""Kernels of other engines: their modelled times agree with the measured tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import XQA_TIME
from pinn.engines.recipe_rules import effective_recipe
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.tables.attention import DECODE_LAYOUT
from pinn.kernels.tables.table import ELEMENT_BYTES, VLLM, TableSource
from pinn.kernels.tables.tables import ALL_REDUCE_LAYOUT
from pinn.physics.batch_sums import alike
from pinn.specs.batch import parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

SHAPE = ["kv_precision", "sequences", "context_tokens", "heads", "kv_heads", "head_dim", "window"]
TRTLLM = ("trtllm", "1.3.0rc20")
SGLANG = ("sglang", "0.5.14")


def timed(systems, engine) -> pd.DataFrame:
    """Return shapes that vLLM and another engine timed, long enough for launches not to count."""
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


def all_reduces(system, engine, version) -> pd.Series:
    """Return seconds of graph-launched all-reduces up to 256 KiB; TensorRT-LLM has one method."""
    rows = pd.read_parquet(ALL_REDUCE_LAYOUT.path(TableSource(system, engine, version)))
    rows = rows[rows["message_size"] * ELEMENT_BYTES <= 2**18]
    if "backend" in rows:
        rows = rows[rows["backend"].str.contains("graph")]
    return rows.set_index(["num_gpus", "message_size"])["latency"]


HOPPER, B200, BLACKWELL = ("h100_sxm", "h200_sxm"), ("b200_sxm",), ("b200_sxm", "b300_sxm")


@pytest.mark.parametrize(
    ("engine", "version", "systems", "latency"),
    [
        ("vllm", "0.19.0", HOPPER + BLACKWELL, 1.0),
        ("sglang", "0.5.9", HOPPER + BLACKWELL, 1.0),
        ("sglang", "0.5.10", HOPPER + BLACKWELL, 1.0),
        ("sglang", "0.5.14", HOPPER + BLACKWELL, 0.66),
        ("trtllm", "1.2.0rc5", B200, 0.68),
        ("trtllm", "1.3.0rc20", HOPPER + BLACKWELL, 0.68),
    ],
)
def test_a_releases_all_reduce_takes_what_the_tables_say(engine, version, systems, latency):
    flags = {"tensor_parallel_size": 4, "fuse_all_reduce": engine == "trtllm"}
    serving = ServingSpec(engine=engine, engine_version=version, **flags)
    for system in systems:
        assert effective_recipe(serving, load_gpu(system), "").all_reduce_latency == latency
    ratios = [all_reduces(s, engine, version) / all_reduces(s, "vllm", VLLM) for s in systems]
    assert all(len(each) == 33 and each.notna().all() for each in ratios)
    assert np.exp(np.log(pd.concat(ratios)).mean()) == pytest.approx(latency, abs=0.02)
