"""Arguments of the functions and commands of the same names, each declared once.

A field is an argument of the function and an option of the command. The docstring's Attributes
describe it to both; :data:`SHARED` describes arguments of several requests.
"""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path

#: Arguments that mean the same in every request, unless its docstring says otherwise.
SHARED = {
    "model": "Name, or path of a config.json or its folder.",
    "gpu": "Name, or path of a datasheet's JSON file.",
    "checkpoint": "Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
}
#: A name and its text in the Options or Attributes of a docstring.
_EXPLAINED = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)


def explained(what: object, section: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its last section, and the text of each name in that section."""
    text, _, listed = inspect.cleandoc(what.__doc__ or "").partition(f"{section}:\n")
    helps = {name: " ".join(said.split()) for name, said in _EXPLAINED.findall(listed)}
    return text.rstrip(), SHARED | helps


def named(model: str | None, gpu: str | None) -> dict[str, str]:
    """Return model and GPU as keys of a configuration, where they are given."""
    pairs = {"model": model, "gpu": gpu}
    return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """A configuration, and what times its steps; the engine's flags go beside it.

    Attributes:
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network;
            its deployment holds where no flag says otherwise.
    """

    model: str | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    coefficients: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ManyRequest:
    """What holds for configurations that leave it out; the engine's flags go beside it.

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
        gpus: Names, or paths of datasheets, separated by commas.
    """

    model: str | None = None
    gpus: str | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """A workload to serve, and what times its steps; the flags of server and load go beside it.

    Attributes:
        workload: CSV trace, TraceV2 header, inference-perf or BLIS YAML, or a plain YAML with
            prompt_tokens, output_tokens and stages or concurrency; or give --input-len and the
            flags beside it.
        rate: Mean requests per second, for as long as the load lasts. [default: the file's own]
        seed: Of random draws. [default: the file's, else 0]
        sensitivity: Also say which coefficients a figure of the JSON depends on, such as
            e2e_mean_ms: the run again with each one changed, everything else equal.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network;
            its deployment holds where no flag says otherwise.
    """

    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    seed: int | None = None
    sensitivity: str | None = None
    checkpoint: Path | None = None
    coefficients: Path | None = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it.

    Attributes:
        slo: Limits: 'ttft<=1s, tpot<=40ms for 95 %' asks that so many requests meet all of them;
            'p99 ttft<=2s', 'mean e2e<=20s', 'p95 itl<=80ms' are on all requests. Separate the two
            kinds with a semicolon.
        workload: The load, as of 'pinn simulate'; no closed loop. Or give --input-len and the flags
            beside it.
        gpu: Names, or paths of datasheets, separated by commas.
        rate: Mean requests per second to serve, for as long as the load lasts. Without it, how much
            each candidate serves, by what a request per second takes.
        max_gpus: GPUs to rent at most.
        configs: Only these candidates: a file as of 'pinn coefficients --configs'.
        candidates: Flags to combine. [default: conf/plan/candidates.yaml]
        disaggregate: Also try prefill and decode on servers of their own: pairs of the pools that
            the file of --candidates lists.
        coefficients: JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network
            for the configuration that it belongs to. Repeatable.
        top: Rows to examine in full.
        seed: Of random draws. [default: the file's, else 0]
    """

    slo: str
    workload: Path | None = None
    model: str | None = None
    gpu: str | None = None
    rate: float | None = None
    max_gpus: int | None = None
    configs: Path | None = None
    candidates: Path | None = None
    disaggregate: bool = False
    coefficients: list[Path] | None = None
    checkpoint: Path | None = None
    top: int = 5
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """What was measured on a server, and the coefficients that it is fitted from.

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
        force: Fit although the file does not match the flags.
        budget: Intervals to fit to, chosen at random; 0 for all there are.
        intervals: Fit to windows (means of 5 to 15 steps), singles (one step) or both.
        seed: Of the random choice.
    """

    observations: Path | None = None
    benchmarks: list[Path] | None = None
    steps: Path | None = None
    model: str | None = None
    gpu: str | None = None
    append: Path | None = None
    base: Path | None = None
    checkpoint: Path | None = None
    force: bool = False
    budget: int = 500
    intervals: str = "both"
    seed: int = 0


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
    """What the folders of configurations are made for.

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
    worst_error: float = 0.25


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """What is written beside the graphs.

    Attributes:
        inputs: JSON file to write: inputs of both graphs, and the result.
        configs: The one configuration of --inputs, as of 'export table'.
        batch: The batch of --inputs, as of 'pinn coefficients'.
    """

    checkpoint: Path | None = None
    inputs: Path | None = None
    configs: str = "model=Llama-3.1-8B gpu=H100"
    batch: str = "32 decode @ 700"


@dataclass(frozen=True, kw_only=True)
class SpecsRequest:
    """Which models and GPUs are written.

    Attributes:
        models: Name or path; repeatable. [default: the whole catalogue]
        gpus: Name or datasheet file; repeatable. [default: all known]
        quantization: Serve the models in another format, such as fp8.
    """

    models: list[str] | None = None
    gpus: list[str] | None = None
    quantization: str | None = None
