"""Arguments of the functions and commands of the same names, each declared once.

A field is an argument of the function and an option of the command. The docstring's Attributes
describe it to both; :data:`SHARED` describes arguments of several requests.
"""

import inspect
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, get_type_hints

from pinn.specs.flags import Flag, FlagValue

#: Arguments that mean the same in every request, unless its docstring says otherwise.
SHARED = {
    "model": "Name, or path of a config.json or its folder.",
    "gpu": "Name, or path of a datasheet's JSON file.",
    "configs": "CSV, YAML or JSON file of configurations or of a grid, as of 'pinn coefficients'; "
    "or a grid itself, such as 'model=Llama-3.1-8B gpu=H100,B200 tensor_parallel_size=1,2'. "
    "[default: those of --coefficients]",
    "images_per_request": "Images that begin each prompt; its tokens in a batch include theirs. A "
    "step with the first token of an image encodes it.",
    "image_size": "Size of each image in pixels.",
    "checkpoint": "Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
}
#: Other names of arguments, for functions and options alike.
OTHER_NAMES = {"request_rate": "rate"}
#: A name and its text in the Options or Attributes of a docstring.
_EXPLAINED = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def explained(what: object, section: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its last section, and the text of each name in that section."""
    text, _, listed = inspect.cleandoc(what.__doc__ or "").partition(f"{section}:\n")
    helps = {name: " ".join(said.split()) for name, said in _EXPLAINED.findall(listed)}
    return text.rstrip(), SHARED | helps


def parameters_of(request: type, *, limits: bool = False) -> list[inspect.Parameter]:
    """Return a keyword parameter for each field of a request, with its limits or without."""
    hints = get_type_hints(request, include_extras=limits)
    parameters = inspect.signature(request).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]


def named(model: str | None, gpu: str | None) -> dict[str, FlagValue]:
    """Return model and GPU as keys of a configuration, where they are given."""
    pairs: dict[str, FlagValue] = {"model": model, "gpu": gpu}
    return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """A configuration, and what times its steps; the engine's flags go beside it.

    Attributes:
        batch: Batch to time, such as '32 decode @ 700' (32 requests after 700 tokens each) or
            '1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network;
            its deployment holds where no flag says otherwise.
        memory_log: Log of the start of such a server, whose sizes replace predicted ones.
    """

    model: str | None = None
    gpu: str | None = None
    batch: list[str] | None = None
    images_per_request: Annotated[int, Flag(least=0, most=1000)] = 0
    image_size: str = "1024x1024"
    checkpoint: Path | None = None
    coefficients: Path | None = None
    memory_log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ManyRequest:
    """Defaults for configurations that lack a value; the engine's flags go beside it.

    Attributes:
        skip_invalid: Leave out, and count, configurations that do not fit together.
    """

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    skip_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """The servers of a page; the engine's flags go beside it.

    Attributes:
        gpu: Names, or paths of datasheets, separated by commas.
    """

    SEVERAL: ClassVar = {
        "quantization": "the checkpoint's own, and fp8",
        "tensor_parallel_size": "1, 2, 4 and 8",
    }

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class WorkersRequest:
    """Who simulates.

    Attributes:
        backend: processes of this machine, or ray.
        workers: Tasks at a time. [default: one per core; 1 for a function, whose caller with more
            stands below ``if __name__ == "__main__"``]
        address: Address of a running Ray cluster.
    """

    PANEL: ClassVar[str] = "Where simulations run"

    backend: str = "processes"
    workers: Annotated[int | None, Flag(least=1)] = None
    address: str | None = None

    @property
    def count(self) -> int:
        """Return the number of tasks at a time."""
        return self.workers or os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class ServersRequest:
    """Servers other than those of the flags: two pools, or a fleet.

    Attributes:
        prefill: Prefill servers of their own: '2x tp=4' is two with -tp 4 each; other flags in
            short or in full, such as ep, dp=2, gpu=H200. Goes with --decode.
        decode: The decode servers.
        kv_link_gb_per_s: Rate at which a GPU sends or takes keys and values, in GB/s; inf for
            transfers that take no time. [default: the network port that the GPU's PCIe link fills]
        fleet: YAML file with kinds of servers, start_up_s, failures, in_flight and autoscaler, for
            --replicas of the flags where it lists no kinds.
    """

    PANEL: ClassVar[str] = "Disaggregated prefill/decode, fleets"

    prefill: str | None = None
    decode: str | None = None
    kv_link_gb_per_s: float | None = None
    fleet: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BreakdownRequest:
    """Steps of a configuration, and what they are broken down with.

    Attributes:
        batch: Step to break down, such as '64 decode @ 2000' (64 requests after 2000 tokens each)
            or '1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.
        kernels: Folder of fitted kernel surrogates. [default: kernels/all beside the checkpoint,
            else checkpoints/kernels/all]
    """

    model: str | None = None
    gpu: str | None = None
    batch: list[str] | None = None
    images_per_request: Annotated[int, Flag(least=0, most=1000)] = 0
    image_size: str = "1024x1024"
    checkpoint: Path | None = None
    kernels: Path | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """A workload to serve, and what times its steps; the flags of server and load go beside it.

    Attributes:
        workload: CSV trace (Azure's and BurstGPT's too), TraceV2 header, JSON of Mooncake or
            ShareGPT, inference-perf or BLIS YAML, or a plain YAML with prompt_tokens, output_tokens
            and stages or concurrency; or give --input-len and the flags beside it.
        rate: Mean requests per second, for as long as the load lasts; several with commas between
            them, such as 1,2,4,8, for a table of them. [default: the file's own]
        seed: Of random draws. [default: the file's, else 0]
        slo: Limits to check, such as 'ttft<=1s, tpot<=50ms' or 'ttft:1000 tpot:50' on each request,
            'p99 ttft<=2s' on all: says which share of the requests meets them, and goodput.
        percentiles: Of latencies, such as 50,90,99.9. [default: 50,90,95,99]
        num_warmups: Requests that are served first and not measured.
        warmup_s: Seconds in which requests are sent that are not measured.
        sensitivity: Also say which coefficients a figure of the JSON depends on, such as
            e2e_mean_ms: the run again with each one changed, everything else equal.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network;
            its deployment holds where no flag says otherwise.
        memory_log: Log of the start of such a server, whose KV cache is taken in place of the one
            that the memory model expects.
    """

    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: str | None = None
    seed: int | None = None
    slo: str | None = None
    percentiles: str | None = None
    num_warmups: Annotated[int, Flag(least=0)] = 0
    warmup_s: Annotated[float, Flag(least=0)] = 0.0
    sensitivity: str | None = None
    checkpoint: Path | None = None
    coefficients: Path | None = None
    memory_log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """Measurements of a server, and the coefficients that it is fitted from.

    Attributes:
        observations: Folder that 'pinn ingest' wrote.
        benchmarks: Files or folders that a benchmark tool wrote, in place of traces; several in a
            row.
        steps: Folder that 'pinn measure' wrote, or a CSV file like it.
        model: What the benchmarks were of: a name, or a config.json.
        gpu: What they ran on: a name, or a datasheet.
        append: Go on from the posterior of an earlier calibration, and say its drift; its model,
            GPU and flags hold where no other are given.
        base: Coefficient set to start from, in place of the network.
        memory_log: Log of the server's start: its KV cache has to match the flags, and benchmarks
            are simulated with it.
        kv_events: KV events of the server, or its metrics pages with kv_offload series, for the
            rate and the latency of its link to host memory; several pages in a row.
        force: Fit although the file does not match the flags.
        accept: Write the calibration although the held-out error of a metric is still large.
        budget: Intervals to fit to, chosen at random; 0 for all there are.
        intervals: Fit to windows (means of 5 to 15 steps), singles (one step) or both.
        seed: Seed of the random choice.
    """

    observations: Path | None = None
    benchmarks: list[Path] | None = None
    steps: Path | None = None
    model: str | None = None
    gpu: str | None = None
    append: Path | None = None
    base: Path | None = None
    checkpoint: Path | None = None
    memory_log: Path | None = None
    kv_events: list[Path] | None = None
    force: bool = False
    accept: bool = False
    budget: Annotated[int, Flag(least=0)] = 500
    intervals: str = "both"
    seed: Annotated[int, Flag(least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class MeasureRequest:
    """Settings of measuring: batches, duration, engine.

    Attributes:
        model: Folder with a config.json, or a name that vLLM knows.
        out: Folder for the table of steps.
        minutes: Minutes of measuring, once the engine has started.
        load: Closed loop that is asked for, as CLIENTSxPROMPTxOUTPUT; may be given again. [default:
            1, 16, 64 and 256 clients of 1000x200]
        script: Write the program for another machine, and run nothing.
        python: Interpreter that has the engine.
        serve: Also start a server on this machine and load it, before the steps. Takes no launch
            command, as --serve of other commands does; flags of the server stand beside it.
        port: Port of that server; 0 for a free one.
        force: Measure on a card that is in use, or a model that should not fit.
    """

    model: str
    out: Path = Path("steps")
    gpu: str | None = None
    minutes: Annotated[float, Flag(least=0.1)] = 10.0
    load: list[str] | None = None
    script: Path | None = None
    python: str = sys.executable
    serve: bool = False
    port: Annotated[int, Flag(least=0, most=65535)] = 0
    force: bool = False
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """How a table of configurations is made.

    Attributes:
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        skip_invalid: Leave out what does not fit together.
        intervals: Ends of 90 % intervals where they are known.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    intervals: bool = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """Settings of folders made for configurations.

    Attributes:
        workloads: What the configurations will serve, as of 'pinn simulate': a vector of its own
            beside those of steady loads from one request to saturation. Repeatable.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        skip_invalid: Leave out what does not fit together.
        worst_error: Refuse a configuration of whose step times BLIS's formula gets one more wrong
            than by this share, with the vector that run.sh picks for such a batch.
    """

    workloads: list[Path] | None = None
    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    worst_error: Annotated[float, Flag(least=0)] = 0.25


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """Settings of files written beside the graphs.

    Attributes:
        inputs: JSON file to write: inputs of both graphs, and the result.
        configs: The one configuration of --inputs, as of 'export table'.
        batch: The batch of --inputs, as of 'pinn coefficients'.
    """

    checkpoint: Path | None = None
    inputs: Path | None = None
    configs: str = "model=Llama-3.1-8B gpu=H100"
    batch: str = "32 decode @ 700"
