"""Typed access to the fields of a config.json, with errors that name the file and the remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pinn.common.documents import MOST_MODEL_SIZE, check_size, misfit, written
from pinn.errors import PinnError

#: What the Hugging Face configuration classes fill in where a config.json of that type leaves a
#: key out (``transformers`` 4.57, ``configuration_<type>.py``).
CLASS_DEFAULTS: dict[str, dict[str, object]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "gemma": {"head_dim": 256},
    "gemma2": {
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
        "sliding_window_pattern": 2, "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
    },
    **{key: {"use_sliding_window": False} for key in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "llama4_text": {
        "attention_chunk_size": 8192, "no_rope_layer_interval": 4, "interleave_moe_layer_step": 1,
    },
}  # fmt: skip


@dataclass(frozen=True)
class ConfigFields:
    """The language part of a config.json.

    Attributes:
        root: The whole document.
        text: Its language part: ``text_config`` where it is nested, else the document itself.
        source: Name or path for error messages.
    """

    root: Mapping[str, object]
    text: Mapping[str, object]
    source: str
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The type of the language part."""
        return str(self.text.get("model_type") or self.root.get("model_type") or "")

    def error(self, text: str) -> PinnError:
        """What is wrong with the file."""
        return PinnError(f"{self.source}: {text}")

    def misfit(self, key: str, rule: str, value: object) -> PinnError:
        """What is wrong with a key's value."""
        return misfit(f"{self.source}: {key}", rule, value)

    def get(self, *keys: str) -> Any:
        """The first of the keys that is neither absent nor null; None without any.

        A 0 is a value. A key that the file leaves out has its configuration class's default; one
        that the file sets to null has none.
        """
        for values in (self.text, self.defaults):
            for key in keys:
                value = values.get(key)
                if value is not None and not (values is self.defaults and key in self.text):
                    return value
        return None

    def integer(
        self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST_MODEL_SIZE
    ) -> int:
        """A whole number under the first of the keys that has one.

        Raises:
            PinnError: If there is none and no default, or it is no whole number from ``least`` to
                ``most``.
        """
        value = self.get(*keys)
        if value is None:
            value = default
        if value is None:
            remedy = "give the config.json of a decoder language model"
            raise self.error(f"{' or '.join(keys)} is missing: {remedy}")
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self.misfit(key, "be a whole number", value)
        if value < least:
            raise self.misfit(key, f"be at least {least}", value)
        check_size(value, most, f"{self.source}: {key}", "correct the file")
        return int(value)

    def truth(self, key: str) -> bool | None:
        """True or false, at the root or in the language part, which goes first; None without.

        Raises:
            PinnError: If it is neither: a word such as ``"false"`` would count as true.
        """
        for values in (self.text, self.root):
            value = values.get(key)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise self.misfit(key, "be true or false, without quotes", value)
        return None

    def layer_indices(self, key: str) -> set[int]:
        """A list of layers, counted from 0; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list of whole numbers.
        """
        value = self.listed(key)
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise self.misfit(key, "list layers such as [0, 1]", each)
        return set(value)

    def listed(self, key: str) -> list[Any]:
        """A list; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.misfit(key, "be a list", value)
        return value or []

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry per layer; None where the key is absent, null or empty.

        Raises:
            PinnError: If it is no list or is shorter than the model.
        """
        value = self.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) < layers:
            got = f"{len(value)} entries" if isinstance(value, list) else written(value)
            rule = f"must be a list of {layers} entries, one per layer"
            raise self.error(f"{key} {rule}, got {got}")
        return value[:layers]


def read_fields(config: Mapping[str, object], source: str) -> ConfigFields:
    """Find the language part of a config.json.

    Raises:
        PinnError: If the document or its ``text_config`` is no JSON object.
    """
    if not isinstance(config, Mapping):
        raise PinnError(f"{source}: a config.json must hold a JSON object, got {config!r:.60}")
    nested = [config.get("text_config"), config.get("llm_config")]
    text = next((value for value in nested if value is not None), config)
    if not isinstance(text, Mapping):
        raise PinnError(f"{source}: text_config must be a JSON object, got {text!r:.60}")
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    return ConfigFields(config, text, source, CLASS_DEFAULTS.get(model_type, {}))


# Which ``model_type`` values of a config.json are read, and why the others are refused.


def _names(text: str) -> list[str]:
    return text.split()


#: Types whose config lists mixers of several kinds: what gives those away elsewhere is read here.
_PLANNED_TYPES = frozenset(
    _names(
        "bamba deepseek_ref deepseek_v32 deepseek_v4 falcon_h1 falcon_mamba glm_moe_dsa "
        "granitemoehybrid jamba kimi_linear mamba mamba2 minimax minimax_text_01 nemotron_h "
        "qwen3_5_moe_text qwen3_5_text qwen3_next"
    )
)

#: Types whose layers are a mixer plus a (mixture of) feed-forward network(s), as vLLM 0.15.1
#: builds them (``vllm/model_executor/models``); ``pinn.specs.mixers`` has the mixers.
KNOWN_TYPES = _PLANNED_TYPES | frozenset(
    _names(
        "chatglm cohere cohere2 deepseek_v2 deepseek_v3 exaone4 falcon gemma gemma2 gemma3 "
        "gemma3_text gemma3n_text glm glm4 glm4_moe glm4_moe_lite gpt_oss granite granitemoe "
        "granitemoeshared internlm2 kimi_k2 llama llama4 llama4_text mimo minimax_m2 mistral "
        "mixtral mllama_text_model nemotron olmo2 olmo3 olmoe phi3 qwen2 qwen2_5_vl "
        "qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_vl_moe_text "
        "qwen3_vl_text seed_oss starcoder2"
    )
)

#: Types with two matrices per feed-forward layer instead of three.
UNGATED_TYPES = frozenset({"falcon", "nemotron", "nemotron_h", "starcoder2"})

#: Types whose configuration class ties the embeddings unless the file says otherwise.
TIED_TYPES = frozenset(
    _names("cohere cohere2 falcon gemma gemma2 gemma3 gemma3_text gemma3n_text starcoder2")
)

#: Types with multi-head latent attention (``ModelArchConfigConvertorBase.is_deepseek_mla``).
LATENT_TYPES = frozenset(
    _names("deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 kimi_linear")
)

#: Types whose keys are compressed: DeepSeek-V4, and as SGLang's authors converted it to fp8.
COMPRESSED_TYPES = frozenset({"deepseek_ref", "deepseek_v4"})

#: Types that normalize q and k over all heads together, not head by head.
FULL_WIDTH_QK_NORM_TYPES = frozenset(_names("minimax_m2 olmo2 olmo3 olmoe"))

#: Types whose attention multiplies its output by a gate (qwen3_next.py: ``attn_output_gate``).
GATED_ATTENTION_TYPES = frozenset(_names("qwen3_next qwen3_5_text qwen3_5_moe_text"))

_MAMBA = "state-space (mamba) layers"
_DELTA = "linear attention (gated delta net)"
_SPARSE = "sparse attention (DSA)"
UNSUPPORTED_TYPES: dict[str, str] = {
    **dict.fromkeys(_names("plamo2 zamba2"), f"a hybrid of attention and {_MAMBA}"),
    **dict.fromkeys(_names("lfm2 lfm2_moe"), "a hybrid of attention and convolution layers"),
    **dict.fromkeys(_names("minimax_m3 minimax_m3_vl"), "block-sparse attention"),
    "nemotron-nas": "layers of different shapes (block_configs)",
    "mimo_v2_flash": "full and windowed layers with different KV heads",
    **dict.fromkeys(_names("gemma4 gemma4_text"), "layers of different head widths"),
}

#: Keys that give such layers away under any type.
_MARKERS: dict[str, str] = {
    "hybrid_override_pattern": f"a hybrid of attention and {_MAMBA}",
    "ssm_state_size": _MAMBA,
    "mamba_d_state": _MAMBA,
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": _DELTA,
    "index_topk": _SPARSE,
    "sparse_attention_config": "block-sparse attention",
    "block_configs": "layers of different shapes (block_configs)",
}
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})


def check_supported(fields: ConfigFields) -> None:
    """Refuse models with layers that have no cost model here.

    Raises:
        PinnError: If a layer kind is not supported, or the type is unknown or missing.
    """
    kind = UNSUPPORTED_TYPES.get(fields.model_type) or _marked_kind(fields)
    if kind is not None:
        listed = "docs/models.md lists the kinds of layers that are"
        raise fields.error(f"{fields.model_type} has {kind}, which is not supported: {listed}")
    if fields.model_type not in KNOWN_TYPES:
        fault = f"model_type {fields.model_type!r} is unknown"
        known = f"known ones are {', '.join(sorted(KNOWN_TYPES))}"
        remedy = 'set "model_type": "llama" in a copy of the file'
        raise fields.error(f"{fault}: {known}; to read it as a Llama-like decoder, {remedy}")


def _marked_kind(fields: ConfigFields) -> str | None:
    if fields.get("attn_res_block_size") is not None:
        return "attention over the outputs of earlier layers"
    if fields.model_type in _PLANNED_TYPES:
        return None
    for key, kind in _MARKERS.items():
        if fields.get(key) is not None:
            return kind
    others = set(map(str, fields.listed("layer_types"))) - _LAYER_TYPES
    if others:
        return f"layers of type {', '.join(sorted(others))}"
    if 0 in fields.listed("attn_type_list"):  # MiniMax: 0 linear, 1 softmax attention
        return "linear attention"
    return None


#: Ending of the config files of aiconfigurator-core.
PACKAGE_SUFFIX = "_config.json"


def name_of(path: Path) -> str:
    """The model's name by its file: the folder's, or ``org/name`` of ``org--name.json``."""
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(PACKAGE_SUFFIX).removesuffix(".json").replace("--", "/", 1)
