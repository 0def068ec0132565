"""The quantization of a checkpoint: which matrices are stored in which format.

Reads what vLLM 0.15.1 reads (``vllm/model_executor/layers/quantization``). In every method vLLM
leaves the router and, but for GPTQ's ``lm_head`` flag, the output head in the model's own format.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinn.errors import PinnError
from pinn.specs.module_names import Aliases, ModulePatterns
from pinn.specs.precision import Precision, precision
from pinn.specs.quantization_formats import (
    compressed_format,
    is_fp8_cache,
    method_format,
    method_name,
    unknown_scheme,
)

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

    def of_module(self, aliases: Aliases) -> Precision | None:
        """The format of a matrix; None where it is left as it is."""
        if self.ignored.match(aliases):
            return None
        return next((form for targets, form in self.groups if targets.match(aliases)), None)

    def of_kind(self, kind: str, modules: list[Aliases], base: Precision) -> Precision:
        """The format of most matrices of a kind, which counts for the kind as a whole.

        Checkpoints that split a kind leave single layers out (the first, dense ones), or all of
        latent attention but its output (DeepSeek-V3.1-NVFP4).
        """
        if self.experts_only and kind != "experts":
            return base
        formats = [self.of_module(aliases) or base for aliases in modules]
        return max(formats, key=formats.count, default=base)


def read_quantization(
    config: Mapping[str, Any], source: str, fallback: str | None = None
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


def _groups(config: Mapping[str, Any], source: str) -> Groups:
    if method_name(config) != "compressed-tensors":
        return ((ModulePatterns(("Linear",), source), method_format(config, source)),)
    groups = []
    found = config.get("config_groups") or {}
    if not isinstance(found, Mapping) or not all(isinstance(g, Mapping) for g in found.values()):
        raise PinnError(
            f"{source}: config_groups must map names to JSON objects, got {found!r:.60}"
        )
    for group in found.values():
        targets = _texts(group, "targets", source) or ["Linear"]
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # the KV cache's scales, not weights
        groups.append((ModulePatterns(targets, source), compressed_format(group, source)))
    if not groups:
        unknown_scheme("compressed-tensors without config_groups", source)
    # A layer's own name goes before the class name "Linear" (find_matched_target in vLLM).
    return tuple(sorted(groups, key=lambda group: group[0].match(())))


def _ignored(config: Mapping[str, Any], source: str) -> list[str]:
    keys = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    listed = [entry for key in keys for entry in _texts(config, key, source)]
    dynamic = config.get("dynamic")  # GPTQModel: "-:REGEX" leaves matching matrices out
    if isinstance(dynamic, Mapping):
        listed += [f"re:{key[2:]}" for key in dynamic if key.startswith("-:")]
    return listed


def _texts(config: Mapping[str, Any], key: str, source: str) -> list[str]:
    """A list of names; empty where the key is absent or null.

    Raises:
        PinnError: If it is no list.
    """
    value = config.get(key)
    if value is not None and not isinstance(value, list):
        raise PinnError(f"{source}: {key} must be a list of modules, got {value!r:.60}")
    return [str(entry) for entry in value or ()]


def _kv_cache(config: Mapping[str, Any], source: str) -> Precision | None:
    scheme = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    if not scheme or scheme == "auto":
        return None
    if is_fp8_cache(scheme):
        return precision("fp8")
    warnings.warn(
        f"{source}: unknown KV cache format {scheme!r}; like vLLM, keeping the model's own",
        stacklevel=2,
    )
    return None
