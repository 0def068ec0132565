"""Quantization of a checkpoint: the number format of each of its weight matrices."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pinn.errors import PinnError, warn_user
from pinn.specs.module_patterns import Matrix, ModulePatterns
from pinn.specs.precision import Precision, precision
from pinn.specs.quantization_block import Block, quantization_words
from pinn.specs.quantization_formats import named_formats

# In every method, vLLM keeps the router in the model's own format. The output head also keeps the
# model's own format unless GPTQ's ``lm_head`` flag or a group names the output head.

#: Number formats, each with the patterns of its matrices; None means the model's own format.
Groups = tuple[tuple[ModulePatterns, Precision | None], ...]

#: A warning reports a weight type if more than this share of its bytes is in formats other than the
#: assumed one.
_REPORTED_SHARE = 0.1
_HEADS = ("lm_head", "model.lm_head", "language_model.lm_head")


@dataclass(frozen=True)
class Quantization:
    """Number formats that a checkpoint's quantization config specifies.

    Attributes:
        groups: Number formats with the patterns of their matrices; the first match applies to a
            matrix.
        lm_head: Format of the output head; None if the checkpoint does not quantize it.
        kv_cache: Format of the KV cache; None if the checkpoint specifies none.
        source: Name of the file with the quantization config, for warnings.
    """

    groups: Groups
    lm_head: Precision | None = None
    kv_cache: Precision | None = None
    source: str = ""

    @property
    def expressions(self) -> int:
        """Return the number of regular expressions with which every matrix name is compared."""
        return sum(targets.expressions for targets, _ in self.groups)

    def of_kind(self, kind: str, modules: list[Matrix], base: Precision) -> Precision:
        """Return the format of most bytes of a weight type (such as experts).

        All weights of the type are treated as if they had this format.

        Some checkpoints leave individual layers in 16 bits (the first, dense ones), or all of
        latent attention except its output projection (DeepSeek-V3.1-NVFP4). If more than 10 % of
        the bytes have other formats, a warning reports them.
        """
        held = Counter[Precision]()
        for names, size in modules:
            groups = (form for targets, form in self.groups if targets.match(names))
            form = next(groups, base) or base
            held[form] += size * form.bytes_per_weight  # type: ignore[assignment]
        if not held:
            return base
        most, total = max(held, key=held.__getitem__), sum(held.values())
        others = {form.name: held[form] / total for form in held if form != most}
        if sum(others.values()) > _REPORTED_SHARE:
            formats = {most.name: held[most] / total} | others
            shares = ", ".join(f"{share:.0%} {name}" for name, share in formats.items())
            weights = kind.replace("_", " ")
            warn_user(
                f"{self.source}: the {weights} weights have several formats ({shares} of the "
                f"bytes); all of these weights are treated as {most.name}"
            )
        return most


def read_quantization(
    config: Mapping[str, object], source: str, fallback: str | None = None
) -> Quantization:
    """Return the number formats in a ``quantization_config`` or a ``hf_quant_config.json``.

    Args:
        config: JSON object to read.
        source: Name of the file, for error messages.
        fallback: Key of ``PRECISIONS`` to assume, with a warning, if the scheme is unknown.

    Raises:
        PinnError: If the scheme is unknown and there is no fallback.
    """
    inner = config.get("quantization")
    block = Block({**config, **inner} if isinstance(inner, Mapping) else dict(config), source)
    try:
        named = named_formats(block)
    except PinnError as error:
        if fallback is None:
            raise
        warn_user(f"{error}. {fallback} is assumed for all linear layers")
        named = [(["Linear"], fallback)]
    groups = [(ModulePatterns(t, source), precision(f) if f else None) for t, f in named]
    # A pattern of a matrix's name takes precedence over the class name "Linear" (vLLM:
    # find_matched_target), so groups with "Linear" come last.
    groups.sort(key=lambda group: group[0].is_default)
    ignored = ModulePatterns(_ignored(block), source)
    head = next((form for targets, form in groups if targets.names(_HEADS)), None)
    whole = block.values.get("lm_head") is True
    return Quantization(
        groups=((ignored, None), *groups),
        lm_head=groups[-1][1] if whole else None if ignored.names(_HEADS) else head,
        kv_cache=_kv_cache(block),
        source=source,
    )


def _ignored(block: Block) -> list[str]:
    listed = [e for key in quantization_words("excluded") for e in block.texts(key)]
    dynamic = block.values.get("dynamic")  # GPTQModel: "-:REGEX" excludes matrices that match
    if isinstance(dynamic, Mapping):
        listed += [f"re:{key[2:]}" for key in dynamic if key.startswith("-:")]
    return listed


def _kv_cache(block: Block) -> Precision | None:
    values = block.values
    scheme = values.get("kv_cache_scheme") or values.get("kv_cache_quant_algo")
    if block.method == "quark":
        layers = block.objects("layer_quant_config").values()
        written = [own.get("output_tensors") for own in layers if own.get("output_tensors")]
        scheme = written[0].get("dtype") if written and isinstance(written[0], Mapping) else None
    if not scheme or scheme == "auto":
        return None
    if isinstance(scheme, Mapping):
        is_fp8 = scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    else:
        is_fp8 = isinstance(scheme, str) and scheme.lower().startswith("fp8")
    if is_fp8:
        return precision("fp8")
    warn_user(
        f"{block.source}: the KV cache format {scheme!r} is unknown; the model's number format is "
        f"used, as in vLLM"
    )
    return None
