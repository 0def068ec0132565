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
    "or a grid as text, such as 'model=Llama-3.1-8B gpu=H100,B200 tensor_parallel_size=1,2'. "
    "[default: those of --coefficients]",
    "images_per_request": "Images at the start of each prompt; prompt tokens include image tokens. "
    "An image is encoded in the step with its first token.",
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
    """A configuration and the source of its step times, beside flags of the engine.

    Attributes:
        batch: Batch to time, such as '32 decode @ 700' (32 decode requests with 700 tokens of
            context each) or '1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', instead of the
            network. Its model, GPU and flags are used unless given here.
        memory_log: Start-up log of such a server; its memory sizes replace predicted ones.
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
        skip_invalid: Skip and count invalid configurations.
    """

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    skip_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """Servers of a page, beside flags of the engine.

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
class ServeRequest:
    """Address of the HTTP service, and its limits.

    Attributes:
        host: Address to listen on. Only programs of this machine reach the default.
        port: Port to listen on; 0 for a free one.
        workers: Processes for predictions, and as many for simulations and plans. [default: one
            per core]
        queue: Requests that may wait for a process; one more gets status 503.
        timeout: Seconds that an answer may take to compute.
        files: Let requests name files of this machine, also where --host is not of this machine
            alone.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Flag(least=0, most=65535)] = 8000
    workers: Annotated[int | None, Flag(least=1, most=1024)] = None
    queue: Annotated[int, Flag(least=1, most=100_000)] = 256
    timeout: Annotated[float, Flag(above=0)] = 300.0
    files: bool = False
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServersRequest:
    """Servers other than those of the flags: two pools, or a fleet.

    Attributes:
        prefill: Prefill workers: '2x tp=4' is two with -tp 4 each. Other flags follow in short or
            in full, such as ep, dp=2, gpu=H200. Needs --decode.
        decode: Decode workers, in the form of --prefill.
        kv_link_gb_per_s: Bandwidth per GPU of KV transfers, in GB/s; inf for transfers that take
            no time. [default: the network port that the GPU's PCIe link fills]
        fleet: YAML file of a fleet: kinds of servers, start_up_s, failures, in_flight, autoscaler.
            Without kinds the fleet is --replicas of the command's server.
    """

    PANEL: ClassVar[str] = "Disaggregated prefill/decode, fleets"

    prefill: str | None = None
    decode: str | None = None
    kv_link_gb_per_s: float | None = None
    fleet: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BreakdownRequest:
    """Steps of a configuration to break down, and the networks for it.

    Attributes:
        batch: Step to break down, such as '64 decode @ 2000' (64 decode requests with 2000 tokens
            of context each) or '1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.
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
    """A workload and the source of step times, beside flags of server and load.

    Attributes:
        workload: CSV trace (Azure's and BurstGPT's too), TraceV2 header, JSON of Mooncake or
            ShareGPT, inference-perf or BLIS YAML, or a plain YAML with prompt_tokens, output_tokens
            and stages or concurrency; or give --input-len and the flags beside it.
        rate: Mean requests per second over the whole load; several, such as 1,2,4,8, give a table.
            [default: that of the file]
        seed: Seed of random draws. [default: that of the file, else 0]
        slo: Limits to check, such as 'ttft<=1s, tpot<=50ms' or 'ttft:1000 tpot:50' on each request,
            'p99 ttft<=2s' on all. Reports the share of requests within the limits, and goodput.
        percentiles: Percentiles of latencies to print, such as 50,90,99.9. [default: 50,90,95,99]
        num_warmups: Number of warm-up requests before the measurement.
        warmup_s: Duration of the warm-up before the measurement, in seconds.
        sensitivity: Also print which coefficients a metric of the JSON depends on, such as
            e2e_mean_ms, from one more run per coefficient.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', instead of the
            network. Its model, GPU and flags are used unless given here.
        memory_log: Start-up log of such a server; its KV cache size replaces the predicted one.
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
    """Measurements of a server, and the coefficients to start from.

    Attributes:
        observations: Folder that 'pinn ingest' wrote.
        benchmarks: Files or folders of a benchmark tool; several are separated by spaces.
        steps: Folder that 'pinn measure' wrote, or a CSV file of whole steps.
        model: Model of the measured server: a name, or a config.json.
        gpu: GPU of the measured server: a name, or a datasheet.
        append: Earlier calibration to continue from; its drift is printed. Its model, GPU and flags
            are used unless given here.
        base: Coefficient file to start from instead of the network.
        memory_log: Start-up log of the server. Its KV cache is compared with the flags and used in
            the simulation of benchmarks.
        kv_events: KV events of the server, or its metrics pages with kv_offload series, to fit the
            link to host memory; several pages are separated by spaces.
        force: Fit even if the measurements do not match the flags.
        accept: Write the calibration even if the held-out error of a metric is still large.
        budget: Number of randomly chosen intervals for the fit; 0 for all.
        intervals: Kind of intervals for the fit: windows (means of 5 to 15 steps), singles (one
            step) or both.
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
    """Settings of a table of configurations.

    Attributes:
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        skip_invalid: Skip invalid configurations.
        intervals: Include the ends of 90 % intervals.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    intervals: bool = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """Settings of folders made for configurations.

    Attributes:
        target: 'folder' for BLIS up to 2026-08-22, whose formula has eleven terms; 'kernel' for
            BLIS with a latency kernel, as coefficient sets of a registry with scenarios.
        workloads: Workload of the configurations, as 'pinn simulate' reads it. It gets a vector of
            coefficients beside those of steady loads up to saturation. With --target folder.
            Repeatable.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        skip_invalid: Skip invalid configurations.
        worst_error: Refuse a configuration if the relative error of BLIS's step time exceeds this
            in any step: with the vector that run.sh picks for the batch, or by the kernel's law.
            [default: 0.25; kernel: 0.2 with a median of 0.04, mixtures of experts 0.3 and 0.06]
    """

    target: Annotated[str, Flag(allowed=("folder", "kernel"))] = "folder"
    workloads: list[Path] | None = None
    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    worst_error: Annotated[float | None, Flag(least=0)] = None


@dataclass(frozen=True, kw_only=True)
class LlmDRequest:
    """Settings of the seeds of configurations.

    Attributes:
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        skip_invalid: Leave out what does not fit together.
        entries: Training entries of a configuration, half of them of TTFT and half of TPOT.
        seed: Seed of the random draws.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    entries: Annotated[int, Flag(least=10, most=1_000_000)] = 4000
    seed: Annotated[int, Flag(least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """Settings of files written beside the graphs.

    Attributes:
        inputs: JSON file to write, with inputs and outputs of both graphs.
        configs: Configuration of --inputs; exactly one.
        batch: Batch of --inputs, such as '32 decode @ 700'.
    """

    checkpoint: Path | None = None
    inputs: Path | None = None
    configs: str = "model=Llama-3.1-8B gpu=H100"
    batch: str = "32 decode @ 700"
