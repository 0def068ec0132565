"""Parts of a launch command, and the effects of its flag values on the configuration."""

import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from pinn.common import documents, files
from pinn.engines.recipe import engine_rows, release
from pinn.errors import PinnError
from pinn.specs.flags import TRUTH
from pinn.specs.model_variants import SCHEMES, label_of
from pinn.specs.pooling import GENERATE, POOLING
from pinn.specs.quantization_block import quantization_words
from pinn.specs.serving import DATA, DEEPEP, KV_CACHE_DTYPES, SGLANG, TRTLLM, VLLM, WEIGHTS

# Words of a launch command: its variables, the engine, its release and its arguments.

#: Words of a command that start each engine. The second and third rows of the table start vLLM as a
#: Python module, which does not accept the model as a positional argument.
_PROGRAMS = [(r["engine"], tuple(r["words"].split())) for r in engine_rows("launch_programs.csv")]
_IMAGE = re.compile(
    r"(?:.*/)?(?P<name>vllm-openai|sglang|tensorrt-llm/release)(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?"
)
_ENGINE_OF_IMAGE = {"vllm-openai": VLLM, "sglang": SGLANG, "tensorrt-llm/release": TRTLLM}
_VARIABLE = re.compile(r"(?:--env=|-e)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_END = re.compile(r"&&?|\|\|?|;|[12&]?>.*|\d*<.*")


class Words(NamedTuple):
    """A launch command, split into its parts.

    Attributes:
        engine: One of ``ENGINES``.
        release: Release from the tag of the container image; empty without an image.
        variables: Environment variables that the command sets.
        arguments: Arguments of the engine.
    """

    engine: str
    release: str
    variables: dict[str, str]
    arguments: list[str]


def words_of(command: str) -> Words:
    """Split a launch command into engine, release, variables and arguments.

    Raises:
        PinnError: If quotes are unbalanced, or the command starts no known engine.

    >>> words_of("VLLM_USE_V1=1 vllm serve Qwen/Qwen3-8B -tp 2 > log &").arguments
    ['Qwen/Qwen3-8B', '-tp', '2']
    >>> words_of("args: [serve, Qwen/Qwen3-8B, --tensor-parallel-size=2]").arguments
    ['Qwen/Qwen3-8B', '--tensor-parallel-size=2']
    """
    if _LISTED.match(command):
        command = _shell_line(command)
    try:
        words = shlex.split(command.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise PinnError(
            f"--serve: the launch command cannot be read ({error}): check the command's quotes"
        ) from None
    image, engine, release = _image(words)
    program = _program(words, image + 1)
    if program is not None:
        engine, first = program
    elif engine == VLLM:
        first = image + 1  # the image's entry point starts the server
    else:
        raise PinnError(
            "--serve: the launch command starts none of the known engines: use 'vllm "
            "serve MODEL ...', 'python -m vllm.entrypoints.openai.api_server "
            "--model MODEL ...', 'python -m sglang.launch_server --model-path "
            "MODEL ...' or 'trtllm-serve MODEL ...'"
        )
    variables = [match for word in words[:first] if (match := _VARIABLE.fullmatch(word))]
    return Words(engine, release, {m[1]: m[2] for m in variables}, _arguments(words[first:]))


#: Pattern of the start of an argument list, or of a container's YAML.
_LISTED = re.compile(r"\s*(?:[\[{]|- |(?:command|args|image|env|name):\s)")


def _shell_line(text: str) -> str:
    """Convert a list of arguments or a Kubernetes container to the equivalent shell command.

    The fields ``command``, ``args``, ``image`` and ``env`` of a container are read. Arguments
    without a program are interpreted as arguments of vLLM's image.

    Raises:
        PinnError: If the text is not YAML, or is neither a list of arguments nor a container.
    """
    found = documents.parse_yaml(text, "--serve")
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], dict):
        (found,) = found  # the only entry of ``containers``
    listed = found if isinstance(found, dict) else {"args": found}
    parts = [listed.get(name) or [] for name in ("command", "args")]
    parts = [part if isinstance(part, list) else [part] for part in parts]
    words = [str(word) for part in parts for word in part]
    if not words or any(isinstance(word, list | dict) for part in parts for word in part):
        raise PinnError(
            "--serve must be a shell line, a list of arguments, or YAML with the keys command and "
            f"args of Kubernetes, got {text!r:.80}"
        )
    env = listed.get("env") if isinstance(listed.get("env"), list) else []
    named = [each for each in env or [] if isinstance(each, dict) and "value" in each]
    variables = [shlex.quote(f"{each.get('name')}={each['value']}") for each in named]
    if words[1:2] == ["-c"] and len(words) == 3:
        return " ".join([*variables, words[2]])
    if image := listed.get("image"):
        words = ["docker", "run", str(image), *words]
    elif words[0] == "serve":
        words = ["vllm", *words]
    elif words[0].startswith("-"):
        words = ["vllm", "serve", *words]
    return " ".join([*variables, shlex.join(words)])


def _image(words: list[str]) -> tuple[int, str, str]:
    """Return the index of the container image among a command's words, its engine and its release.

    The index is -1, and the other two are empty, if the command has no container image.
    """
    is_container = {"docker", "podman", "nerdctl"} & {word.rsplit("/", 1)[-1] for word in words}
    for i, word in enumerate(words if is_container else ()):
        match = _IMAGE.fullmatch(word.replace("#", "/"))
        if match is not None:
            tag = match["tag"] or ""
            release = tag if re.match(r"v?\d+\.\d", tag) else ""
            return i, _ENGINE_OF_IMAGE[match["name"]], release
    return -1, "", ""


def _program(words: list[str], start: int) -> tuple[str, int] | None:
    """Return the engine that a command starts, and the index of the engine's first argument.

    The search begins at the word with index ``start``. The result is None if no engine is started.
    """
    for i in range(start, len(words)):
        for engine, program in _PROGRAMS:
            here = words[i : i + len(program)]
            if here and (here[0].rsplit("/", 1)[-1], *here[1:]) == program:
                return engine, i + len(program)
    return None


def _arguments(words: list[str]) -> list[str]:
    """Return the words of a command before the first shell operator."""
    end = next((i for i, word in enumerate(words) if _END.fullmatch(word)), len(words))
    last = next((i + 1 for i, word in enumerate(words) if word.endswith(";")), end)
    return [word.removesuffix(";") for word in words[: min(end, last)]]


# Effects of a launch command's flags: their values as fields of ``ServingSpec`` or ``EngineSpec``.


class Read(NamedTuple):
    """Effect of a launch flag on a configuration.

    If both attributes are empty, the flag has no effect.

    Attributes:
        fields: Configuration values that the flag sets, by key.
        assumed: Description of the assumption made for an unmodelled flag; empty if it is modelled.
    """

    fields: Mapping[str, object] = {}
    assumed: str = ""


NOTHING = Read()


@cache
def _words(kind: str) -> dict[str, str]:
    """Return the meaning of each word in one category of ``data/engines/launch_words.csv``.

    Args:
        kind: Category of words: ``cache`` for formats of the KV cache; ``graphs`` for modes of CUDA
            graphs; ``quiet`` for keys of a compilation config that do not affect the modelled
            kernels and graphs.
    """
    rows = engine_rows("launch_words.csv")
    return {row["word"]: row["meaning"] for row in rows if row["kind"] == kind}


_PASSES = ("fuse_allreduce_rms", "enable_fi_allreduce_fusion")


def whole_number(text: str) -> object:
    """Convert a string such as ``32k`` or ``1M`` to a number; other strings are unchanged.

    As in vLLM, lower-case suffixes are decimal and upper-case suffixes binary (``vllm 0.15.1
    vllm/engine/arg_utils.py: human_readable_int``).

    >>> whole_number("32k"), whole_number("1M"), whole_number("7")
    (32000, 1048576, '7')
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if match is None:
        return text
    power = "kmgt".index(match[2].lower()) + 1
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)


def plain(engine: str, name: str, value: object) -> Read:
    """Return the effect of a flag that sets the field ``name`` to its value or to a synonym."""
    if name == "kv_cache_dtype":
        value = _words("cache").get(str(value), str(value))
        if value not in KV_CACHE_DTYPES:
            return Read(assumed=f"cache format {value}")
    if name == "max_model_len" and str(value).lower() in ("-1", "auto"):
        return Read(
            assumed="the longest context that fits in KV memory is unknown: the model's "
            "maximum is used"
        )
    if name == "speculative_config" and engine != VLLM and str(value).lower() in ("none", ""):
        return NOTHING
    return Read({name: whole_number(value) if isinstance(value, str) else value})


def _quantization(value: Any, _: str = "") -> Read:
    form = label_of(str(value))
    if form == "none":
        return NOTHING
    if form not in SCHEMES and form not in quantization_words("flag_methods"):
        return Read(
            assumed=f"kernels for {value} are unknown: kernels for the format in config.json are "
            f"used"
        )
    return Read({"precision": form})


def _dtype(value: object, _: str = "") -> Read:
    return Read(assumed="32-bit activations") if str(value) in ("float32", "float") else NOTHING


def _generation(value: object, _: str = "") -> Read:
    named = {"auto": "auto", "model": "auto", "vllm": "vllm", "openai": "vllm"}
    if str(value) in named:
        return Read({"generation_config": named[str(value)]})
    return Read(assumed=f"sampling settings in {value} are not read: the model's defaults are used")


def _largest_graph(value: object, _: str = "") -> Read:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    sizes = [int(number) for number in re.findall(r"\d+", text)]
    return Read({"max_cudagraph_capture_size": max(sizes)} if sizes else {})


def _chunk(value: Any, _: str = "") -> Read:
    if int(value) <= 0:  # sglang 0.5.9 server_args.py: -1 disables chunked prefill
        return Read({"enable_chunked_prefill": False})
    return Read({"max_num_batched_tokens": int(value)})


def _all_to_all(value: Any, _: str = "") -> Read:
    if value in ("none", DEEPEP):
        return Read({"moe_a2a_backend": value})
    return Read(assumed=f"{value} between experts' GPUs")


def _balance(value: Any, _: str = "") -> Read:
    """Return the effect of TensorRT-LLM's flag that balances attention data parallelism.

    If the flag is true but sets no number of steps, prompts wait 50 steps for further prompts.
    """
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        on = str(value).lower() == "true"
        return Read({"attention_dp_timeout_iters": 50} if on else {}, "" if on else "no balance")
    return Read({"attention_dp_timeout_iters": int(value)})


def _speculation(value: object, _: str = "") -> Read:
    text = value if isinstance(value, str) else files.json_text(value)
    return Read({"speculative_config": text})


def _overrides(value: object, _: str = "") -> Read:
    """Return the effect of vLLM's ``--hf-overrides``; RoPE settings permit a longer context."""
    values = _object(value, "--hf-overrides")
    if any("rope" in key or key in ("max_position_embeddings", "rope_type") for key in values):
        return Read({"force": True}, "--max-model-len is not compared with the model's maximum")
    return Read(assumed=f"overrides of the model's config: {', '.join(values)}")


def _rope(value: object, _: str = "") -> Read:
    """Return the effect of ``--rope-scaling``, which permits a longer context."""
    return _overrides({"rope_scaling": _object(value, "--rope-scaling")})


def _optimization(value: object, version: str) -> Read:
    """Return the effect of vLLM's optimization level on CUDA graphs.

    Since 0.12, level 0 runs without graphs and level 1 with piecewise graphs; levels 2 and 3 are
    the default (``vllm 0.15.1 vllm/config/vllm.py: OPTIMIZATION_LEVEL_00``). Before 0.12, the flag
    set the level of torch.compile.
    """
    level = str(value).removeprefix("O")
    if version and release(version) < (0, 12):
        return NOTHING if level == "3" else Read(assumed=f"compilation level {level}")
    if level == "0":
        return Read({"enforce_eager": True})
    return Read({"cudagraph_mode": "PIECEWISE"}) if level == "1" else NOTHING


def _compilation(value: object, version: str) -> Read:
    """Return the effect of vLLM's ``CompilationConfig``: CUDA graphs and fused all-reduces."""
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"O?[0-3]", value)):
        return _optimization(value, version)
    values = _object(value, "--compilation-config")
    fields: dict[str, object] = {}
    assumed = []
    passes = values.pop("pass_config", {}) or {}
    for key, item in {**values, **passes}.items():
        if item is None:  # vLLM uses its default for a null value
            continue
        if key in _PASSES:
            fields["fuse_all_reduce"] = bool(item)
        elif key in ("cudagraph_capture_sizes", "max_capture_size", "max_cudagraph_capture_size"):
            fields |= _largest_graph(item).fields
        elif key == "cudagraph_mode" and str(item).lower() in _words("graphs"):
            fields["cudagraph_mode"] = str(item).upper()
        elif key in ("level", "mode", "optimization_level"):
            assumed += [] if str(item) in ("3", "VLLM_COMPILE") else [f"{key} {item}"]
        elif key not in _words("quiet"):
            assumed.append(str(key))
    return Read(fields, ", ".join(assumed))


def _object(value: object, name: str) -> dict[str, Any]:
    found = documents.parse_json(value, name) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise PinnError(f"{name} must be a JSON object, got {value!r:.80}")
    return dict(found)


def _task(value: object, _: str = "") -> Read:
    """Return the effect of ``--task`` (the old name of ``--runner``) or ``--convert``."""
    word = str(value)
    if word in ("auto", "none", "draft", "transcription"):
        return NOTHING
    return Read({"runner": GENERATE if word == GENERATE else POOLING})


def _encoder_data(value: object, _: str = "") -> Read:
    on = TRUTH.get(str(value).lower(), True)
    return Read({"mm_encoder_tp_mode": DATA if on else WEIGHTS})


def _pooling(_value: object, _: str = "") -> Read:
    return Read({"runner": POOLING})


def _spread(_value: object, _: str = "") -> Read:
    return Read({"enable_expert_parallel": True})


def _tf32(_value: object, _: str = "") -> Read:
    return Read({"float32_matmul_precision": "high"})


def _connector(value: Any, _: str) -> Read:
    """Return the effect of ``--kv-transfer-config``; only a tier in host memory is modelled."""
    where = "--kv-transfer-config"
    given = value if isinstance(value, dict) else documents.parse_json(value, where)
    connector = given.get("kv_connector")
    if connector in ("OffloadingConnector", "LMCacheConnectorV1"):
        return Read({"kv_transfer_config": files.json_text(given)})
    return Read(assumed=f"without the transfers of {connector}")


#: Functions that return a flag's effect, given its value and the engine's release, by name in the
#: column ``field`` of ``launch_flags.csv``.
READERS: dict[str, Callable[[Any, str], Read]] = {
    f":{read.__name__.removeprefix('_')}": read
    for read in (
        _quantization, _dtype, _generation, _largest_graph, _chunk, _all_to_all, _spread, _balance,
        _speculation, _overrides, _rope, _optimization, _compilation, _task, _pooling,
        _encoder_data, _tf32, _connector,
    )
}  # fmt: skip


#: Keys of LMCache's configuration in ``--kv-transfer-config``, by equivalent environment variable.
_LMCACHE = {
    "LMCACHE_LOCAL_CPU": "lmcache.local_cpu",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "lmcache.max_local_cpu_size",
    "LMCACHE_CHUNK_SIZE": "lmcache.chunk_size",
}


def connector_variable(configuration: Mapping[str, Any], name: str, value: str) -> Read | None:
    """Return the field that an LMCache environment variable sets, or None if it sets none.

    Unless LMCache is the KV connector, its variables have no effect. Values in
    ``--kv-transfer-config`` override the variables.
    """
    if name not in _LMCACHE:
        return None
    config = documents.parse_json(configuration.get("kv_transfer_config") or "{}", name)
    runs = config.get("kv_connector") == "LMCacheConnectorV1"
    if not runs and configuration.get("kv_offloading_backend") != "lmcache":
        return None
    number = TRUTH[value.lower()] if name == "LMCACHE_LOCAL_CPU" else float(value)
    extra = {_LMCACHE[name]: number} | config.get("kv_connector_extra_config", {})
    whole = config | {"kv_connector_extra_config": extra}
    return Read({"kv_transfer_config": files.json_text(whole)})


def variable_read(name: str, text: str) -> Read | None:
    """Return the effect of an environment variable's value, or None if the variable is unknown.

    Each state (on or off) of a variable that has an effect is a row of
    ``data/engines/launch_variables.csv``. A row with the value ``*`` passes the variable's value.
    """
    on = text.lower() not in ("0", "false", "")
    lines = [row for row in engine_rows("launch_variables.csv") if row["variable"] == name]
    line = next((row for row in lines if on == (row["when"] == "on")), None)
    if line is None:
        return NOTHING if lines else None
    value = text if line["value"] == "*" else TRUTH.get(line["value"], line["value"])
    return Read({line["field"]: value} if line["field"] else {}, line["assumed"])
