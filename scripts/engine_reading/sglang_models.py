"""What SGLang decides by architecture and GPU: read by hand, release by release.

Those rules spread over functions of hundreds of lines, so they stand here in plain words, beside a
digest of the functions they were read in: a release whose digest is not here is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from engine_reading.table import Line
from engine_reading.wheel import EngineSource, fingerprint
from pinn.engines.recipe import release

#: Patterns of GPUs' names: compute capability 10.0 and 10.3, and 9.0.
SM100, SM90 = "b[23]00", "h[128]00|h20"

#: ``model_type`` of checkpoints by SGLang's architecture, of those that a rule here is about.
_TYPES: dict[str, tuple[str, ...]] = {
    "DeepseekV2ForCausalLM": ("deepseek_v2",),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "FalconH1ForCausalLM": ("falcon_h1",),
    "Gemma3nForConditionalGeneration": ("gemma3n",),
    "Glm4MoeForCausalLM": ("glm4_moe",),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite",),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa",),
    "GptOssForCausalLM": ("gpt_oss",),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid",),
    "KimiK25ForConditionalGeneration": ("kimi_k25",),
    "KimiLinearForCausalLM": ("kimi_linear",),
    "Llama4ForCausalLM": ("llama4_text",),
    "Llama4ForConditionalGeneration": ("llama4",),
    "LlamaForCausalLM": ("llama",),
    "Mistral3ForConditionalGeneration": ("mistral3",),
    "MllamaForConditionalGeneration": ("mllama",),
    "NemotronHForCausalLM": ("nemotron_h",),
    "Olmo2ForCausalLM": ("olmo2",),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl",),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl",),
    "Qwen3MoeForCausalLM": ("qwen3_moe",),
    "Qwen3NextForCausalLM": ("qwen3_next",),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe",),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5",),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
}
#: Architectures that SGLang reads images with by default; Gemma 3 and Llama 4 are read as text
#: alone (``configs/model_config.py: mm_disabled_models``).
_IMAGES = ("gemma3n", "mistral3", "mllama", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_QWEN35 = ("qwen3_5", "qwen3_5_moe")
_SPARSE = ("deepseek_v32", "glm_moe_dsa")
_LATENT = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "kimi_linear")

_SRT = "sglang/srt"
_ARGS, _GROUPS = f"{_SRT}/server_args.py", f"{_SRT}/arg_groups"
#: Where the rules stand, from one release or another on.
_READ: tuple[tuple[str, tuple[str, ...]], ...] = (
    (_ARGS, (*(f"ServerArgs.{name}" for name in (
        "_handle_model_specific_adjustments", "_handle_attention_backend_compatibility",
        "_get_default_attn_backend", "_handle_mamba_radix_cache",
        "_support_mamba_cache_extra_buffer", "_handle_page_size", "_handle_speculative_decoding",
        "_handle_piecewise_cuda_graph", "_apply_cuda_graph_compatibility",
        "_disable_breakable_cudagraph_if_incompatible",
        "_disable_tc_piecewise_cudagraph_if_incompatible", "_handle_data_parallelism",
        "_disable_prefill_cuda_graph_for_deepseek_trtllm_mla", "_handle_moe_kernel_config",
        "_generate_cuda_graph_batch_sizes", "_generate_decode_cuda_graph_batch_sizes",
        "_handle_load_balance_method",
    )), "auto_choose_speculative_params")),
    (f"{_GROUPS}/speculative_hook.py", (
        "_handle_eagle_family", "_handle_ngram", "_auto_choose_speculative_params",
    )),
    (f"{_GROUPS}/cuda_graph_hook.py", (
        "apply_cuda_graph_compatibility", "disable_breakable_cudagraph_if_incompatible",
        "disable_prefill_cuda_graph_for_deepseek_trtllm_mla",
        "generate_decode_cuda_graph_batch_sizes", "generate_prefill_cuda_graph_batch_sizes",
    )),
    (f"{_GROUPS}/overrides.py", (
        "_deepseek_family_overrides", "_deepseek_moe_quant_resolution", "_gpt_oss_overrides",
        "_qwen3_moe_family_overrides", "_qwen3_5_hybrid_overrides", "_nemotron_h_overrides",
        "_falcon_h1_jet_overrides", "_granite_moe_hybrid_overrides", "_llama4_overrides",
        "_olmo2_overrides", "_page_size_default", "_mamba_radix_cache_resolution",
        "_MAMBA_RADIX_CACHE_ARCHS", "_MAMBA_EXTRA_BUFFER_ARCHS", "_DEEPSEEK_FAMILY_ARCHS",
        "_dsa_kv_cache_dtype_default", "_attention_backend_default", "_fa4_page_constraint",
    )),
    (f"{_GROUPS}/model_override_base.py", ("get_default_attn_backend",)),
    (f"{_GROUPS}/parallel_hook.py", ("handle_data_parallelism",)),
    (f"{_GROUPS}/serving_hook.py", ("handle_load_balance_method",)),
    (f"{_GROUPS}/nemotron_h_hook.py", ("apply_nemotron_h_defaults",)),
    *((f"{_GROUPS}/model_overrides/{family}.py", names) for family, names in (
        ("deepseek_v2", ("_deepseek_family_overrides",)), ("gpt_oss", ("_gpt_oss_overrides",)),
        ("qwen3_moe", ("_qwen3_moe_family_overrides",)),
        ("qwen3_5", ("_qwen3_5_hybrid_overrides",)), ("nemotron_h", ("_nemotron_h_overrides",)),
        ("llama4", ("_llama4_overrides",)), ("olmo2", ("_olmo2_overrides",)),
    )),
    (f"{_SRT}/configs/model_config.py", (
        "piecewise_cuda_graph_disabled_model_archs",
        "multimodal_piecewise_cuda_graph_supported_model_archs",
        "multimodal_breakable_cuda_graph_supported_model_archs",
    )),
    (f"{_SRT}/model_executor/cuda_graph_config.py", ("CudaGraphConfig", "default_prefill_backend")),
)  # fmt: skip
#: Digests of those functions, of the releases they were read in.
_DIGESTS: dict[str, str] = {
    "0.5.3.post1": "3c3e9029abfe",
    "0.5.5": "8be7c1938ce7",
    "0.5.6.post2": "eb4ca4879cca",
    "0.5.7": "678ba0e5082b",
    "0.5.8": "70be9ead3318",
    "0.5.9": "04fe0a19fc69",
    "0.5.10": "44be4bd84891",
    "0.5.11": "f32146c359b5",
    "0.5.12.post1": "caaa41a2dd0c",
    "0.5.13.post1": "596bc5f7dad1",
    "0.5.14": "61a5573c2c83",
    "0.5.15.post1": "ddb6832bf5fd",
    "0.5.16": "5274826871a9",
    "0.5.17": "3088c73d9d97",
    "0.5.18": "437240acd023",
    "0.5.19": "64fc799a48e6",
    "0.5.20": "3e43f6e17a9e",
    "0.5.21": "1e7270c07c87",
    "0.5.22": "152ff5323941",
    "0.5.23": "588b1cffb7b9",
}


def model_types(architectures: Iterable[str]) -> tuple[str, ...]:
    """``model_type`` of checkpoints of some architectures, those that are known here."""
    return tuple(t for each in dict.fromkeys(architectures) for t in _TYPES.get(each, ()))


def digest(source: EngineSource) -> str:
    """Of all functions that the rules here were read in."""
    found = [
        f"{path}: {name} {fingerprint(source.node(path, name))}"
        for path, names in _READ
        for name in names
        if source.has(path, name)
    ]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


def check_read(source: EngineSource) -> list[Line]:
    """No line: that the rules below were read in this very release."""
    if _DIGESTS.get(source.version) != digest(source):
        names = ", ".join(n for path, names in _READ for n in names if source.has(path, n))
        raise source.unread(names, f"their digest {digest(source)} was not read")
    return []


def pages(source: EngineSource) -> list[Line]:
    """Tokens of a KV block: 1, and 64 where TensorRT-LLM's or the sparse attention runs."""
    number = release(source.version)
    place = f"{_ARGS}: _handle_attention_backend_compatibility, _handle_page_size"
    if number >= (0, 5, 15):
        place = f"{_GROUPS}/overrides.py: _page_size_default and page constraints of backends"
    sparse = _SPARSE if number >= (0, 5, 9) else ("deepseek_v32",)
    lines = [_page(64, "", sparse, f"{place}; sparse attention")]
    if number >= (0, 5, 5):
        paged = ("deepseek_v3", "kimi_k2", *(["kimi_k25"] if number >= (0, 5, 9) else []))
        lines.append(_page(64, SM100, paged, f"{place}; trtllm_mla"))
    if number < (0, 5, 6):
        named = ["gpt_oss", *(["llama4", "llama4_text", "olmo2"] if number >= (0, 5, 5) else [])]
        lines.append(_page(64, SM100, tuple(named), f"{place}; trtllm_mha"))
    else:
        single = [t for t in _LATENT if t not in ("deepseek_v3", "kimi_k2")]
        single += ["falcon_h1", "granitemoehybrid"]
        single += ["nemotron_h"] if number < (0, 5, 19) else []
        single += ["qwen3_next", *_QWEN35] if number < (0, 5, 14) else []
        lines.append(_page(1, SM100, tuple(single), f"{place}; flashinfer or triton"))
        lines.append(_page(64, SM100, (), f"{place}; trtllm_mha"))
    return [*lines, _page(1, "", (), place)]


def _page(tokens: int, gpu: str, models: tuple[str, ...], source: str) -> Line:
    return Line("block_size", gpu=gpu, models=models, value=str(tokens), source=source)


def overlap(source: EngineSource) -> list[Line]:
    """Planning ahead; not for recurrent states that the radix cache keeps without a buffer."""
    number = release(source.version)
    name = "disable_overlap_schedule"
    path = f"{_ARGS}: {name}"
    if number >= (0, 5, 20):
        path = f"{_GROUPS}/fields/schedule.py: {name}"
    lines = []
    if (0, 5, 6) <= number < (0, 5, 14):
        hybrids = ["qwen3_next", "nemotron_h", "falcon_h1"]
        hybrids += [*_QWEN35, "granitemoehybrid"] if number >= (0, 5, 9) else []
        lines.append(
            Line(
                "async_scheduling", models=tuple(hybrids), value="no",
                source=f"{_ARGS}: mamba states without an extra buffer, under the radix cache",
            )
        )  # fmt: skip
    return [*lines, Line("async_scheduling", value="yes", source=path)]


def expert_kernels(source: EngineSource) -> list[Line]:
    """Kernels of experts in fp8: TensorRT-LLM's for some on SM100, else Triton's."""
    number = release(source.version)
    place = f"{_ARGS}: _handle_model_specific_adjustments"
    if number >= (0, 5, 15):
        place = f"{_GROUPS}/overrides.py: moe_runner_backend"
    named: list[str] = []
    if number >= (0, 5, 5):
        named += ["deepseek_v3", "kimi_k2", "llama4", "llama4_text"]
    if number >= (0, 5, 6):
        named += ["deepseek_v32", "qwen3_moe", "qwen3_vl_moe", "qwen3_next"]
    if number >= (0, 5, 9):
        named += ["kimi_k25", "glm_moe_dsa", *_QWEN35]
    auto = f"{_SRT}/layers/quantization/fp8.py: Fp8MoEMethod.create_moe_runner"
    lines = [
        Line("moe_backend", gpu=SM100, models=("gpt_oss",), value="flashinfer_mxfp4", source=place)
    ]
    if named:
        lines.append(
            Line("moe_backend", gpu=SM100, models=tuple(named), value="flashinfer_trtllm",
                 source=place)
        )  # fmt: skip
    lines.append(Line("moe_backend", gpu=SM100, value="triton", source=f"{auto}: auto of fp8"))
    return [*lines, Line("moe_backend", value="auto", source=f"{auto}: Triton without DeepEP")]


def prompt_graphs(source: EngineSource) -> list[Line]:
    """Prompt tokens of the largest graph with prompts: none, a number, or a whole chunk."""
    number = release(source.version)
    flag, config = "prompt_graph_tokens", f"{_SRT}/configs/model_config.py"
    if number < (0, 5, 10):
        name = "enable_piecewise_cuda_graph"
        return [Line(flag, value="0", source=f"{_ARGS}: {name} is off")]
    memory = f"{_ARGS}: _handle_gpu_memory_settings"
    if number >= (0, 5, 19):
        memory = f"{_GROUPS}/memory_hook.py: handle_gpu_memory_settings"
    latent, sparse = [*_LATENT], list(_SPARSE)
    off = [*_IMAGES]
    off += [] if number >= (0, 5, 16) else [*_QWEN35, "kimi_k25"]
    where = f"{config}: is_multimodal"
    if number < (0, 5, 15):
        off += ["qwen3_next"]
        if number < (0, 5, 13):
            off, sparse = [*off, *_SPARSE], []
        where += ", piecewise_cuda_graph_disabled_model_archs"
        rule = f"{_ARGS}: piecewise CUDA graphs"
    else:
        rule = "disable_breakable_cudagraph_if_incompatible"
        rule = f"{_GROUPS}/cuda_graph_hook.py: {rule}" if number >= (0, 5, 19) else (
            f"{_ARGS}: {rule}"
        )  # fmt: skip
    if (0, 5, 15) <= number < (0, 5, 18):
        off, latent = [*off, *latent], []
        if number < (0, 5, 17):
            off, sparse = [*off, *sparse], []
        else:
            off.append("nemotron_h")
    if number >= (0, 5, 20):
        off.append("kimi_linear")
    lines = [Line(flag, models=tuple(off), value="0", source=f"{rule}; {where}")]
    if number >= (0, 5, 18):
        lines.append(
            Line(flag, gpu=SM100, models=("deepseek_v3", "kimi_k2"), value="0",
                 source="disable_prefill_cuda_graph_for_deepseek_trtllm_mla")
        )  # fmt: skip
    capped = [t for t in (*latent, *sparse) if t not in off]
    capped += ["kimi_k25"] if number >= (0, 5, 16) else []
    most = "8192" if number >= (0, 5, 23) else "2048"
    if capped:
        lines.append(Line(flag, models=tuple(capped), value=most, source=f"{memory}; MLA"))
    return [*lines, Line(flag, value="chunk", source=memory)]


MODEL_READERS = (check_read, pages, overlap, expert_kernels, prompt_graphs)
