"""Number formats, and what configurations of quantization call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pinn.errors import PinnError

# Number formats of weights and caches: how many bytes they take and which math units run them.

#: Of an element of what passes between kernels: activations are 16 bits wide.
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class Precision:
    """A storage format of weights or of the KV cache.

    Attributes:
        name: Key in ``PRECISIONS``.
        bytes_per_weight: Storage per element, scales included (one scale per block).
        math: Tensor-core rate that the format can use at best: ``bf16``, ``fp8``, ``int8`` or
            ``fp4``. Weight-only formats are dequantized and run at the bf16 rate.
        dynamic_activations: Whether each step quantizes its activations first (extra kernels).
    """

    name: str
    bytes_per_weight: float
    math: str
    dynamic_activations: bool = False

    @property
    def static_activations(self) -> bool:
        """Whether activations are scaled by factors that the checkpoint holds."""
        return self.math == "fp8" and not self.dynamic_activations


#: fp8 scales activations by what they are in each step, fp8_static by factors of the checkpoint,
#: which the kernels before a multiplication apply. Block scales: fp8_block has a fp32 scale per
#: 128 x 128, int4 an fp16 scale per group of 128 (or 32 at worst), mxfp4 an 8-bit scale per 32 (OCP
#: MX specification 1.0), nvfp4 an fp8 scale per 16. mxfp4 multiplies 16-bit activations, at the
#: 16-bit rate at best: ``w4a16_mxfp4`` of aiconfigurator-core 0.12.0 (``moe_perf``) reaches at most
#: 625 TFLOP/s on B200 in vLLM 0.24.0 and SGLang 0.5.14, whose mxfp8 reaches 2,490. mxfp4_mxfp8 is
#: an mxfp4 checkpoint served with mxfp8 activations, which multiply at the 8-bit rate
#: (vLLM's VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8).
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", 4.0, "bf16"),
        Precision("bf16", 2.0, "bf16"),
        Precision("fp16", 2.0, "bf16"),
        Precision("fp8", 1.0, "fp8", dynamic_activations=True),
        Precision("fp8_static", 1.0, "fp8"),
        Precision("fp8_block", 1.0 + 4 / 128**2, "fp8", dynamic_activations=True),
        Precision("int8", 1.0, "int8", dynamic_activations=True),
        Precision("int8_wo", 1.0 + 2 / 128, "bf16"),
        Precision("int4_wo", 0.5 + 2 / 128, "bf16"),
        Precision("mxfp4", 0.5 + 1 / 32, "bf16"),
        Precision("mxfp4_mxfp8", 0.5 + 1 / 32, "fp8", dynamic_activations=True),
        Precision("nvfp4", 0.5 + 1 / 16, "fp4", dynamic_activations=True),
    )
}


def precision(name: str) -> Precision:
    """Look a format up by name.

    Raises:
        PinnError: If the name is not a key of ``PRECISIONS``.

    >>> precision("fp8").bytes_per_weight
    1.0
    """
    if name not in PRECISIONS:
        raise PinnError(f"unknown precision {name!r}: known ones are {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


# From the wording of a quantization config to a ``Precision``, method by method.

KNOWN_SCHEMES = (
    "fp8 (per tensor or in blocks)",
    "compressed-tensors (fp8, int8, int4, mxfp4, nvfp4)",
    "gptq and awq (4 or 8 bits)",
    "mxfp4",
    "modelopt (FP8, NVFP4)",
)
_WEIGHT_ONLY_METHODS = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "moe_wna16", "auto-round", "inc"}
)
_MODELOPT_FORMATS = {
    "FP8": "fp8_static",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
}


def unknown_scheme(scheme: str, source: str) -> NoReturn:
    """Refuse a scheme.

    Raises:
        PinnError: Always; it names the known schemes and the flag that replaces this one.
    """
    raise PinnError(
        f"{source}: unknown quantization {scheme}: known ones are {', '.join(KNOWN_SCHEMES)}; "
        f"or give --quantization, one of {', '.join(PRECISIONS)}"
    )


def method_format(config: Mapping[str, Any], source: str) -> Precision:
    """The one format of a checkpoint that has a single one (all but compressed-tensors).

    Raises:
        PinnError: If the method, or the bits it asks for, are unknown.
    """
    method = method_name(config)
    if method.startswith("modelopt"):
        algorithm = str(config.get("quant_algo") or "").upper()
        if algorithm not in _MODELOPT_FORMATS:
            unknown_scheme(f"modelopt {algorithm}", source)
        return precision(_MODELOPT_FORMATS[algorithm])
    if method in ("fp8", "fbgemm_fp8"):
        if _has_blocks(config, source):
            return precision("fp8_block")
        return precision("fp8_static" if config.get("activation_scheme") == "static" else "fp8")
    if method == "mxfp4":
        return precision("mxfp4")
    if method not in _WEIGHT_ONLY_METHODS:
        unknown_scheme(method or "without a quant_method", source)
    bits = str(config.get("bits", config.get("w_bit")))  # written as 4 or as "4"
    if bits not in ("4", "8"):
        unknown_scheme(f"{method} with {bits} bits", source)
    return precision(f"int{bits}_wo")


def _has_blocks(config: Mapping[str, Any], source: str) -> bool:
    """Whether scales belong to blocks of weights.

    Raises:
        PinnError: If the block is not two positive whole numbers.
    """
    block = config.get("weight_block_size")
    if block is None:
        return False
    sizes = block if isinstance(block, list) and len(block) == 2 else [0]
    if any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
        raise PinnError(
            f"{source}: weight_block_size must be two positive whole numbers such as [128, 128], "
            f"got {block!r:.60}"
        )
    return True


def method_name(config: Mapping[str, Any]) -> str:
    """The method in vLLM's spelling; ModelOpt's where only its ``quant_algo`` is given."""
    method = str(config.get("quant_method") or "").lower().replace("_tensors", "-tensors")
    return "modelopt" if not method and config.get("quant_algo") else method


def compressed_format(group: Mapping[str, Any], source: str) -> Precision:
    """The format of one of compressed-tensors' ``config_groups``.

    Raises:
        PinnError: If the weights have no format that is known here.
    """
    weights = group.get("weights") or {}
    if not isinstance(weights, Mapping):
        raise PinnError(f"{source}: weights must be a JSON object, got {weights!r:.60}")
    kind, bits = weights.get("type"), weights.get("num_bits")
    size, quantized_inputs = weights.get("group_size"), bool(group.get("input_activations"))
    if kind == "float" and bits == 8 and quantized_inputs:
        if weights.get("strategy") == "block":
            return precision("fp8_block")
        return precision("fp8_static" if _static_inputs(group) else "fp8")
    if kind == "float" and bits == 4 and size == 32:
        return precision("mxfp4")
    if kind == "float" and bits == 4 and size == 16 and quantized_inputs:
        return precision("nvfp4")
    if kind == "int" and bits == 8:
        return precision("int8" if quantized_inputs else "int8_wo")
    if kind == "int" and bits == 4 and not quantized_inputs:
        return precision("int4_wo")
    inputs = "quantized" if quantized_inputs else "16-bit"
    unknown_scheme(
        f"compressed-tensors {kind} of {bits} bits in groups of {size} with {inputs} inputs",
        source,
    )


def _static_inputs(group: Mapping[str, Any]) -> bool:
    """Whether inputs are scaled by factors of the checkpoint; compressed-tensors' own default."""
    inputs = group["input_activations"]
    return not (isinstance(inputs, Mapping) and inputs.get("dynamic"))


def is_fp8_cache(scheme: Any) -> bool:
    """Whether a ``kv_cache_scheme`` or ``kv_cache_quant_algo`` means an fp8 cache."""
    if isinstance(scheme, Mapping):
        return scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    return isinstance(scheme, str) and scheme.lower().startswith("fp8")
