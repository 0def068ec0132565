"""Remedy for a refused config.json: the nearest known model family, and the keys to change."""

import warnings
from collections.abc import Callable, Iterator

from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields, is_type, marked_kinds, models_file
from pinn.specs.model import ModelSpec

#: Nearest model family, by group of config.json keys that suggests it; the first match counts.
_FAMILIES = (
    (("index_topk", "kv_lora_rank"), "deepseek_v32"), (("kv_lora_rank",), "deepseek_v3"),
    (("linear_num_key_heads",), "qwen3_next"), (("linear_attn_config",), "kimi_linear"),
    (("linear_num_heads",), "kimi_linear"), (("hybrid_override_pattern",), "nemotron_h"),
    (("mamba_n_heads",), "granitemoehybrid"), (("mamba_d_state",), "jamba"),
    (("experts",), "mixtral"), (("hidden_size",), "llama"),
)  # fmt: skip


def nearest_remedy(fields: ConfigFields, read: Callable[[ConfigFields], ModelSpec]) -> str:
    """Return the changes that make a config.json readable, as text; empty if none does.

    A model that engines compute differently from what its keys suggest has no remedy, because the
    nearest family would have a different KV cache.

    Args:
        fields: The refused config.json.
        read: Function that converts the fields of a changed config.json to a model.
    """
    if fields.model_type in models_file("types.json")["unlike_modules"]:
        return ""
    marked = list(dict.fromkeys(key for _, key in marked_kinds(fields)))
    for family in _candidates(fields):
        has_them = is_type(family, "planned")
        keys = [] if has_them else marked
        if _reads(fields, family, keys, read):
            how = "as the nearest known family" if has_them or not fields.model_type else "without"
            first = f"drop {', '.join(keys)} and " if keys else ""
            near = "" if how != "without" else ", the nearest known family,"
            model_type = f'{first}set "model_type": "{family}"{near}'
            return f"; to read the file {how}, {model_type} in a copy of the file"
    return "" if fields.model_type else ": give the config.json of a decoder language model"


def _candidates(fields: ConfigFields) -> Iterator[str]:
    for needed, family in _FAMILIES:
        if all(fields.get(key) for key in needed):
            yield family


def _reads(
    fields: ConfigFields, family: str, dropped: list[str], read: Callable[[ConfigFields], ModelSpec]
) -> bool:
    """Return whether a config.json can be read as a given family without losing its experts."""
    text = {k: v for k, v in fields.text.items() if k not in dropped} | {"model_type": family}
    has_experts = any("expert" in key and value for key, value in fields.text.items())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read(ConfigFields(text, text, fields.source))
    except PinnError:
        return False
    return found.moe is not None or not has_experts
