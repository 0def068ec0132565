"""Variants of a model: its weights in other number formats, and names that imply a format."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pinn.errors import PinnError, RefusedError
from pinn.specs.config_fields import inverted, is_type, models_file
from pinn.specs.model import ModelSpec, WeightPrecisions
from pinn.specs.model_names import find_in_catalog, published_generation
from pinn.specs.precision import PRECISIONS, Precision, precision
from pinn.specs.quantization_block import quantization_words

# Precision labels (such as ``fp8``), and the types of weights quantized under each label.
#
# Formats in published checkpoints, read from their quantization configs (lm_head and routers are
# bf16 in all):
#
# ======================================  ==========  ===========  =======  ======  ========
# checkpoint                              attention   dense layers shared   experts KV cache
# ======================================  ==========  ===========  =======  ======  ========
# nvidia Llama-3.1-70B-FP8                fp8_static  fp8_static   -        -       fp8
# Qwen3-32B-FP8, Qwen3-235B-A22B-FP8,     fp8_block   fp8_block    -        same    bf16
# MiniMax-M2.5 DeepSeek-V3, R1, Kimi-K2-Instruct       fp8_block   fp8_block    same     same
# bf16 RedHatAI Llama-4-Scout-FP8-dynamic      bf16        -            fp8      fp8     bf16 nvidia
# Qwen3-235B-A22B-NVFP4            nvfp4       -            -        nvfp4   fp8 nvidia
# MiniMax-M2.5-NVFP4, -M2.7-NVFP4  bf16        -            -        nvfp4   fp8 nvidia
# Kimi-K2.5-NVFP4                  bf16        nvfp4        nvfp4    nvfp4   fp8 nvidia
# Kimi-K2.6-NVFP4, -K2.7-NVFP4     bf16        bf16         bf16     nvfp4   fp8 nvidia
# DeepSeek-V3.1-NVFP4              bf16 but    nvfp4        nvfp4    nvfp4   fp8
#                                         o_proj
# moonshotai Kimi-K2.5 (int4)             bf16        bf16         bf16     int4    bf16 openai
# gpt-oss (mxfp4)                  bf16        -            -        mxfp4   bf16
# ======================================  ==========  ===========  =======  ======  ========

#: Number format of each precision label; most labels are the format's own name.
SCHEMES: dict[str, str] = {
    **{name: name for name in PRECISIONS if name != "fp32"}, "int4": "int4_wo", "fp4": "nvfp4",
}  # fmt: skip
_WIDE = frozenset({"fp32", "bf16", "fp16"})
_FP8 = frozenset({"fp8", "fp8_static", "fp8_block"})
_EXPERTS_ONLY = frozenset({"mxfp4", "mxfp4_mxfp8"})
#: Value of ``--quantization`` that preserves the checkpoint's formats.
_UNSAID = "none"


def label_of(text: str) -> str:
    """Return the precision label for a value of ``--quantization``; other text is unchanged.

    >>> label_of("fp8_per_block"), label_of("compressed-tensors")
    ('fp8_block', 'compressed-tensors')
    """
    return str(quantization_words("flag_formats").get(text, text))


def format_of(text: str) -> str | None:
    """Return the precision label or quantization method that a value of ``--quantization`` names.

    None is returned for ``none``.

    Raises:
        PinnError: If the value is unknown.
    """
    methods, label = quantization_words("flag_methods"), label_of(text)
    if text not in methods and text != _UNSAID and label not in SCHEMES:
        known = (*SCHEMES, *quantization_words("flag_formats"), *methods)
        close = difflib.get_close_matches(text.lower(), known, n=1, cutoff=0.75)
        remedy = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
        raise PinnError(f"the number format {text!r} is unknown: {remedy}")
    return None if text == _UNSAID else label


def fallback_of(text: str) -> str | None:
    """Return the number format to assume for unknown checkpoints under ``--quantization``."""
    methods = quantization_words("flag_methods")
    return SCHEMES.get(label_of(methods.get(text) or text))


def _label_for(model: ModelSpec, text: str) -> str | None:
    """Return the precision label to apply to a model; None to keep its checkpoint's formats.

    Raises:
        PinnError: If the value names a quantization method that the checkpoint does not use.
    """
    methods = quantization_words("flag_methods")
    if text not in methods:
        return None if text == _UNSAID else label_of(text)
    if _quantized_formats(model):
        return None
    if methods[text] is None:
        fault = f"{model.name} has no quantization config, so its weights have 16 bits"
        remedy = "give a model with a quantized checkpoint, or a format such as --quantization fp8"
        raise PinnError(f"--quantization {text}: {fault}: {remedy}")
    return str(methods[text])


#: Formats in which gpt-oss's MXFP4 checkpoint is predicted: its own, with 8-bit activations, and
#: dequantized to 16 bits.
_OF_GPT_OSS = frozenset({"mxfp4", "mxfp4_mxfp8", "bf16", "fp16"})
#: Formats of checkpoints with 8 instead of 4 bits, by the label of their method's usual format.
_EIGHT_BITS = {"int4": {"int8_wo"}, "nf4": {"int8"}}


def check_format(model: ModelSpec, text: str) -> None:
    """Check that a value of ``--quantization`` does not contradict the checkpoint's own format.

    Engines refuse another method than that of config.json (vllm 0.33.0 config/model.py:
    _verify_quantization). gpt-oss was released in MXFP4 only. Of other quantized models, a format
    such as ``nvfp4`` denotes another release, but a method such as ``awq`` the given checkpoint.

    Raises:
        PinnError: If the value names another format than the checkpoint's own.
    """
    methods, own = quantization_words("flag_methods"), _quantized_formats(model)
    if not own or text == _UNSAID:
        return
    label = methods.get(text, label_of(text))
    if text in methods:
        known = {SCHEMES.get(label, label)} | _EIGHT_BITS.get(label, set())
        contradicts = label is not None and not own & known
    else:
        is_gpt_oss = model.model_type == "gpt_oss" and own <= _EXPERTS_ONLY
        contradicts = is_gpt_oss and label not in _OF_GPT_OSS
    if contradicts:
        form = ", ".join(sorted(own))
        raise RefusedError(
            f"the weights of {model.name} are quantized to {form}, which --quantization {text} "
            f"cannot change: omit --quantization, or give the path of a config.json in {text}"
        )


def _quantized_formats(model: ModelSpec) -> set[str]:
    """Return the names of a model's weight formats with fewer than 16 bits."""
    return {form.name for form in vars(model.precisions).values()} - _WIDE


def with_precision(model: ModelSpec, scheme: str, *, kv_cache: str | None = None) -> ModelSpec:
    """Return a model with the weight formats that a precision label, such as ``fp8``, denotes.

    A checkpoint that already has the label's format remains unchanged: MiniMax-M2.5, DeepSeek-V3
    and NVIDIA's Llama-3.1-70B-FP8 under ``fp8``, Kimi-K2.5 under ``int4``. gpt-oss changes only
    under ``bf16`` and ``fp16``, and under ``mxfp4_mxfp8``, which means 8-bit activations. In all
    other cases, the formats follow the table at the top of this section, by ``model_type``. The
    output head and the router keep the model's own 16-bit format.

    Args:
        model: Model with the formats of its checkpoint.
        scheme: A key of ``SCHEMES``, or a value of vLLM's ``--quantization``. A method such as
            ``compressed-tensors`` leaves a quantized checkpoint unchanged.
        kv_cache: Format of the KV cache, a key of ``PRECISIONS``. With None, an unchanged
            checkpoint keeps its format. Otherwise None means fp8 under ``nvfp4`` (as in every NVFP4
            release), and else the model's 16-bit format.

    Raises:
        PinnError: If the scheme or the KV cache format is unknown, or if it names a method and the
            model is not quantized.
    """
    format_of(scheme)
    label = _label_for(model, scheme)
    if label is None or _is_native(model, label):
        cache = model.kv_cache_precision
        return replace(model, kv_cache_precision=precision(kv_cache) if kv_cache else cache)
    target = precision(SCHEMES[label])
    base = target if target.name in ("bf16", "fp16") else model.precisions.lm_head
    cache = precision(kv_cache or ("fp8" if target.name == "nvfp4" else base.name))
    quantized = _quantized_kinds(model, target) & _present_kinds(model)
    kinds = {kind: target if kind in quantized else base for kind in _ALL_KINDS}
    precisions = WeightPrecisions(**kinds, lm_head=base)
    return replace(model, precisions=precisions, kv_cache_precision=cache)


_ALL_KINDS = frozenset({"attention", "dense_ffn", "experts", "shared_experts"})


def _present_kinds(model: ModelSpec) -> set[str]:
    kinds = {"attention"}
    if model.moe_layers < model.layers:
        kinds.add("dense_ffn")
    if model.moe is not None:
        kinds.add("experts")
        if model.moe.shared_width:
            kinds.add("shared_experts")
    return kinds


def _is_native(model: ModelSpec, scheme: str) -> bool:
    main = model.precisions.experts if model.moe is not None else model.precisions.dense_ffn
    if main.name in ("bf16", "fp16"):
        return False
    if main.name == "mxfp4" and model.model_type == "gpt_oss":
        return scheme not in ("bf16", "fp16", "mxfp4_mxfp8")
    family = _FP8 if scheme == "fp8" else {SCHEMES[scheme]}
    return main.name in family


def _quantized_kinds(model: ModelSpec, target: Precision) -> frozenset[str]:
    if target.name in ("bf16", "fp16"):
        return frozenset()
    is_moe = model.moe is not None
    if is_moe and (
        target.name in _EXPERTS_ONLY  # vLLM implements MXFP4 only for experts
        or (target.name == "int4_wo" and is_type(model.model_type, "int4_experts_only"))
    ):
        return frozenset({"experts"})
    bf16_attention = (
        target.name in ("nvfp4", "nvfp4_wo")
        and is_moe
        and not is_type(model.model_type, "nvfp4_attention")
    ) or (target.name in _FP8 and is_type(model.model_type, "fp8_bf16_attention"))
    return _ALL_KINDS - {"attention"} if bf16_attention else _ALL_KINDS


# Names that are not in the catalog but denote another release or format of a catalog model.
#
# Example: ``Qwen/Qwen3-30B-A3B-Instruct-2507-FP8`` is Qwen3-30B-A3B with a longer context and fp8
# weights. Words are removed from the end of a name until the rest is a catalog name. Dated and chat
# releases have the shapes of their base model, and a format in a name is the format of the weights.

_DATE = re.compile(r"\d{4}")


@dataclass(frozen=True)
class Variant:
    """Interpretation of a model name that is not in the catalog.

    Attributes:
        base: Full name of the catalog model with the same shapes.
        names: The name and its shortened forms, under which published sampling settings are looked
            up.
        scheme: Weight format in the name, as a label for ``with_precision``; None if the name has
            none.
        owner: Publisher in lower case, from the name or else of the base model.
        context_tokens: Maximum context in tokens if it is known to differ from the base model's;
            else None.
    """

    base: str
    names: tuple[str, ...]
    scheme: str | None
    owner: str
    context_tokens: int | None

    @property
    def published_as(self) -> str | None:
        """Return the first of these names with published sampling settings, or None."""
        return next((name for name in (*self.names, self.base) if published_generation(name)), None)

    def applied(self, model: ModelSpec, name: str) -> ModelSpec:
        """Apply this variant's format, context and name to the base model."""
        found = model if self.scheme is None else self._quantized(model, self.scheme)
        found = replace(found, max_position=self.context_tokens or model.max_position)
        return found if found == model else replace(found, name=name)

    def note(self, name: str, model: ModelSpec) -> str:
        """Return a warning that states how the name was interpreted and how to correct it."""
        context = f", {model.max_position:,} tokens of context" if self.context_tokens else ""
        weights = f", {_formats(model)}" if self.scheme else ""
        return (
            f"{name} is not in 'pinn models', so it is derived from its name: the "
            f"layers of {self.base}{context}{weights}; give the path of its "
            "config.json to be sure"
        )

    def _quantized(self, model: ModelSpec, scheme: str) -> ModelSpec:
        """Return the model in a weight format, quantized as in its publisher's releases.

        Qwen's fp8 releases have block scales; NVIDIA's have static scales and an fp8 cache. NVFP4
        releases of other publishers have a 16-bit cache. Meta's fp8 releases of dense models do not
        quantize attention (Llama-3.1-405B-Instruct-FP8).
        """
        cache = "bf16" if scheme == "nvfp4" else None
        if self.owner == "nvidia" and scheme in ("fp8", "nvfp4"):
            cache = "fp8"
        if scheme == "fp8":
            scheme = {"qwen": "fp8_block", "nvidia": "fp8_static"}.get(self.owner, scheme)
        found = with_precision(model, scheme, kv_cache=cache)
        if self.owner == "meta-llama" and scheme == "fp8" and model.moe is None:
            formats = replace(found.precisions, attention=model.precisions.lm_head)
            found = replace(found, precisions=formats)
        return found


def find_variant(name: str) -> Variant | None:
    """Interpret a model name as a variant of a catalog model; return None if that fails.

    >>> find_variant("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16").base
    'meta-llama/Meta-Llama-3.1-70B'
    >>> find_variant("Qwen/Qwen3-33B-FP8") is None
    True
    """
    owner, _, bare = name.strip("/").lower().rpartition("/")
    known_words = models_file("name_words.json")
    formats = inverted(known_words["formats"])
    words: list[str] = []
    names = [bare]
    while (known := find_in_catalog(_renamed(names[-1]))) is None:
        rest, word = _last_word(names[-1])
        said = word in known_words["silent"] or word in formats
        if not said and not _DATE.fullmatch(word):
            return None
        words.append(word)
        names.append(rest)
    contexts = (tokens for text, tokens in known_words["contexts"].items() if re.match(text, bare))
    owner = owner or known.name.lower().partition("/")[0]
    return Variant(known.name, tuple(names), _scheme(words, formats), owner, next(contexts, None))


def _formats(model: ModelSpec) -> str:
    """Return the number formats of attention, feed-forward layers and KV cache as text."""
    formats, cache = model.precisions, model.kv_cache_precision.name
    part = "experts" if model.moe else "feed-forward"
    form = formats.experts if model.moe else formats.dense_ffn
    return f"attention in {formats.attention.name}, {part} in {form.name}, KV cache in {cache}"


def _renamed(bare: str) -> str:
    for start, same in models_file("name_words.json")["same_layers"].items():
        if bare.startswith(start):
            return same + bare.removeprefix(start)
    return bare


def _last_word(bare: str) -> tuple[str, str]:
    """Split off the last word of a name; a single word yields an empty string and the word.

    >>> _last_word("llama-3.1-8b-instruct-quantized.w8a8")
    ('llama-3.1-8b-instruct-quantized', 'w8a8')
    """
    parts = re.fullmatch(r"(.+)[-_.]([a-z0-9]+)", bare)
    return (parts[1], parts[2]) if parts else (bare, "")


def _scheme(words: Sequence[str], formats: Mapping[str, str]) -> str | None:
    if "fp8" in words:
        return "fp8_block" if "block" in words else "fp8"
    if "gptq" in words and "int8" in words:
        return "int8_wo"
    return next((formats[word] for word in words if word in formats), None)
