"""What commands and the functions of the same names are asked: each argument declared once.

A field's option has the help of the command line; in Python it is an argument of the field's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pinn.interface.commands.options import Checkpoint, Gpu, Gpus, Model, WorkloadSeed

MANY, _TRACES = "Many configurations", "Traces"

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
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave out what does not fit together.")
]
SkipMany = Annotated[
    bool,
    typer.Option(
        "--skip-invalid",
        help="Leave out, and count, configurations that do not fit together.",
        rich_help_panel=MANY,
    ),
]


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """A configuration, and what times its steps; the engine's flags go beside it."""

    model: Model = None
    gpu: Gpu = None
    checkpoint: Checkpoint = None
    coefficients: CoefficientFile = None


@dataclass(frozen=True, kw_only=True)
class ManyRequest:
    """What holds for configurations that leave it out; the engine's flags go beside it."""

    model: Model = None
    gpu: Gpu = None
    checkpoint: Checkpoint = None
    skip_invalid: SkipMany = False


@dataclass(frozen=True, kw_only=True)
class ExploreRequest:
    """The servers of a page; the engine's flags go beside it."""

    model: Model = None
    gpus: Gpus = None
    checkpoint: Checkpoint = None


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """A workload to serve, and what times its steps; the flags of server and load go beside it."""

    workload: Annotated[
        Path | None,
        typer.Option(
            help="CSV trace, TraceV2 header, inference-perf or BLIS YAML, or a plain YAML with "
            "prompt_tokens, output_tokens and stages or concurrency; or give --input-len and the "
            "flags beside it.",
        ),
    ] = None
    model: Model = None
    gpu: Gpu = None
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            "--request-rate",
            help="Mean requests per second, for as long as the load lasts. [default: the file's "
            "own]",
        ),
    ] = None
    seed: WorkloadSeed = None
    sensitivity: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="Also say which coefficients a figure of the JSON depends on, such as "
            "e2e_mean_ms: the run again with each one changed, everything else equal.",
        ),
    ] = None
    checkpoint: Checkpoint = None
    coefficients: CoefficientFile = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A load to serve within limits, and what may be rented for it."""

    slo: Annotated[
        str,
        typer.Option(
            help="Limits: 'ttft<=1s, tpot<=40ms for 95 %' asks that so many requests meet all of "
            "them; 'p99 ttft<=2s', 'mean e2e<=20s', 'p95 itl<=80ms' are on all requests. "
            "Separate the two kinds with a semicolon.",
        ),
    ]
    workload: Annotated[
        Path | None,
        typer.Option(
            help="The load, as of 'pinn simulate'; no closed loop. Or give --input-len and the "
            "flags beside it.",
        ),
    ] = None
    model: Model = None
    gpu: Gpus = None
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            "--request-rate",
            help="Mean requests per second to serve, for as long as the load lasts. Without it, "
            "how much each candidate serves, by what a request per second takes.",
        ),
    ] = None
    max_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs to rent at most.")] = None
    configs: Annotated[
        Path | None,
        typer.Option(help="Only these candidates: a file as of 'pinn coefficients --configs'."),
    ] = None
    candidates: Annotated[
        Path | None,
        typer.Option(help="Flags to combine. [default: conf/plan/candidates.yaml]"),
    ] = None
    disaggregate: Annotated[
        bool,
        typer.Option(
            "--disaggregate",
            help="Also try prefill and decode on servers of their own: pairs of the pools that the "
            "file of --candidates lists.",
        ),
    ] = False
    coefficients: CoefficientFiles = None
    checkpoint: Checkpoint = None
    top: Annotated[int, typer.Option(min=1, help="Rows to examine in full.")] = 5
    seed: WorkloadSeed = None


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """What was measured on a server, and the coefficients that it is fitted from."""

    observations: Annotated[Path | None, typer.Option(help="Folder that 'pinn ingest' wrote.")] = (
        None
    )
    benchmarks: Annotated[
        list[Path] | None,
        typer.Option(
            help="Files or folders that a benchmark tool wrote, in place of traces; several in a "
            "row.",
        ),
    ] = None
    steps: Annotated[
        Path | None,
        typer.Option(help="Folder that 'pinn measure' wrote, or a CSV file like it."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="What the benchmarks were of: a name, or a config.json."),
    ] = None
    gpu: Annotated[str | None, typer.Option(help="What they ran on: a name, or a datasheet.")] = (
        None
    )
    append: Annotated[
        Path | None,
        typer.Option(
            help="Go on from the posterior of an earlier calibration, and say its drift; its "
            "model, GPU and flags hold where no other are given.",
        ),
    ] = None
    base: Annotated[
        Path | None,
        typer.Option(help="Coefficient set to start from, in place of the network."),
    ] = None
    checkpoint: Checkpoint = None
    force: Annotated[
        bool, typer.Option("--force", help="Fit although the file does not match the flags.")
    ] = False
    budget: Annotated[
        int,
        typer.Option(
            help="Intervals to fit to, chosen at random; 0 for all there are.",
            min=0,
            rich_help_panel=_TRACES,
        ),
    ] = 500
    intervals: Annotated[
        str,
        typer.Option(
            help="Fit to windows (means of 5 to 15 steps), singles (one step) or both.",
            rich_help_panel=_TRACES,
        ),
    ] = "both"
    seed: Annotated[
        int, typer.Option(min=0, help="Of the random choice.", rich_help_panel=_TRACES)
    ] = 0


@dataclass(frozen=True, kw_only=True)
class TableRequest:
    """How a table of configurations is made."""

    checkpoint: Checkpoint = None
    coefficients: CoefficientFiles = None
    skip_invalid: SkipInvalid = False
    intervals: Annotated[
        bool, typer.Option(help="Ends of 90 % intervals where they are known.")
    ] = True


@dataclass(frozen=True, kw_only=True)
class BlisRequest:
    """What the folders of configurations are made for."""

    workloads: Annotated[
        list[Path] | None,
        typer.Option(
            "--workload",
            help="What the configurations will serve, as of 'pinn simulate': a vector of its own "
            "beside those of steady loads from one request to saturation. Repeatable.",
        ),
    ] = None
    checkpoint: Checkpoint = None
    coefficients: CoefficientFiles = None
    skip_invalid: SkipInvalid = False
    worst_error: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Refuse a configuration of whose step times BLIS's formula gets one more wrong "
            "than by this share, with the vector that run.sh picks for such a batch.",
        ),
    ] = 0.25


@dataclass(frozen=True, kw_only=True)
class OnnxRequest:
    """What is written beside the graphs."""

    checkpoint: Checkpoint = None
    inputs: Annotated[
        Path | None,
        typer.Option(help="JSON file to write: inputs of both graphs, and the result."),
    ] = None
    configs: Annotated[
        str,
        typer.Option(help="The one configuration of --inputs, as of 'export table'."),
    ] = "model=Llama-3.1-8B gpu=H100"
    batch: Annotated[
        str, typer.Option(help="The batch of --inputs, as of 'pinn coefficients'.")
    ] = "32 decode @ 700"


@dataclass(frozen=True, kw_only=True)
class SpecsRequest:
    """Which models and GPUs are written."""

    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="Name or path; repeatable. [default: the whole catalogue]"),
    ] = None
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="Name or datasheet file; repeatable. [default: all known]"),
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option(help="Serve the models in another format, such as fp8."),
    ] = None
