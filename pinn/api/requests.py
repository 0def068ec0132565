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

#: Help texts of arguments that have the same meaning in all requests. A request's docstring may
#: override them.
SHARED = {
    "model": "Model: a name listed by 'pinn models' or on Hugging Face, or the path of a "
    "config.json or its folder.",
    "gpu": "GPU: a name listed by 'pinn gpus', or the path of a datasheet's JSON file.",
    "configs": "Configurations: a CSV, YAML or JSON file, as for 'pinn coefficients --configs', or "
    "a grid, such as 'model=Llama-3.1-8B gpu=H100,B200 tensor_parallel_size=1,2'. "
    "[default: the configurations of the --coefficients files]",
    "images_per_request": "Number of images at the start of each prompt; prompt tokens include "
    "image tokens. An image is encoded in the step that computes its first token.",
    "image_size": "Size of each image in pixels.",
    "audio_seconds": "Length of each audio clip at the start of each prompt, in seconds; prompt "
    "tokens include audio tokens. [default: no audio]",
    "audios_per_request": "Number of audio clips in each prompt, with --audio-seconds.",
    "checkpoint": "File with the trained network. [default: the environment variable "
    "PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
}
#: Names of function arguments and command options, by accepted alternative name.
OTHER_NAMES = {"request_rate": "rate"}
#: Pattern of an argument name and its help in the Options or Attributes section of a docstring.
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
            context each) or '1 prefill 512 @ 0 + 16 decode @ 600' (one prefill of 512 tokens and 16
            decode requests). Repeatable. [default: example batches]
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network. Its model, GPU and flags are used unless given here.
        memory_log: Start-up log of a server with this configuration. The memory sizes in the log
            replace the predicted ones.
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
        skip_invalid: Do not stop at configurations that are invalid or that the engine refuses.
            Their rows contain the reason instead of predictions, and the output states how many
            there are.
    """

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    skip_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """Servers of an interactive page; engine flags are separate arguments.

    Attributes:
        gpu: GPU types: names listed by 'pinn gpus' or paths of datasheets, separated by commas.
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
        backend: Where simulations run: in processes on this machine (processes) or on a Ray cluster
            (ray).
        workers: Number of simulations to run in parallel. [default: one per core for a command, 1
            for a Python function; a Python script that sets more needs ``if __name__ ==
            "__main__":``]
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
        workers: Number of worker processes for predictions. Equally many further processes run
            simulations and plans. [default: one per core]
        queue: Maximum number of requests that wait for a free worker process. Further requests are
            rejected with status 503.
        timeout: Maximum time to answer a request, in seconds.
        files: Let requests name files on this machine even if --host accepts connections from other
            machines.
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
        prefill: Prefill workers, such as '2x tp=4' for two workers with -tp 4 each. Further flags
            in this text, such as ep, dp=2 or gpu=H200, apply to these workers only. Requires
            --decode.
        decode: Decode workers, in the same form as --prefill.
        kv_link_gb_per_s: Bandwidth of KV transfers per GPU, in GB/s; inf for instantaneous
            transfers. [default: that of the fastest network port that the GPU's PCIe
            link can saturate]
        fleet: YAML file that describes a fleet and its changes during the load, with the keys kinds
            (of servers), start_up_s, failures, in_flight and autoscaler. Without kinds, the fleet
            consists of --replicas of this server.
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
        batch: Batch of the step, such as '64 decode @ 2000' (64 decode requests with 2000 tokens of
            context each) or '1 prefill 512 @ 0 + 16 decode @ 600' (one prefill of 512 tokens and 16
            decode requests). Repeatable.
        kernels: Folder with the fits to measured kernels, for --explain. [default: kernels/all in
            the checkpoint's folder, else checkpoints/kernels/all]
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
        workload: File that describes the load: a CSV trace (also in the formats of Azure and
            BurstGPT), a TraceV2 header, JSON of Mooncake or ShareGPT, YAML of inference-perf or
            BLIS, or a YAML file with the keys prompt_tokens, output_tokens and stages or
            concurrency. The load can also be described without a file, by --input-len, --output-len
            and related options.
        rate: Mean request rate over the whole load, in requests/s. Several rates, such as 1,2,4,8,
            print a table with a row for each. [default: the file's]
        seed: Random seed for arrival times and lengths. [default: the file's, else 0]
        slo: SLO to check: limits on each request, such as 'ttft<=1s, tpot<=50ms' or 'ttft:1000
            tpot:50' (ms), or limits on statistics over all requests, such as 'p99 ttft<=2s'. The
            output includes goodput and the share of requests that meet the limits.
        percentiles: Percentiles of latencies to print, such as 50,90,99.9. [default: 50,90,95,99]
        num_warmups: Number of warm-up requests, which are excluded from all metrics.
        warmup_s: Duration of the warm-up in seconds. Requests in this time are excluded from all
            metrics.
        sensitivity: Also print how this metric of the --json output, such as e2e_mean_ms, depends
            on each coefficient. This takes one more simulation per coefficient.
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network. Its model, GPU and flags are used unless given here.
        memory_log: Start-up log of a server with this configuration. The KV cache size in the log
            replaces the predicted one.
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
        observations: Folder written by 'pinn ingest'.
        benchmarks: Result files of a benchmark tool, or folders of them, separated by spaces.
        steps: Folder written by 'pinn measure', or a CSV file of whole steps.
        model: Model of the measured server: a name, or the path of a config.json.
        gpu: GPU of the measured server: a name, or the path of a datasheet.
        append: Earlier calibration to continue from. The drift of its coefficients is
            printed. Its model, GPU and flags are used unless given here.
        base: Coefficient file to start from instead of the network, such as one written by 'pinn
            coefficients --json'.
        memory_log: Start-up log of the server. The KV cache size in the log is compared with the
            flags and used in the simulation of benchmarks.
        kv_events: File of the server's KV events, or /metrics pages with kv_offload series
            (separated by spaces), to calibrate the link between GPU and host memory.
        force: Calibrate even if the measurements do not match the flags.
        accept: Write the calibration even if the held-out error of a metric is still large.
        budget: Number of trace intervals that are sampled for the fit; 0 for all.
        intervals: Type of trace intervals for the fit: windows (means of 5 to 15 steps), singles
            (one step) or both.
        seed: Random seed for the sampling of trace intervals.
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
        model: Folder with a config.json, or a model name that vLLM knows.
        out: Folder to write the measured steps to.
        minutes: Duration of the measurement in minutes, after the engine has started.
        load: Closed-loop load for which the measurement should narrow the prediction intervals, as
            CLIENTSxPROMPT_TOKENSxOUTPUT_TOKENS, such as 32x4000x300. Repeatable. [default: 1, 16,
            64 and 256 clients with 1000 prompt and 200 output tokens]
        script: Do not measure, but write the measuring program to this file, to run it on another
            machine.
        python: Path of a Python interpreter with vLLM installed.
        serve: Before the steps, also measure a server under load, which is started on this machine.
            This option takes no launch command: give flags of the server as options.
        port: Port of the server that --serve starts; 0 for a free one.
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
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip configurations with contradictory settings; the output states how many
            were skipped.
        intervals: Include the bounds of the 90 % prediction intervals.
    """

    checkpoint: Path | None = None
    coefficients: list[Path] | None = None
    skip_invalid: bool = False
    intervals: bool = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """Settings of an export to BLIS.

    Attributes:
        target: 'folder' writes one folder per configuration, for BLIS up to 2026-08-22, whose
            latency formula has eleven terms. 'kernel' writes a registry of coefficient sets, a
            catalog and scenarios, for BLIS with a latency kernel.
        workloads: File of a load, as for 'pinn simulate --workload', with --target folder. A
            separate set of BLIS coefficients is fitted to this load, in addition to those for
            steady loads up to saturation. Repeatable.
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip configurations with contradictory settings; the output states how many
            were skipped.
        worst_error: Maximum relative error of BLIS's step time in any step, such as 0.25 for 25 %;
            configurations that exceed it are refused. [default: 0.25. With
            --target kernel: 0.2, and a median of 0.04; for mixtures of experts 0.3, and a median of
            0.06]
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
        coefficients: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json',
            used instead of the network for its own configuration. Repeatable.
        skip_invalid: Skip configurations with contradictory settings; the output states how many
            were skipped.
        entries: Number of training entries per configuration: half for TTFT, half for TPOT.
        seed: Random seed.
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
        configs: Configuration of the example in --inputs; exactly one, as for 'pinn coefficients
            --configs'.
        batch: Batch of the example in --inputs, such as '32 decode @ 700'.
    """

    checkpoint: Path | None = None
    inputs: Path | None = None
    configs: str = "model=Llama-3.1-8B gpu=H100"
    batch: str = "32 decode @ 700"
