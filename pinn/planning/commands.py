"""Commands that start the servers in a row of a plan, and a command that reproduces its metrics.

The flags' names for each engine are in their declarations (``pinn.specs.serving``). A comment after
the command lists settings that the engine's command cannot express.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from pinn.common.files import data_folder, json_text, read_rows
from pinn.common.numbers import exact
from pinn.engines.configurations import Values
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.candidate import NETWORK, Candidate
from pinn.planning.pools import PoolsCandidate
from pinn.specs.catalog import load_model
from pinn.specs.flags import Flag, FlagValue, flags_of
from pinn.specs.model_names import repository
from pinn.specs.quantization_block import quantization_words
from pinn.specs.serving import SGLANG, TRTLLM, VLLM, ServingSpec

_FLAGS = (*flags_of(ServingSpec), *flags_of(EngineSpec))
#: Fields of a configuration that are not engine flags.
_ABOUT = frozenset(
    {
        "engine", "engine_version", "speculative_acceptance", "replicas", "data_parallel_routing",
        "router", "router_weights", "router_staleness_s",
    }
)  # fmt: skip
#: Options with which vLLM and SGLang convert a 16-bit checkpoint, by target format. All other
#: formats need a checkpoint in that format.
ON_THE_FLY = {"fp8": ["--quantization", "fp8"], "bf16": ["--dtype", "bfloat16"],
              "fp16": ["--dtype", "float16"]}  # fmt: skip
#: Formats with 16 bits.
_WIDE = frozenset({"bf16", "fp16"})
#: vLLM's names of KV cache formats, by format, if they differ (``vllm/config/cache.py:
#: CacheDType``).
_CACHE_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
#: Option with which vLLM's prefill and decode workers transfer the KV cache by NIXL. Both use the
#: same option, because the proxy tells each server its role
#: (``docs/features/nixl_connector_usage.md`` of vLLM).
_TRANSFER = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')


def sglang_command(given: Values) -> str:
    """Return the SGLang command of a configuration, ``python -m sglang.launch_server ...``."""
    form = str(given.get("precision", ""))
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        repository(str(given["model"])),
    ]
    words += _as_format(form)
    unsaid = []
    for flag, value in _set(given):
        said = _sglang_words(flag, value)
        words += said or []
        unsaid += [] if said else [flag.option]
    return shlex.join(words) + _note(_checkpoint_form(given), unsaid)


def _as_format(form: str) -> list[str]:
    """Return the options that set a number format; empty if the checkpoint already has it."""
    named = ["--quantization", form] if form in quantization_words("flag_methods") else []
    return ON_THE_FLY.get(form, named)


def _checkpoint_form(given: Values) -> str:
    """Return the format that the checkpoint must have; empty if the engine converts the weights.

    An engine converts 16-bit weights, but does not dequantize others.
    """
    form = str(given.get("precision") or "")
    if not _as_format(form):
        return form
    own = {each.name for each in vars(load_model(str(given["model"])).precisions).values()}
    return form if form in _WIDE and not own <= _WIDE else ""


def _sglang_words(flag: Flag, value: FlagValue) -> list[str] | None:
    """Convert a flag to arguments of SGLang's command; None if SGLang has no such flag."""
    if flag.name == "enable_chunked_prefill":
        return None if value else ["--chunked-prefill-size", "-1"]
    if flag.name in _words_of(SGLANG) or (
        flag in flags_of(EngineSpec) and SGLANG not in flag.spelled
    ):
        return None
    name = flag.spelled_for(SGLANG)
    if flag.kind != "bool":
        return [name, exact(value)]
    # SGLang's boolean flags have no negative form, so only one of the two values can be expressed.
    return [name] if value != _is_reverse(flag, SGLANG) else None


@cache
def _words_of(engine: str) -> dict[str, str]:
    """Return an engine's option for each field whose declaration does not name the option.

    Fields with an empty option are not part of the command: the program to run, facts about the
    server, or simulator settings. For vLLM, the options are parts of its compilation config, which
    its parser accepts individually (``vllm/utils/argparse_utils.py:
    FlexibleArgumentParser.parse_args``). For TensorRT-LLM, they are options of
    ``tensorrt_llm/commands/serve.py``, or, without dashes, keys of
    ``tensorrt_llm/llmapi/llm_args.py`` for its ``--extra_llm_api_options`` file.
    """
    rows = read_rows(data_folder("engines") / "command_words.csv")
    return {row["field"]: row["written"] for row in rows if row["engine"] == engine}


def _is_reverse(flag: Flag, engine: str) -> bool:
    return flag.spelled.get(engine, "").startswith("no_")


def trtllm_command(given: Values) -> str:
    """Return ``trtllm-serve ...`` for bash, which passes the options file through a pipe."""
    words = ["trtllm-serve", repository(str(given["model"])), "--backend", "pytorch"]
    extra: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    unsaid = []
    for flag, value in _set(given):
        word = _words_of(TRTLLM).get(flag.name, "")
        section, _, key = word.rpartition(".")
        if word.startswith("--"):
            words += [word, exact(value)]
        elif word:
            place = sections.setdefault(section, {}) if section else extra
            extra |= {section: place} if section else {}
            place[key] = value != _is_reverse(flag, TRTLLM) if flag.kind == "bool" else value
            if flag.name == "speculative_config":
                place[key] = json.loads(str(value))
        elif flag.name == "enforce_eager":
            extra["cuda_graph_config"] = None
        elif flag.name != "data_parallel_size":  # enable_attention_dp implies this size
            unsaid.append(flag.option)
    line = shlex.join(words)
    if extra:
        line += f" --extra_llm_api_options <(echo {shlex.quote(json_text(extra))})"
    return line + _note(str(given.get("precision", "")), unsaid)


def _set(given: Values) -> list[tuple[Flag, FlagValue]]:
    """Return the flags of a configuration that differ from their defaults, with their values."""
    return [
        (flag, given[flag.name])
        for flag in _FLAGS
        if flag.name not in _ABOUT
        and given.get(flag.name) is not None
        and given[flag.name] != flag.default
    ]


def _note(form: str, unsaid: list[str]) -> str:
    notes = [f"with a checkpoint in {form}"] if form else []
    notes += [f"it has no {', '.join(unsaid)}"] if unsaid else []
    return f"  # {'; '.join(notes)}" if notes else ""


def serve_command(candidate: Candidate) -> str:
    """Return the engine's command for one replica; for P/D one command for each type of worker."""
    settings = _given(candidate.engine)
    if isinstance(candidate, PoolsCandidate):
        servers = {
            "prefill": (candidate.prefill_servers, candidate.prefill.configuration),
            "decode": (candidate.decode_servers, candidate.configuration),
        }
        return "\n".join(
            f"{_vllm_command(dict(row) | settings, _TRANSFER)}  # {count} of them, {role}"
            for role, (count, row) in servers.items()
        )
    commands: Mapping[str, Callable[[Values], str]] = {
        VLLM: _vllm_command,
        SGLANG: sglang_command,
        TRTLLM: trtllm_command,
    }
    return commands[candidate.deployment.serving.engine](dict(candidate.configuration) | settings)


def _vllm_command(row: Values, more: Sequence[str] = ()) -> str:
    """Return the vLLM command of a configuration, ``vllm serve ...``."""
    line = shlex.join(["vllm", "serve", repository(str(row["model"])), *vllm_words(row), *more])
    return line + _note(_checkpoint_form(row), [])


def vllm_words(given: Values) -> list[str]:
    """Return a configuration as vLLM command-line arguments.

    Args:
        given: Fields of ``ServingSpec`` and ``EngineSpec``, and ``precision``. Fields without a
            flag in vLLM are omitted, and so are number formats to which vLLM cannot convert.
    """
    words = _words_of(VLLM)
    foreign = {flag.name for flag in _FLAGS if VLLM not in (flag.engines or (VLLM,))}
    row = {name: value for name, value in given.items() if name not in {*words, *foreign}}
    dtype = str(row.get("kv_cache_dtype"))
    if dtype in _CACHE_DTYPES:
        row["kv_cache_dtype"] = _CACHE_DTYPES[dtype]
    compiled = {word: given.get(name) for name, word in words.items() if word}
    return [
        *_as_format(str(given.get("precision"))),
        *_written(ServingSpec, row),
        *_written(EngineSpec, row),
        *(f"{word}={str(value).lower() if isinstance(value, bool) else exact(value)}"
          for word, value in compiled.items() if value not in (None, "")),
    ]  # fmt: skip


def simulate_command(
    candidate: Candidate, load: Sequence[str], rate_per_s: float, replicas: int, router: str | None
) -> str:
    """Return the ``pinn simulate`` command for all replicas at a rate, with the router if given.

    Args:
        candidate: Candidate whose replicas are simulated.
        load: Command-line arguments that describe the load.
        rate_per_s: Total request rate of all replicas, in requests per second.
        replicas: Number of replicas.
        router: Routing policy; None if there is no router.
    """
    row, engine = candidate.configuration, _given(candidate.engine)
    engine |= {} if router is None else {"router": router}
    servers = {"replicas": replicas} if replicas > 1 else {}
    pools: list[str] = []
    if isinstance(candidate, PoolsCandidate):
        prefill, decode = candidate.pool_texts(replicas)
        row = {name: value for name, value in row.items() if name not in candidate.own}
        servers, pools = {}, ["--prefill", prefill, "--decode", decode]
    words = ["pinn", "simulate", "--model", str(row["model"]), "--gpu", str(row["gpu"])]
    words += ["--quantization", str(row["precision"])] if "precision" in row else []
    words += ["--force"] if row.get("force") else []
    words += [*_written(ServingSpec, row), *_written(EngineSpec, engine | servers), *pools]
    words += ["--coefficients", candidate.source] if candidate.source != NETWORK else []
    return shlex.join([*words, *load, "--rate", exact(rate_per_s)])


def _given(engine: EngineSpec) -> dict[str, FlagValue]:
    """Return the engine settings that differ from their defaults, as flags."""
    return {
        flag.name: value
        for flag in flags_of(EngineSpec)
        if (value := getattr(engine, flag.name)) != flag.default
    }


def _written(specification: type, values: Values) -> list[str]:
    words: list[str] = []
    for flag in flags_of(specification):
        value = values.get(flag.name, flag.default)
        if flag.name not in values or (value == flag.default and not flag.shown):
            continue
        if flag.kind != "bool":
            words += [flag.option, exact(value)]
        else:
            words.append(flag.option if value else f"--no-{flag.option.removeprefix('--')}")
    return words
