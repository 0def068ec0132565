"""What commands and the functions of the same names are asked: each argument declared once.

A field is an option of the command, whose help is what the docstring says of it; in Python it is
an argument of the field's name. Options that several requests share bring their own help.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.options import Checkpoint, Gpu, Gpus, Model, WorkloadSeed

_TRACES = "Traces"

CoefficientFile = Annotated[
    Path | None,
    typer.Option(
        "--coefficients",
        help="JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network; "
        "its deployment holds where no flag says otherwise.",
    ),
]
CoefficientFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--coefficients",
        help="JSON file of 'pinn calibrate' or 'pinn coefficients', in place of the network for "
        "the configuration that it belongs to. Repeatable.",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", "--request-rate")]


@dataclass(frozen=True, kw_only=True)
class _NetworkRequest:
    """A model on a GPU, and the network that knows it."""

    model: Model = None
    gpu: Gpu = None
    checkpoint: Checkpoint = None


@dataclass(frozen=True, kw_only=True)
class PredictionRequest(_NetworkRequest):
    """A configuration, and what times its steps; the engine's flags go beside it."""

    coefficients: CoefficientFile = None


@dataclass(frozen=True, kw_only=True)
class ManyRequest(_NetworkRequest):
    """What holds for configurations that leave it out; the engine's flags go beside it.

    Attributes:
        skip_invalid: Leave out, and count, configurations that do not fit together.
    """

    skip_invalid: bool = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """The servers of a page; the engine's flags go beside it."""

    model: Model = None
    gpus: Gpus = None
    checkpoint: Checkpoint = None


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """A workload to serve, and what times its steps; the flags of server and load go beside it.

    Attributes:
        workload: CSV trace, TraceV2 header, inference-perf or BLIS YAML, or a plain YAML with
            prompt_tokens, output_tokens and stages or concurrency; or give --input-len and the
            flags beside it.
        rate: Mean requests per second, for as long as the load lasts. [default: the file's own]
        sensitivity: Also say which coefficients a figure of the JSON depends on, such as
            e2e_mean_ms: the run again with each one changed, everything else equal.
    """

    workload: Path | None = None
    model: Model = None
    gpu: Gpu = None
    rate: Rate = None
    seed: WorkloadSeed = None
    sensitivity: Annotated[str | None, typer.Option(metavar="FIGURE")] = None
    checkpoint: Checkpoint = None
    coefficients: CoefficientFile = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it.

    Attributes:
        slo: Limits: 'ttft<=1s, tpot<=40ms for 95 %' asks that so many requests meet all of them;
            'p99 ttft<=2s', 'mean e2e<=20s', 'p95 itl<=80ms' are on all requests. Separate the two
            kinds with a semicolon.
        workload: The load, as of 'pinn simulate'; no closed loop. Or give --input-len and the flags
            beside it.
        rate: Mean requests per second to serve, for as long as the load lasts. Without it, how much
            each candidate serves, by what a request per second takes.
        max_gpus: GPUs to rent at most.
        configs: Only these candidates: a file as of 'pinn coefficients --configs'.
        candidates: Flags to combine. [default: conf/plan/candidates.yaml]
        disaggregate: Also try prefill and decode on servers of their own: pairs of the pools that
            the file of --candidates lists.
        top: Rows to examine in full.
    """

    slo: str
    workload: Path | None = None
    model: Model = None
    gpu: Gpus = None
    rate: Rate = None
    max_gpus: Annotated[int | None, typer.Option(min=1)] = None
    configs: Path | None = None
    candidates: Path | None = None
    disaggregate: bool = False
    coefficients: CoefficientFiles = None
    checkpoint: Checkpoint = None
    top: Annotated[int, typer.Option(min=1)] = 5
    seed: WorkloadSeed = None


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
    checkpoint: Checkpoint = None
    force: bool = False
    budget: Annotated[int, typer.Option(min=0, rich_help_panel=_TRACES)] = 500
    intervals: Annotated[str, typer.Option(rich_help_panel=_TRACES)] = "both"
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_TRACES)] = 0


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """How a table of configurations is made.

    Attributes:
        skip_invalid: Leave out what does not fit together.
        intervals: Ends of 90 % intervals where they are known.
    """

    checkpoint: Checkpoint = None
    coefficients: CoefficientFiles = None
    skip_invalid: bool = False
    intervals: Annotated[bool, typer.Option("--intervals/--no-intervals")] = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """What the folders of configurations are made for.

    Attributes:
        workloads: What the configurations will serve, as of 'pinn simulate': a vector of its own
            beside those of steady loads from one request to saturation. Repeatable.
        skip_invalid: Leave out what does not fit together.
        worst_error: Refuse a configuration of whose step times BLIS's formula gets one more wrong
            than by this share, with the vector that run.sh picks for such a batch.
    """

    workloads: Annotated[list[Path] | None, typer.Option("--workload")] = None
    checkpoint: Checkpoint = None
    coefficients: CoefficientFiles = None
    skip_invalid: bool = False
    worst_error: Annotated[float, typer.Option(min=0.0)] = 0.25


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """What is written beside the graphs.

    Attributes:
        inputs: JSON file to write: inputs of both graphs, and the result.
        configs: The one configuration of --inputs, as of 'export table'.
        batch: The batch of --inputs, as of 'pinn coefficients'.
    """

    checkpoint: Checkpoint = None
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

    models: Annotated[list[str] | None, typer.Option("--model")] = None
    gpus: Annotated[list[str] | None, typer.Option("--gpu")] = None
    quantization: str | None = None
