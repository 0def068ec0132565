"""Number formats in a checkpoint's quantization config, by quantization method.

Sources: vLLM 0.15.1 to 0.33.0 (``vllm/model_executor/layers/quantization``); hqq from vLLM 0.10.2,
w4afp8 from SGLang 0.5.23. The terms used by each method are in ``data/models/quantization.json``.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pinn.errors import PinnError, warn_user
from pinn.specs.quantization_block import Block, quantization_words

#: Lists of patterns of matrix names, each with the key of a format in ``PRECISIONS``; None means
#: the model's own format.
Named = list[tuple[list[str], str | None]]

_ALL = ["Linear"]
#: Pattern that selects the routed experts' matrices under all of their names.
_EXPERTS = ["experts"]
_SPECIAL = frozenset("*+?^$()[]{}|\\")


def named_formats(block: Block) -> Named:
    """Return the number formats in a quantization config, each with its matrices' patterns.

    Raises:
        PinnError: If the method, or the value of one of its keys, is unknown.
    """
    method = "modelopt" if block.method.startswith("modelopt") else block.method
    if method not in _READERS:
        known = ", ".join(_READERS)
        block.unknown("quant_method", block.method or None, known)
    return _READERS[method](block)


# Methods with one format for all matrices that are not excluded from quantization.


def _fp8(block: Block) -> Named:
    size = block.values.get("weight_block_size")
    sizes = size if isinstance(size, list) and len(size) == 2 else [0]
    if size is not None and any(type(each) is not int or each < 1 for each in sizes):
        raise PinnError(
            f"{block.source}: weight_block_size must be two positive whole numbers such as "
            f"[128, 128], got {size!r:.60}"
        )
    if size is not None:
        return [(_ALL, "mxfp8" if size == [1, 32] else "fp8_block")]
    return [(_ALL, "fp8_static" if block.values.get("activation_scheme") == "static" else "fp8")]


def _bits_and_bytes(block: Block) -> Named:
    # With bitsandbytes, weights have 4 bits, or 8 bits with load_in_8bit (LLM.int8), which also
    # quantizes activations (bitsandbytes.py).
    return [(_ALL, "int8" if block.values.get("load_in_8bit") is True else "nf4")]


def _hqq(block: Block) -> Named:
    inner = Block(block.part("quant_config"), block.source)
    bits = inner.part("weight_quant_params").get("nbits")
    return [(_ALL, block.named("nbits", bits, _BITS))]


# GPTQ, AWQ and AutoRound: integer weights. A rule in the config may set another number of bits for
# some matrices.

_BITS = {"4": "int4_wo", "8": "int8_wo"}


def _integers(block: Block) -> Named:
    bits = block.values.get("bits", block.values.get("w_bit"))  # a number or text: 4 or "4"
    found: Named = [
        ([f"re:{rule.removeprefix('+:')}"], block.named("bits", own.get("bits", bits), _BITS))
        for rule, own in block.objects("dynamic").items()
        if not rule.startswith("-:")
    ]
    return [*found, (_quantized_modules(block), block.named("bits", bits, _BITS))]


def _quantized_modules(block: Block) -> list[str]:
    """Return the patterns of GPTQ's quantized matrices.

    Source: auto_gptq.py (modules_in_block_to_quantize).
    """
    listed = block.values.get("modules_in_block_to_quantize")
    if not isinstance(listed, list):
        return _ALL
    found = [name for entry in listed for name in (entry if isinstance(entry, list) else [entry])]
    return [str(name) for name in found] or _ALL


def _auto_round(block: Block) -> Named:
    """Return AutoRound's formats: for matrices in ``extra_config``, then for all others.

    A 16-bit matrix has the model's own format.
    """
    kind, bits = str(block.values.get("data_type") or "int"), block.values.get("bits")
    found: Named = []
    for name, own in block.objects("extra_config").items():
        pattern = f"re:.*?{name}" if set(name) & _SPECIAL else name
        mine = own.get("bits", bits)
        wide = type(mine) is int and mine >= 16
        found.append(([pattern], None if wide else _rounded(block, kind, mine)))
    return [*found, (_ALL, _rounded(block, kind, bits))]


def _rounded(block: Block, kind: str, bits: object) -> str:
    return block.named("data_type and bits", f"{kind}{bits}", quantization_words("auto_round"))


# ModelOpt and torchao: one word names the formats of weights and activations together, for all
# matrices or for each matrix.

_LAYER = re.compile(r"^.*?layers\.(\d+)\.")


def _modelopt(block: Block) -> Named:
    algorithm = str(block.values.get("quant_algo") or "").upper()
    known = quantization_words("modelopt")
    if algorithm != "MIXED_PRECISION":
        if algorithm not in known:
            block.unknown("quant_algo", algorithm, [*known, "MIXED_PRECISION"])
        return [(_ALL, known[algorithm])]
    by_algorithm: dict[str, list[str]] = {}
    layers = block.objects("quantized_layers")
    if not layers:
        block.unknown("quantized_layers", None, "an object with the quant_algo of each matrix")
    for name, own in layers.items():
        by_algorithm.setdefault(str(own.get("quant_algo") or "").upper(), []).append(name)
    numbers = {match[1] for name in layers if (match := _LAYER.match(name))}
    if len(numbers) == 1:
        warn_user(
            f"{block.source}: quantized_layers has only layer {min(numbers)}, whose formats are "
            "used for all layers"
        )
        by_algorithm = {
            a: [_LAYER.sub("", name).rpartition(".")[0] or name for name in names]
            for a, names in by_algorithm.items()
        }
    where = "quant_algo in quantized_layers"
    return [(names, block.named(where, a, known)) for a, names in by_algorithm.items()]


def _torchao(block: Block) -> Named:
    kind = block.values.get("quant_type")
    config = kind.get("default") if isinstance(kind, Mapping) else {"_type": kind}
    inner = config.get("_data") if isinstance(config, Mapping) else None
    inner = inner if isinstance(inner, Mapping) else {}
    by_name = inner.get("module_fqn_to_config", inner.get("fqn_to_config"))
    if not isinstance(by_name, Mapping):
        return [(_ALL, _torchao_format(block, config))]
    return [
        (_ALL if name == "_default" else [name], own and _torchao_format(block, own))
        for name, own in by_name.items()
    ]


def _torchao_format(block: Block, config: object) -> str:
    config = config if isinstance(config, Mapping) else {"_type": config}
    inner = config.get("_data")
    dtype = inner.get("weight_dtype") if isinstance(inner, Mapping) else None
    name = str(config.get("_type"))
    if "Intx" in name and isinstance(dtype, Mapping):
        name = f"{name} of {str(dtype.get('_data')).removeprefix('torch.')}"
    return block.named("quant_type", name, quantization_words("torchao"))


# compressed-tensors and Quark: weights and activations have separate formats.


def _compressed(block: Block) -> Named:
    found: Named = []
    for name, group in block.objects("config_groups").items():
        own = Block(group, f"{block.source}: config_groups: {name}")
        targets = own.texts("targets") or _ALL
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # these scales are for the KV cache, not for weights
        weights, inputs = own.part("weights"), group.get("input_activations")
        kind = _kind(weights, str(weights.get("strategy")))
        found.append((targets, _scheme(block, f"weights of {name}", kind, _inputs(inputs))))
    return found or block.unknown("config_groups", None, "objects of targets and weights")


def _kind(tensor: Mapping[str, Any], strategy: str) -> str:
    """Return the format of a weight's elements, and of groups that share a scale, as text."""
    kind, size = f"{tensor.get('type')}{tensor.get('num_bits')}", tensor.get("group_size")
    if kind == "float8" and strategy in ("block", "per_block"):
        return f"{kind} in blocks"
    grouped = kind == "float4" or (kind == "float8" and size == 32)
    return f"{kind} in groups of {size}" if grouped else kind


def _inputs(tensor: object) -> str:
    """Return an activation format as text; scales are static unless the config states otherwise."""
    if not tensor:
        return "16-bit"
    if not isinstance(tensor, Mapping):
        return str(tensor)
    kind = f"{tensor.get('type', 'float')}{tensor.get('num_bits', 8)}"
    is_static = not tensor.get("dynamic", tensor.get("is_dynamic"))
    return f"static {kind}" if kind == "float8" and is_static else kind


def _scheme(block: Block, key: str, weights: str, inputs: str) -> str:
    asked, known = f"{weights} {inputs}", quantization_words("schemes")
    if asked not in known:
        block.unknown(key, f"{weights} with {inputs} inputs", [*known])
    return str(known[asked])


def _quark(block: Block) -> Named:
    found: Named = []
    for pattern, own in block.objects("layer_quant_config").items():
        if own.get("weight"):
            found.append(([pattern], _quark_format(block, pattern, own)))
    whole = block.part("global_quant_config")
    return [*found, (_ALL, _quark_format(block, "global_quant_config", whole))]


def _quark_format(block: Block, key: str, config: Mapping[str, Any]) -> str:
    weights, inputs = (_quark_tensor(config.get(name)) for name in ("weight", "input_tensors"))
    if weights is None:
        block.unknown(key, None, [*quantization_words("quark_dtypes")])
    kind = _kind(weights, str(weights.get("qscheme")))
    return _scheme(block, f"weight of {key}", kind, _inputs(inputs))


def _quark_tensor(config: object) -> dict[str, Any] | None:
    """Return a Quark tensor's format in compressed-tensors' terms; the narrowest of several."""
    listed = config if isinstance(config, list) else [config]
    known = quantization_words("quark_dtypes")
    found = []
    for each in listed:
        if isinstance(each, Mapping):
            name = known.get(str(each.get("dtype")))
            words = (name[:-1], int(name[-1])) if name else (each.get("dtype"), "")
            found.append({**each, "type": words[0], "num_bits": words[1]})
    return min(found, key=lambda each: each["num_bits"] or 99, default=None)


_READERS: dict[str, Callable[[Block], Named]] = {
    "fp8": _fp8, "fbgemm_fp8": _fp8, "modelopt": _modelopt, "compressed-tensors": _compressed,
    "mxfp8": lambda _: [(_ALL, "mxfp8")],
    # vLLM's Mxfp4Config implements experts but no linear layers.
    "mxfp4": lambda _: [(_EXPERTS, "mxfp4")],
    "experts_int8": lambda _: [(_EXPERTS, "int8_wo")],
    # SGLang's w4afp8.py: experts have 4 bits, all other matrices fp8 blocks.
    "w4afp8": lambda _: [(_EXPERTS, "int4_fp8"), (_ALL, "fp8_block")],
    **dict.fromkeys(("awq", "awq_marlin", "auto_awq", "moe_wna16"), _integers),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq"), _integers),
    "auto-round": _auto_round, "inc": _auto_round, "bitsandbytes": _bits_and_bytes, "hqq": _hqq,
    "quark": _quark, "torchao": _torchao,
}  # fmt: skip
