"""Which weights of a model are quantized, and how."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import NoReturn

from pinn.errors import PinnError
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerPart, Mixer, MoeFfnSpec
from pinn.specs.precision import PRECISIONS, Precision, precision

# Names of weight matrices in checkpoints, and the patterns by which quantizers select them.

KINDS = ("attention", "dense_ffn", "experts", "shared_experts")
#: One matrix under every name that a checkpoint may give it.
Aliases = tuple[str, ...]

_HOLDERS = ("model.", "language_model.model.", "model.language_model.", "")
_PREFIXES = tuple(f"{holder}layers." for holder in _HOLDERS)
#: Repeats without an upper bound, and groups that hold one and are repeated themselves.
_REPEATS = re.compile(r"(?<!\\)(?:[*+]|\{\d*,?\d*\})")
_NESTED_REPEATS = re.compile(r"(?<!\\)[*+}]\??[^()]*\)+(?:[*+]|\{)")
_MOST_REPEATS = 6
#: A recurrent mixer's wide matrices; narrow ones (gates, steps) do not decide a format.
_LINEAR_PROJECTIONS = (
    ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mixer.in_proj", "mamba.in_proj",
     "self_attn.q_proj", "self_attn.qkv_proj"),
    ("linear_attn.out_proj", "mixer.out_proj", "mamba.out_proj", "self_attn.o_proj",
     "self_attn.out_proj"),
)  # fmt: skip
_FFN = ("mlp", "feed_forward", "block_sparse_moe", "ffn")
_PROJECTIONS = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))


def module_names(parts: Sequence[LayerPart]) -> dict[str, list[Aliases]]:
    """The matrices of each kind of weight over all layers; one expert stands for all."""
    names: dict[str, list[Aliases]] = {kind: [] for kind in KINDS}
    for layer, mixer, ffn in parts:
        if isinstance(mixer, LinearMixerSpec):
            for suffixes in _LINEAR_PROJECTIONS:
                names["attention"].append(_aliases(layer, suffixes))
        elif mixer is not None:
            for projection in _attention_projections(mixer):
                names["attention"].append(_aliases(layer, (f"self_attn.{projection}",)))
        for projections in _PROJECTIONS if ffn is not None else ():
            if not isinstance(ffn, MoeFfnSpec):
                names["dense_ffn"].append(_ffn_aliases(layer, ("",), projections))
                continue
            names["experts"].append(_ffn_aliases(layer, (".experts.0",), projections))
            if ffn.shared_width:
                shared = (".shared_expert", ".shared_experts")
                names["shared_experts"].append(_ffn_aliases(layer, shared, projections))
    return names


def _attention_projections(attention: Mixer) -> tuple[str, ...]:
    if not isinstance(attention, LatentAttentionSpec):
        return ("q_proj", "k_proj", "v_proj", "o_proj")
    query = ("q_proj",) if attention.q_lora_rank is None else ("q_a_proj", "q_b_proj")
    return (*query, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


def _ffn_aliases(layer: int, infixes: Iterable[str], projections: Iterable[str]) -> Aliases:
    return _aliases(layer, (f"{f}{i}.{p}" for f in _FFN for i in infixes for p in projections))


def _aliases(layer: int, suffixes: Iterable[str]) -> Aliases:
    return tuple(f"{prefix}{layer}.{suffix}" for suffix in suffixes for prefix in _PREFIXES)


class ModulePatterns:
    """Selects matrices by the notations of compressed-tensors, ModelOpt, AWQ, GPTQ and fp8 lists.

    - ``re:PATTERN`` matches from the start of the name.
    - ``*`` and ``?`` are wildcards, and what lies below a match matches too.
    - Anything else is a run of whole dotted components: ``self_attn``, ``layers.3.mlp`` or a full
      name. ``gate`` is thus the router and not ``gate_proj``.
    - ``Linear`` is every matrix.
    """

    def __init__(self, patterns: Iterable[str], source: str) -> None:
        texts = tuple(patterns)
        plain = [text for text in texts if not text.startswith("re:")]
        self._wildcards = [text for text in plain if set(text) & set("*?")]
        self._regular = [_compiled(text, source) for text in texts if text.startswith("re:")]
        #: How many of the patterns are regular expressions or hold wildcards.
        self.expressions = len(self._wildcards) + len(self._regular)
        self._runs = frozenset(text.strip(".") for text in plain)
        self._starts = frozenset(run.split(".")[0] for run in self._runs)

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        """Lists hold a wildcard per layer: one expression for all of them is ten times as quick."""
        below = "|".join(translate(name) for w in self._wildcards for name in (w, f"{w}.*"))
        return [*([re.compile(below)] if below else []), *self._regular]

    def match(self, aliases: Aliases) -> bool:
        """Whether a matrix is selected under any of its names."""
        if not self._runs and not self._regular:
            return False
        return "Linear" in self._runs or any(self._match_name(name) for name in aliases)

    def _match_name(self, name: str) -> bool:
        parts = name.split(".")
        if not self._starts.isdisjoint(parts) and self._holds_run(parts):
            return True
        return any(expression.match(name) for expression in self._expressions)

    def _holds_run(self, parts: Sequence[str]) -> bool:
        return any(
            ".".join(parts[i:j]) in self._runs
            for i, part in enumerate(parts)
            if part in self._starts
            for j in range(i + 1, len(parts) + 1)
        )


def _compiled(pattern: str, source: str) -> re.Pattern[str]:
    """An expression that is quick to match: no repeat inside a repeat, and not many of them."""
    if len(_REPEATS.findall(pattern)) > _MOST_REPEATS or _NESTED_REPEATS.search(pattern):
        fault = f"repeats more than {_MOST_REPEATS} parts, or repeats a repeated part"
        remedy = "write one that is quick to match"
        raise PinnError(f"{source}: the expression {pattern!r:.80} {fault}: {remedy}")
    try:
        return re.compile(pattern.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        fault, remedy = f"is no regular expression ({error})", "correct the quantization config"
        raise PinnError(f"{source}: {pattern!r} {fault}: {remedy}") from error


# From the wording of a quantization config to a ``Precision``, method by method.

_WEIGHT_ONLY_METHODS = frozenset(
    {"awq", "awq_marlin", "gptq", "gptq_marlin", "moe_wna16", "auto-round", "inc"}
)
_MODELOPT_FORMATS = {
    "FP8": "fp8_static", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
}  # fmt: skip


def unknown_scheme(scheme: str, source: str) -> NoReturn:
    """Refuse a scheme.

    Raises:
        PinnError: Always; it names the known schemes and the flag that replaces this one.
    """
    raise PinnError(
        f"{source}: unknown quantization {scheme}: known ones are fp8 (per tensor or in blocks), "
        "compressed-tensors (fp8, int8, int4, mxfp4, nvfp4), gptq and awq (4 or 8 bits), mxfp4, "
        f"modelopt (FP8, NVFP4); or give --quantization, one of {', '.join(PRECISIONS)}"
    )


def method_format(config: Mapping[str, object], source: str) -> Precision:
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


def _has_blocks(config: Mapping[str, object], source: str) -> bool:
    """Whether scales belong to blocks of weights.

    Raises:
        PinnError: If the block is not two positive whole numbers.
    """
    block = config.get("weight_block_size")
    sizes = block if isinstance(block, list) and len(block) == 2 else [0]
    if block is not None and any(type(size) is not int or size < 1 for size in sizes):
        rule = "must be two positive whole numbers such as [128, 128]"
        raise PinnError(f"{source}: weight_block_size {rule}, got {block!r:.60}")
    return block is not None


def method_name(config: Mapping[str, object]) -> str:
    """The method in vLLM's spelling; ModelOpt's where only its ``quant_algo`` is given."""
    method = str(config.get("quant_method") or "").lower().replace("_tensors", "-tensors")
    return "modelopt" if not method and config.get("quant_algo") else method


def compressed_format(group: Mapping[str, object], source: str) -> Precision:
    """The format of one of compressed-tensors' ``config_groups``.

    Raises:
        PinnError: If the weights have no format that is known here.
    """
    weights = group.get("weights") or {}
    if not isinstance(weights, Mapping):
        raise PinnError(f"{source}: weights must be a JSON object, got {weights!r:.60}")
    kind, bits = weights.get("type"), weights.get("num_bits")
    size, inputs = weights.get("group_size"), group.get("input_activations")
    if kind == "float" and bits == 8 and inputs:
        if weights.get("strategy") == "block":
            return precision("fp8_block")
        # Compressed-tensors' own default are factors of the checkpoint.
        is_dynamic = isinstance(inputs, Mapping) and inputs.get("dynamic")
        return precision("fp8" if is_dynamic else "fp8_static")
    if kind == "float" and bits == 4 and size == 32:
        return precision("mxfp4")
    if kind == "float" and bits == 4 and size == 16 and inputs:
        return precision("nvfp4")
    if kind == "int" and bits == 8:
        return precision("int8" if inputs else "int8_wo")
    if kind == "int" and bits == 4 and not inputs:
        return precision("int4_wo")
    asked = f"{kind} of {bits} bits in groups of {size}"
    form = "quantized" if inputs else "16-bit"
    unknown_scheme(f"compressed-tensors {asked} with {form} inputs", source)


# The quantization of a checkpoint: which matrices are stored in which format.
#
# Reads what vLLM 0.15.1 reads (``vllm/model_executor/layers/quantization``). In every method
# vLLM leaves the router and, but for GPTQ's ``lm_head`` flag, the output head in the model's own
# format.

#: Formats, and the matrices each applies to.
Groups = tuple[tuple[ModulePatterns, Precision], ...]


@dataclass(frozen=True)
class Quantization:
    """What a checkpoint's quantization config says.

    Attributes:
        groups: The first whose matrices match counts.
        ignored: Matrices left in the model's own format.
        experts_only: Whether nothing but routed experts is quantized.
        lm_head: Format of the output head where the checkpoint quantizes it.
        kv_cache: Format of the KV cache where the checkpoint asks for one.
    """

    groups: Groups
    ignored: ModulePatterns
    experts_only: bool = False
    lm_head: Precision | None = None
    kv_cache: Precision | None = None

    @property
    def expressions(self) -> int:
        """Regular expressions that every matrix is held against."""
        return sum(p.expressions for p in (self.ignored, *(targets for targets, _ in self.groups)))

    def of_kind(self, kind: str, modules: list[Aliases], base: Precision) -> Precision:
        """The format of most matrices of a kind, which counts for the kind as a whole.

        Checkpoints that split a kind leave single layers out (the first, dense ones), or all of
        latent attention but its output (DeepSeek-V3.1-NVFP4).
        """
        if self.experts_only and kind != "experts":
            return base
        groups = ((self.ignored, base), *self.groups)
        formats = [
            next((form for targets, form in groups if targets.match(names)), base)
            for names in modules
        ]
        return max(formats, key=formats.count, default=base)


def read_quantization(
    config: Mapping[str, object], source: str, fallback: str | None = None
) -> Quantization:
    """Read a ``quantization_config`` or the content of a ``hf_quant_config.json``.

    Args:
        config: The JSON object.
        source: Name of the file for error messages.
        fallback: A key of ``PRECISIONS`` to take, with a warning, where the scheme is unknown.

    Raises:
        PinnError: If the scheme is unknown and there is no fallback.
    """
    inner = config.get("quantization")
    merged = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    try:
        groups = _groups(merged, source)
    except PinnError as error:
        if fallback is None:
            raise
        warnings.warn(f"{error}; taking {fallback} for all linear layers", stacklevel=2)
        groups = ((ModulePatterns(("Linear",), source), precision(fallback)),)
    return Quantization(
        groups=groups,
        ignored=ModulePatterns(_ignored(merged, source), source),
        # vLLM's Mxfp4Config implements no linear layers, only experts.
        experts_only=method_name(merged) == "mxfp4",
        lm_head=groups[0][1] if merged.get("lm_head") is True else None,
        kv_cache=_kv_cache(merged, source),
    )


def _groups(config: Mapping[str, object], source: str) -> Groups:
    if method_name(config) != "compressed-tensors":
        return ((ModulePatterns(("Linear",), source), method_format(config, source)),)
    groups = []
    found = config.get("config_groups") or {}
    if not isinstance(found, Mapping) or not all(isinstance(g, Mapping) for g in found.values()):
        rule = "must map names to JSON objects"
        raise PinnError(f"{source}: config_groups {rule}, got {found!r:.60}")
    for group in found.values():
        targets = _texts(group, "targets", source) or ["Linear"]
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # the KV cache's scales, not weights
        groups.append((ModulePatterns(targets, source), compressed_format(group, source)))
    if not groups:
        unknown_scheme("compressed-tensors without config_groups", source)
    # A layer's own name goes before the class name "Linear" (find_matched_target in vLLM).
    return tuple(sorted(groups, key=lambda group: group[0].match(())))


def _ignored(config: Mapping[str, object], source: str) -> list[str]:
    keys = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    listed = [entry for key in keys for entry in _texts(config, key, source)]
    dynamic = config.get("dynamic")  # GPTQModel: "-:REGEX" leaves matching matrices out
    if isinstance(dynamic, Mapping):
        listed += [f"re:{key[2:]}" for key in dynamic if key.startswith("-:")]
    return listed


def _texts(config: Mapping[str, object], key: str, source: str) -> list[str]:
    """A list of names; empty where the key is absent or null.

    Raises:
        PinnError: If it is no list.
    """
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        raise PinnError(f"{source}: {key} must be a list of modules, got {value!r:.60}")
    return [str(entry) for entry in value or ()]


def _kv_cache(config: Mapping[str, object], source: str) -> Precision | None:
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if not scheme or scheme == "auto":
        return None
    if isinstance(scheme, Mapping):
        is_fp8 = scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    else:
        is_fp8 = isinstance(scheme, str) and scheme.lower().startswith("fp8")
    if is_fp8:
        return precision("fp8")
    unknown = f"{source}: unknown KV cache format {scheme!r}"
    warnings.warn(f"{unknown}; like vLLM, keeping the model's own", stacklevel=2)
    return None
