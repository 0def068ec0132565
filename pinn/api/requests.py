"""Arguments that a Python function shares with the command of the same name, declared once.

A field is an argument of the function and an option of the command. The section Attributes of the
docstring is the help of the argument and of the option. :data:`SHARED` contains the help of
arguments shared by several requests.
"""

import inspect
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, get_type_hints

from pinn.specs.flags import Flag, FlagValue
from pinn.specs.request_media import MOST_AUDIO_S

#: Help of arguments that mean the same in all requests. A request's docstring may override it.
SHARED = {
    "model": "Model: a name of 'pinn models' or Hugging Face, or the path of a config.json or its "
    "folder.",
    "gpu": "GPU: a name of 'pinn gpus', or the path of a datasheet's JSON file.",
    "configs": "Configurations: a CSV, YAML or JSON file as of 'pinn coefficients --configs', or a "
    "grid as text, such as 'model=Llama-3.1-8B gpu=H100,B200 tensor_parallel_size=1,2'. "
    "[default: the configurations of the --coefficients files]",
    "images_per_request": "Number of images at the start of each prompt; prompt tokens include "
    "image tokens. An image is encoded in the step that has its first token.",
    "image_size": "Size of each image in pixels.",
    "audio_seconds": "Length in seconds of each audio clip at the start of each prompt; prompt "
    "tokens include audio tokens. [default: no audio]",
    "audios_per_request": "Number of audio clips of each prompt, with --audio-seconds.",
    "checkpoint": "File of the trained network. [default: the environment variable "
    "PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
}
#: Current names of arguments of functions and options of commands, by alternative name.
OTHER_NAMES = {"request_rate": "rate"}
#: Pattern of a name and its help in the Options or Attributes section of a docstring.
_EXPLAINED = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def explained(what: object, section: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its last section, and that section's help texts by name."""
    text, _, listed = inspect.cleandoc(what.__doc__ or "").partition(f"{section}:\n")
    helps = {name: " ".join(said.split()) for name, said in _EXPLAINED.findall(listed)}
    return text.rstrip(), SHARED | helps


def parameters_of(request: type, *, limits: bool = False) -> list[inspect.Parameter]:
    """Return a keyword parameter for each field of a request class.

    With ``limits``, the annotations keep the allowed range of values.
    """
    hints = get_type_hints(request, include_extras=limits)
    parameters = inspect.signature(request).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]


def named(model: str | None, gpu: str | None) -> dict[str, FlagValue]:
    """Return model and GPU as keys of a configuration, omitting those that are None."""
    pairs: dict[str, FlagValue] = {"model": model, "gpu": gpu}
    return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Configuration and source of its step times; engine flags are separate arguments.

    Attributes:
        batch: Batch to time, such as '32 decode @ 700' (32 decode requests with 700 tokens of
            context each) or '1 prefill 512 @ 0 + 16 decode @ 600' (with a prefill of 512 tokens).
            Repeatable. [default: example batches]
        coefficients: Coefficient file: the JSON file of 'pinn calibrate' or 'pinn coefficients
            --json', used instead of the network. Its model, GPU and flags are used unless given
            here.
        memory_log: Start-up log of a server with this configuration; its memory sizes replace the
            predicted ones.
    """

    model: str | None = None
    gpu: str | None = None
    batch: list[str] | None = None
    images_per_request: Annotated[int, Flag(least=0, most=1000)] = 0
    image_size: str = "1024x1024"
    audio_seconds: Annotated[float, Flag(least=0, most=MOST_AUDIO_S)] = 0.0
    audios_per_request: Annotated[int, Flag(least=1, most=1000)] = 1
    checkpoint: Path | None = None
    coefficients: Path | None = None
    memory_log: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ManyRequest:
    """Defaults for values missing from configurations; engine flags are separate arguments.

    Attributes:
        skip_invalid: Do not stop at configurations that the engine refuses or that are invalid;
            their rows have a reason instead of predictions, and they are counted.
    """

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    skip_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """Servers of an interactive page; engine flags are separate arguments.

    Attributes:
        gpu: GPUs: names of 'pinn gpus' or paths of datasheets, separated by commas.
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
    """Processes or machines that run simulations.

    Attributes:
        backend: Where simulations run: processes (of this machine) or ray.
        workers: Number of simulations at a time. [default: one per core for a command, 1 for a
            Python function; a script with more needs ``if __name__ == "__main__":``]
        address: Address of a running Ray cluster, for --backend ray.
    """

    PANEL: ClassVar[str] = "Where simulations run"

    backend: str = "processes"
    workers: Annotated[int | None, Flag(least=1)] = None
    address: str | None = None

    @property
    def count(self) -> int:
        """Number of simulations at a time."""
        return self.workers or os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """Address and limits of the HTTP service.

    Attributes:
        host: Address to listen on. The default accepts connections from this machine only.
        port: Port to listen on; 0 for a free one.
        workers: Number of worker processes for predictions, and number of further processes for
            simulations and plans. [default: one per core]
        queue: Maximum number of requests that wait for a free worker process; further requests get
            status 503.
        timeout: Time limit of an answer, in seconds.
        files: Let requests name files of this machine even if --host accepts connections from
            other machines.
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
    """Simulated servers that flags alone cannot describe: two pools, or a fleet.

    Attributes:
        prefill: Prefill workers, such as '2x tp=4' for two workers with -tp 4 each. Further flags,
            such as ep, dp=2 or gpu=H200, apply to these workers only. Needs --decode.
        decode: Decode workers, in the same form as --prefill.
        kv_link_gb_per_s: Bandwidth of KV transfers per GPU, in GB/s; inf for instant transfers.
            [default: the fastest network port that the GPU's PCIe link can feed]
        fleet: YAML file of a fleet that changes during the load: kinds of servers, start_up_s,
            failures, in_flight, autoscaler. Without kinds, the fleet is --replicas of this server.
    """

    PANEL: ClassVar[str] = "Disaggregated prefill/decode, fleets"

    prefill: str | None = None
    decode: str | None = None
    kv_link_gb_per_s: float | None = None
    fleet: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BreakdownRequest:
    """Configuration whose step time is broken down by part, and the sources of the times.

    Attributes:
        batch: Batch of the step, such as '64 decode @ 2000' (64 decode requests with 2000 tokens
            of context each) or '1 prefill 512 @ 0 + 16 decode @ 600' (with a prefill of 512
            tokens). Repeatable.
        kernels: Folder of the fits to measured kernels, for --explain. [default: kernels/all
            beside the checkpoint, else checkpoints/kernels/all]
    """

    model: str | None = None
    gpu: str | None = None
    batch: list[str] | None = None
    images_per_request: Annotated[int, Flag(least=0, most=1000)] = 0
    image_size: str = "1024x1024"
    audio_seconds: Annotated[float, Flag(least=0, most=MOST_AUDIO_S)] = 0.0
    audios_per_request: Annotated[int, Flag(least=1, most=1000)] = 1
    checkpoint: Path | None = None
    kernels: Path | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """Workload and source of step times; flags of server and load are separate arguments.

    Attributes:
        workload: File of the load: a CSV trace (also Azure's and BurstGPT's), a TraceV2 header,
            JSON of Mooncake or ShareGPT, YAML of inference-perf or BLIS, or a plain YAML with
            prompt_tokens, output_tokens and stages or concurrency. Or describe the load with
            --input-len, --output-len and the options next to them.
        rate: Mean request rate over the whole load, in requests/s; several rates, such as 1,2,4,8,
            give a table. [default: the file's]
        seed: Seed of random arrival times and lengths. [default: the file's, else 0]
        slo: SLO to check: limits on each request, such as 'ttft<=1s, tpot<=50ms' or
            'ttft:1000 tpot:50' (ms), or on all requests, such as 'p99 ttft<=2s'. Reports the
            share of requests within the limits, and goodput.
        percentiles: Percentiles of latencies to print, such as 50,90,99.9. [default: 50,90,95,99]
        num_warmups: Number of warm-up requests before the measurement.
        warmup_s: Duration of the warm-up before the measurement, in seconds.
        sensitivity: Also print which coefficients this metric of --json depends on, such as
            e2e_mean_ms, by one more simulation for each coefficient.
        coefficients: Coefficient file: the JSON file of 'pinn calibrate' or 'pinn coefficients
            --json', used instead of the network. Its model, GPU and flags are used unless given
            here.
        memory_log: Start-up log of a server with this configuration; its KV cache size replaces the
            predicted one.
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
        benchmarks: Result files of a benchmark tool, or folders of them, separated by spaces.
        steps: Folder that 'pinn measure' wrote, or a CSV file of whole steps.
        model: Model of the measured server: a name, or a config.json.
        gpu: GPU of the measured server: a name, or a datasheet.
        append: Earlier calibration to continue from; its drift is printed. Its model, GPU and flags
            are used unless given here.
        base: Coefficient file to start from instead of the network, as of 'pinn coefficients
            --json'.
        memory_log: Start-up log of the server. Its KV cache is compared with the flags and used in
            the simulation of benchmarks.
        kv_events: File of the server's KV events, or /metrics pages with kv_offload series
            (separated by spaces), to fit the link between GPU and host memory.
        force: Fit even if the measurements do not match the flags.
        accept: Write the calibration even if the held-out error of a metric is still large.
        budget: Number of trace intervals that are drawn for the fit; 0 for all.
        intervals: Type of trace intervals for the fit: windows (means of 5 to 15 steps), singles
            (one step) or both.
        seed: Seed of the random choice of trace intervals.
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
    """Settings of a measurement: batches, duration, engine.

    Attributes:
        model: Folder with a config.json, or a name that vLLM knows.
        out: Folder to write the measured steps to.
        minutes: Duration of the measurement in minutes, after the engine has started.
        load: Closed-loop load whose prediction intervals the measurement narrows, as
            CLIENTSxPROMPT_TOKENSxOUTPUT_TOKENS, such as 32x4000x300. Repeatable. [default: 1, 16,
            64 and 256 clients with 1000 prompt and 200 output tokens]
        script: Write the measuring program to this file, for another machine, and measure nothing.
        python: Python interpreter in which vLLM is installed.
        serve: Before the steps, also start a server on this machine and load it. This is a switch:
            give flags of the server as options.
        port: Port of the server of --serve; 0 for a free one.
        force: Measure even if the GPU is in use or the model is predicted not to fit.
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
    """Settings of a coefficient table for many configurations.

    Attributes:
        coefficients: Coefficient file of 'pinn calibrate' or 'pinn coefficients --json', used
            instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip and count configurations whose settings contradict each other.
        intervals: Include the ends of the 90 % prediction intervals.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    intervals: bool = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """Settings of an export to BLIS.

    Attributes:
        target: 'folder' writes a folder per configuration for BLIS up to 2026-08-22, whose latency
            formula has eleven terms; 'kernel' writes a registry of coefficient sets, and scenarios,
            for BLIS with a latency kernel.
        workloads: File of a load, as of 'pinn simulate --workload'. A separate set of BLIS
            coefficients is fitted to this load, in addition to those for steady loads up to
            saturation. With --target folder. Repeatable.
        coefficients: Coefficient file of 'pinn calibrate' or 'pinn coefficients --json', used
            instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip and count configurations whose settings contradict each other.
        worst_error: Refuse a configuration if the relative error of BLIS's step time exceeds this
            value in any step; 0.25 is 25 %.
            [default: 0.25; with --target kernel 0.2, and 0.04 for the median error, or 0.3 and 0.06
            for mixtures of experts]
    """

    target: Annotated[str, Flag(allowed=("folder", "kernel"))] = "folder"
    workloads: list[Path] | None = None
    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    worst_error: Annotated[float | None, Flag(least=0)] = None


@dataclass(frozen=True, kw_only=True)
class LlmDRequest:
    """Settings of the initial data for llm-d.

    Attributes:
        coefficients: Coefficient file of 'pinn calibrate' or 'pinn coefficients --json', used
            instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip and count configurations whose settings contradict each other.
        entries: Number of training entries for each configuration, half of TTFT and half of TPOT.
        seed: Seed of random numbers.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    entries: Annotated[int, Flag(least=10, most=1_000_000)] = 4000
    seed: Annotated[int, Flag(least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """Settings of the example file written with the ONNX graphs.

    Attributes:
        inputs: Also write example inputs and outputs of both graphs to this JSON file.
        configs: Configuration of the example in --inputs; exactly one.
        batch: Batch of the example in --inputs, such as '32 decode @ 700'.
    """

    checkpoint: Path | None = None
    inputs: Path | None = None
    configs: str = "model=Llama-3.1-8B gpu=H100"
    batch: str = "32 decode @ 700"
