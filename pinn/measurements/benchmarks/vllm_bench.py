"""Readers of the result files of vLLM's and SGLang's own benchmark clients."""

from dataclasses import replace
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pinn.common import Json
from pinn.common.documents import first_fault
from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.specs.flags import Flag, FlagValue, flags_of, given_flags
from pinn.specs.serving import SGLANG, VLLM, ServingSpec
from pinn.units import MILLISECOND

# ``vllm bench serve --save-result``: one JSON object per run.
#
# Format as in the sources of vLLM 0.6.6 to 0.33 (``vllm/benchmarks/serve.py``,
# ``benchmarks/benchmark_serving.py``). TPOT is (E2E - TTFT) / (output tokens - 1) of each request;
# ITLs are the gaps between stream chunks. Requested lengths, prefixes, seeds and engine flags are
# not stored.

#: Names of protocols (``--backend``) for engines that are not supported.
_UNKNOWN = {"deepspeed-mii", "gserver", "llama.cpp", "lmdeploy", "scalellm", "tgi", "truss"}

#: Fields of ``ServingSpec``, by key that users often pass to ``--metadata``.
_ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size",
            "dp": "data_parallel_size", "quantization": "precision"}  # fmt: skip


class ClientFile(BaseModel):
    """Keys of a result file of vLLM's or SGLang's benchmark client; other keys are ignored."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    backend: str = ""
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_prompts: int | None = None
    ramp_up_strategy: str | None = None
    duration: float
    completed: int
    failed: int | None = None
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float | None = None
    output_throughput: float | None = None
    input_lens: list[int] = Field(default_factory=list)
    output_lens: list[int] = Field(default_factory=list)
    ttfts: list[float] = Field(default_factory=list)
    itls: list[list[float]] = Field(default_factory=list)
    start_times: list[float] = Field(default_factory=list)

    @classmethod
    def checked(cls, values: Tree) -> Self:
        """Return the file's known keys with validated values.

        Raises:
            NotUsable: If keys are missing or a value is wrong; the message names them.
        """
        try:
            return cls.model_validate(values.values)
        except ValidationError as error:
            lacking = [str(e["loc"][0]) for e in error.errors() if e["type"] == "missing"]
            place, reason = first_fault(error)
            keys = ", ".join(lacking)
            fault = f"the file lacks the keys {keys}" if lacking else f"{place}: {reason}"
            raise NotUsable(fault) from error


#: Keys that identify files of vLLM's benchmark client.
is_vllm_bench = marks.keys("model_id", "num_prompts", "completed")


def read_vllm_bench(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a result file of vLLM's benchmark client.

    Raises:
        NotUsable: If no request was served, the rate was ramped up, or a number is missing.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    file = ClientFile.checked(values)
    if file.ramp_up_strategy:
        raise NotUsable("the request rate was ramped up during the run, expected a fixed rate")
    sent = file.num_prompts or file.completed + (file.failed or 0)
    load = client_load(file, sent, reading)
    failed = max(sent - file.completed, file.failed or 0)
    figures = client_figures(file, values, "e2el")
    return reading.run(load, figures, file.completed, failed, _server(values))


def client_load(file: ClientFile, sent: int, reading: Reading) -> Load:
    """Return the load that vLLM's or SGLang's benchmark client sent.

    Raises:
        NotUsable: If no request was served, or the engine is not supported.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    if file.completed < 1:
        raise NotUsable("the run has no completed request")
    if file.backend in _UNKNOWN:
        raise NotUsable(f"the engine was {file.backend}, whose scheduler is not simulated")
    rate = None if file.request_rate in (None, float("inf")) else file.request_rate
    served = [i for i, n in enumerate(file.output_lens) if n > 0]
    detailed = bool(served) and len(file.input_lens) == len(file.output_lens)
    if detailed:
        prompt = Lengths.listed(tuple(max(file.input_lens[i], 1) for i in served))
        output = Lengths.listed(tuple(file.output_lens[i] for i in served))
    else:
        totals = file.total_input_tokens, file.total_output_tokens
        prompts, outputs = (total / file.completed or None for total in totals)
        prompt = reading.lengths(reading.needed("prompt_tokens", prompts))
        output = reading.lengths(reading.needed("output_tokens", outputs))
    offsets: tuple[float, ...] = ()
    if detailed and rate and not file.max_concurrency and len(file.start_times) == len(file.ttfts):
        starts = [file.start_times[i] for i in served]
        offsets = tuple(sorted(start - min(starts) for start in starts))
    concurrency = reading.concurrency(file.max_concurrency)
    rate = reading.or_stated("request_rate", rate)
    process, cv = "gamma" if file.burstiness != 1 else "poisson", file.burstiness**-0.5
    requests, prefix = len(served) if detailed else sent, reading.prefix()
    return Load(requests, prompt, output, concurrency, rate, process, cv, offsets, prefix)


def client_figures(file: ClientFile, values: Tree, e2e: str) -> dict[str, float]:
    """Return the metrics in a file, or else compute them from its individual requests.

    Raises:
        NotUsable: If the file has no latency.
    """
    stated = _details(file) | documents.client_statistics(values, e2e, MILLISECOND, "_ms")
    if not stated:
        wanted = (f"{each}_{name}_ms" for name in ("ttft", "tpot") for each in ("mean", "median"))
        raise NotUsable(f"the file has no latency, expected keys such as {', '.join(wanted)}")
    return stated | documents.throughputs(file.request_throughput, file.output_throughput)


def _details(file: ClientFile) -> dict[str, float]:
    if not (len(file.ttfts) == len(file.itls) == len(file.output_lens) > 0):
        return {}
    each = zip(file.ttfts, file.itls, file.output_lens, strict=True)
    rows = [(first, first + sum(gaps), tokens) for first, gaps, tokens in each if tokens > 0]
    pooled = documents.sample_figures("itl", (gap for gaps in file.itls for gap in gaps))
    return documents.request_figures(*zip(*rows, strict=True)) | pooled if rows else {}


def _server(values: Tree) -> StatedServer:
    """Return the facts about the server passed to the client by ``--metadata``."""
    aliased = {_ALIASES[k]: v for k, v in values.values.items() if k in _ALIASES}
    named = Tree({**values.values, **aliased})
    flags = given_flags(ServingSpec, named.values, "--metadata")
    if precision := named.text("precision"):
        flags["precision"] = precision
    version = values.text("vllm_version", "version")
    engine = f"vllm {version}" if version else _other_engine(values.text("backend"))
    speculative = any(k.startswith("spec_decode") and v for k, v in values.values.items())
    model, gpu = values.text("model_id"), values.text("gpu", "hw", "accelerator")
    return StatedServer(model, gpu, flags, engine=engine, speculative=speculative)


def _other_engine(spoken: str) -> str:
    """Return the client's protocol if it identifies an engine other than vLLM, else "".

    The protocols of vLLM and OpenAI do not identify the engine, because all engines support them.
    """
    return spoken if StatedServer(engine=spoken).all_flags.get("engine", VLLM) != VLLM else ""


# ``python -m sglang.bench_serving --output-file``: one JSON object per run, appended.
#
# Format as in the sources of SGLang 0.4.1 to 0.5.23. From 0.5.8 on ``server_info`` has the server's
# resolved flags. Random lengths are uniform in [r L, L] with the requested length L and the range
# ratio r, by default 0. The mean length is then L / 2; the stored totals show whether this is true.

#: Factor on ``schedule_conservativeness`` in SGLang under attention data parallelism, which also
#: divides the chunk size by the ranks (0.5.9 server_args.py: _handle_data_parallelism). The reader
#: reverses these changes to recover the user's flags.
_CONSERVATIVE = 0.3

#: Flags that are not read by name, because they are read separately or because SGLang uses its own
#: names for their resolved values.
_UNREAD = {"engine", "engine_version", "kv_cache_dtype", "moe_backend", "sampling_backend",
           "speculative_config", "disaggregation_mode"}  # fmt: skip
#: Values of ``--quantization``, by SGLang's name of a number format.
_FORMATS = {"modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8_static", "fp8": "fp8",
            "w8a8_fp8": "fp8", "w8a8_int8": "int8", "awq": "int4", "gptq": "int4",
            "mxfp4": "mxfp4"}  # fmt: skip

#: Lengths are assumed to have the requested distribution if its mean differs from the mean length
#: sent by at most this relative amount.
_AGREES = 0.1


class _File(ClientFile):
    backend: str = "sglang"
    dataset_name: str = ""
    random_input_len: int | None = None
    random_output_len: int | None = None
    random_range_ratio: float | None = None
    accept_length: float | None = None
    server_info: dict[str, object] | None = None


#: Keys that identify files of SGLang's benchmark client.
is_sglang_bench = marks.keys("dataset_name", "random_input_len", "completed")


def read_sglang_bench(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a result file of SGLang's benchmark client.

    Raises:
        NotUsable: If no request was served or a number is missing.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    file = _File.checked(values)
    if "shared-prefix" in file.dataset_name:
        reading.needed("prompt_groups")
    sent = file.num_prompts or reading.given.num_prompts or file.completed
    load = _random_lengths(file, client_load(file, sent, reading), reading.assumed)
    info = file.server_info
    server = sglang_server(Tree(info)) if info else StatedServer(engine=file.backend)
    server = replace(server, speculative=server.speculative or (file.accept_length or 1) > 1)
    figures = client_figures(file, values, "e2e_latency")
    return reading.run(load, figures, file.completed, sent - file.completed, server)


def _random_lengths(file: _File, load: Load, assumed: list[str]) -> Load:
    """Return the load with uniform lengths if its token totals are consistent with the range."""
    if not file.dataset_name.startswith("random") or load.prompt.each:
        return load
    share = file.random_range_ratio or 0.0
    prompt = _uniform(load.prompt, share, file.random_input_len)
    load = replace(load, prompt=prompt, output=_uniform(load.output, share, file.random_output_len))
    if load.prompt.low is not None and load.output.low is not None:
        assumed[:] = [text for text in assumed if "--length-range" not in text]
    return load


def _uniform(lengths: Lengths, share: float, asked: int | None) -> Lengths:
    """Return uniform lengths from ``share * asked`` to ``asked`` tokens if the mean matches."""
    mean = lengths.mean
    if not asked or abs(asked * (1 + share) / 2 / mean - 1) > _AGREES:
        return lengths
    least = max(share * asked, 1)
    return Lengths(mean, least, 2 * mean - least)


def sglang_server(info: Tree) -> StatedServer:
    """Return facts about the server from ``server_info``, SGLang's record of its resolved flags.

    Raises:
        NotUsable: If prefill and decode were disaggregated.
    """
    if (info.text("disaggregation_mode") or "null") != "null":
        raise NotUsable("the server ran disaggregated prefill/decode, expected a single server")
    flags: dict[str, FlagValue] = {
        f.name: f.read(value)
        for f in flags_of(ServingSpec)
        if f.name not in _UNREAD and (value := _resolved(f, info)) is not None
    }
    replicas = info.count("dp_size")
    if flags.get("enable_dp_attention") and replicas > 1:
        for name, factor in (("max_num_batched_tokens", replicas),
                             ("schedule_conservativeness", 1 / _CONSERVATIVE)):  # fmt: skip
            if isinstance(stated := flags.get(name), int | float):
                flags[name] = stated * factor
    if info.text("kv_cache_dtype").startswith("fp8"):
        flags["kv_cache_dtype"] = "fp8"
    if (info.number("chunked_prefill_size") or 1) < 0:
        flags["enable_chunked_prefill"] = False
    if (label := info.text("quantization")) in _FORMATS:
        flags["precision"] = _FORMATS[label]
    states = info.trees("internal_states") or [Tree()]
    tokens = states[0].at("memory_usage").count("token_capacity") or None
    engine = f"sglang {info.text('version')}".strip()
    speculative = bool(info.text("speculative_algorithm"))
    return StatedServer(info.text("model_path"), "", flags, tokens, engine, speculative)


def _resolved(flag: Flag, info: Tree) -> Json:
    """Return a flag's resolved value from ``server_info``; None if missing or -1."""
    spelled = flag.spelled.get(SGLANG, flag.name)
    value = info.values.get(spelled.removeprefix("no_"))
    if value is None or (flag.kind in ("int", "float") and float(str(value)) <= 0):
        return None
    return not value if spelled.startswith("no_") else value
