"""BLIS's reading of a model's config.json and of its hardware file, with its refusals."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blis_engine.refused import RefusedError
from blis_engine.specification import read_specification

_EXPERTS = (
    "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts", "num_routed_experts",
)  # fmt: skip
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_heads")
_DTYPE_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "fp8": 1, "int4": 1, "nf4": 1,
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """Fields of BLIS's sim.ModelConfig, as GetModelConfigFromHF fills it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    act: str
    tied: bool
    intermediate: int
    interleave: int
    dense_intermediate: int
    experts: int
    top_k: int
    expert_width: int
    shared_width: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    activation_bytes: float
    weight_bytes: float


def read_model(config: dict[str, Any], model_name: str) -> ModelConfig:
    """Return a model as BLIS's GetModelConfigFromHF reads it."""
    config = config | config.get("text_config", {})
    activation = float(_DTYPE_BYTES.get(config.get("torch_dtype") or config.get("dtype"), 0))
    width = config.get("intermediate_size") or config.get("ffn_hidden_size") or 0
    experts = next((config[k] for k in _EXPERTS if config.get(k, 0) >= 2), 0)
    expert_width = config.get("moe_intermediate_size") or width
    shared = config.get("shared_expert_intermediate_size")
    if shared is None:
        shared = config.get("n_shared_experts", 0) * expert_width
    return ModelConfig(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=next(config[key] for key in _KV_HEADS if config.get(key)),
        head_dim=config.get("head_dim", 0),
        vocab=config.get("vocab_size", 0),
        act=config.get("hidden_act", ""),
        tied=config.get("tie_word_embeddings", False),
        intermediate=width,
        interleave=config.get("interleave_moe_layer_step", 0),
        dense_intermediate=config.get("intermediate_size_mlp", width),
        experts=experts,
        top_k=config.get("num_experts_per_tok", 0),
        expert_width=expert_width,
        shared_width=shared,
        kv_lora_rank=config.get("kv_lora_rank", 0),
        qk_rope_head_dim=config.get("qk_rope_head_dim", 0),
        activation_bytes=activation,
        weight_bytes=_weight_bytes(config.get("quantization_config"), model_name) or activation,
    )


def _weight_bytes(quantization: dict[str, Any] | None, model_name: str) -> float:
    if quantization:
        if quantization.get("bits"):
            return float(quantization["bits"]) / 8
        if quantization.get("quant_method") == "fp8":
            return 1.0
        for group in quantization.get("config_groups", {}).values():
            return float(group["weights"]["num_bits"]) / 8
    parts = re.split(r"[._/-]", model_name.lower())
    for part in parts:
        found = re.fullmatch(r"w(\d+)a16", part)
        if found:
            return int(found[1]) / 8
    return 1.0 if "fp8" in parts else 0.0


def check(m: ModelConfig, tp: int, dp: int, blocks_given: bool) -> None:
    """Raise the errors that end BLIS before it simulates, except for memory (``kv_blocks``).

    Raises:
        RefusedError: If BLIS would end; the message has BLIS's words.
    """
    if dp > 1 and not m.experts:
        raise RefusedError("dp > 1 on a dense model")
    if min(m.head_dim, m.kv_lora_rank, m.qk_rope_head_dim) < 0:
        raise RefusedError("negative head_dim or MLA keys")
    if not blocks_given:
        _check_capacity(m, tp)
    sizes = (m.layers, m.hidden, m.heads, m.kv_heads, m.intermediate, m.activation_bytes)
    if min(sizes) <= 0:
        raise RefusedError(f"panic: a size is 0: {sizes}")
    for name, heads in (("NumHeads", m.heads), ("NumKVHeads", m.kv_heads)):
        if heads % tp:
            raise RefusedError(f"panic: {name} ({heads}) must be divisible by TP ({tp})")
    if m.experts and not m.top_k:
        raise RefusedError("panic: experts without num_experts_per_tok")


def _check_capacity(m: ModelConfig, tp: int) -> None:
    if not m.weight_bytes > 0:
        raise RefusedError(
            f"precision (BytesPerParam) must be a valid positive number, got {m.weight_bytes}"
        )
    if m.act not in ("silu", "swiglu", "geglu", "situ", ""):
        raise RefusedError(f"unsupported activation {m.act}")
    if m.vocab <= 0 or m.intermediate <= 0:
        raise RefusedError("vocab_size and intermediate_dim must be > 0")
    if not m.head_dim and m.hidden % m.heads:
        raise RefusedError("hidden_dim must be evenly divisible by num_attention_heads")
    if m.kv_heads >= tp and m.kv_heads % tp:
        raise RefusedError("num_kv_heads must be evenly divisible by TP")


@dataclass(frozen=True)
class Inputs:
    """All that BLIS reads of a command line.

    Attributes:
        flags: Flags as of ``flags.parse``.
        model: Model from its config.json.
        hardware: Entry of the hardware file.
        alpha: Alpha coefficients.
        beta: Beta coefficients.
    """

    flags: argparse.Namespace
    model: ModelConfig
    hardware: dict[str, float]
    alpha: list[float]
    beta: list[float]


def read_inputs(flags: argparse.Namespace) -> Inputs:
    """Return the inputs as BLIS's resolveLatencyConfig reads them for trained-physics.

    Raises:
        RefusedError: If BLIS would end.
    """
    defaults = Path(flags.defaults_filepath or "defaults.yaml")
    if not defaults.is_file():
        raise RefusedError(f"{defaults} does not exist")
    found = yaml.safe_load(defaults.read_text())
    if unknown := set(found) - {"trained_physics_coefficients", "defaults", "workloads"}:
        raise RefusedError(f"unknown keys {unknown}")
    coefficients = found["trained_physics_coefficients"]
    hardware_file = Path(flags.hardware_config or defaults.parent / "hardware_config.json")
    gpus = json.loads(hardware_file.read_text())
    if flags.hardware not in gpus:
        raise RefusedError(f'GPU "{flags.hardware}" not found')
    name = flags.model.lower()
    folder = flags.model_config_folder
    if folder is None:
        folder = defaults.parent / "model_configs" / name.split("/", 1)[-1]
    model = read_model(json.loads((Path(folder) / "config.json").read_text()), name)
    check(model, flags.tp, flags.dp, flags.total_kv_blocks is not None)
    if flags.workload_spec is not None:
        read_specification(Path(flags.workload_spec))
    given = [getattr(flags, f"{name}_coeffs") for name in ("alpha", "beta")]
    if (given[0] is None) != (given[1] is None):
        raise RefusedError("alpha or beta alone")
    alpha, beta = coefficients["alpha_coeffs"], coefficients["beta_coeffs"]
    if given[0] is not None:
        alpha, beta = ([float(x) for x in text.split(",")] for text in given)
    if len(alpha) < 3 or len(beta) < 7 or min(*alpha, *beta) < 0:
        raise RefusedError("panic: coefficients")
    return Inputs(flags, model, gpus[flags.hardware], alpha, beta)


def kv_blocks(m: ModelConfig, memory_gib: float, flags: argparse.Namespace) -> int:
    """Return the blocks of CalculateKVBlocks, for a config with its experts' widths.

    Raises:
        RefusedError: If weights and overhead exceed the memory.
    """
    tp, moe, size = flags.tp, m.experts > 0, flags.block_size_in_tokens
    kv_width = 2 * m.kv_heads * m.head_dim
    mlp = 3 * m.hidden * m.intermediate
    if moe:
        mlp = 3 * m.hidden * (m.expert_width * m.experts + m.shared_width) + m.experts * m.hidden
    per_layer = m.hidden * (2 * m.hidden + kv_width) + 2 * m.hidden + mlp
    embeddings = m.vocab * m.hidden * (1 if m.tied else 2) + m.hidden
    weights = m.weight_bytes * (embeddings + m.layers * per_layer) / 2**30
    overhead = weights + (8 if moe else 5.5) + tp * (0.15 if tp == 1 else 0.6)
    left = memory_gib * flags.gpu_memory_utilization * tp - overhead
    if left <= 0:
        raise RefusedError(f"model overhead ({overhead:.0f} GiB) exceeds available GPU memory")
    block = int(size * m.layers * kv_width * m.activation_bytes / tp)
    if m.kv_lora_rank:
        block = int(size * m.layers * (m.kv_lora_rank + m.qk_rope_head_dim) * m.activation_bytes)
    return int(left * 2**30) // block * (flags.dp if moe else 1)
