"""Arguments of the functions and commands that list names, ingest, score and compare.

As in :mod:`pinn.api.requests`, a field is an argument of the function and an option of the command.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pinn.specs.flags import Flag


@dataclass(frozen=True, kw_only=True)
class NamesRequest:
    """Filter of a list of names.

    Attributes:
        contains: Show only names that contain this text (case-insensitive).
    """

    contains: str = ""


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """Folder for the tables of a server, and its model and GPU.

    Attributes:
        out: Folder to write the tables to.
        model: Model of the measured server: a name, or the path of a config.json.
        gpu: GPU of the measured server: a name, such as H100, or the path of a datasheet.
    """

    out: Path
    model: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Two checkpoints, coefficient files or evaluations to compare, and the method to compare.

    Attributes:
        a: Checkpoint, coefficient file or evaluation.
        b: Checkpoint, coefficient file or evaluation to compare with A.
        method: Prediction method whose errors are compared, if a table has several methods.
    """

    a: Path
    b: Path
    method: str = "network"


@dataclass(frozen=True, kw_only=True)
class ResultsRequest:
    """Selection of errors or measurements to show.

    Attributes:
        path: File results.csv of an evaluation. [default: the checkpoint's]
        metric: Metric whose errors are shown: tpot or ttft.
        measured: Show the numbers of measurements by engine and release instead of errors.
    """

    path: Path | None = None
    metric: str = "tpot"
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """Settings of a run of the evaluation suite.

    Attributes:
        fast: Do not fit anything; score existing fits and published predictions.
        overrides: Setting in conf/experiment/suite.yaml to override, such as workers.backend=ray or
            'evaluation.splits=[leave-one-gpu-out]'. Repeatable.
    """

    fast: bool = False
    overrides: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class DecisionsRequest:
    """Predictions whose choice of deployments is scored.

    Attributes:
        path: File predictions.csv of an evaluation. [default: the checkpoint's]
    """

    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServingRunsRequest:
    """Measured serving runs, and settings of their simulation.

    Attributes:
        path: CSV file of serving runs, a result folder of inference-perf, or a folder that contains
            such folders.
        model_configs: Folder with a file MODEL/config.json for each model that 'pinn models' does
            not list.
        gpu: GPU of the runs of inference-perf, since its files do not name the GPU.
        seed: Random seed for arrival times and lengths.
    """

    path: Path
    model_configs: Path | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    seed: Annotated[int, Flag(least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class EnginesRequest:
    """Network whose held-out predictions are scored."""

    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FileScoresRequest:
    """Coefficient file, and measurements of its server.

    Attributes:
        file: Coefficient file written by 'pinn calibrate' or 'pinn coefficients --json'.
        observations: Folder written by 'pinn ingest'.
    """

    file: Path
    observations: Path


@dataclass(frozen=True, kw_only=True)
class PanelRequest:
    """Checkpoint, and evaluation data on which it is scored.

    Attributes:
        against: Scorecard of another checkpoint to compare with: a CSV file written by --out.
        alone: With --against, the group of evaluation data that a new mechanism should improve.
        held_out_runs: CSV file of serving runs that were not used for training. Repeatable.
        steps: CSV file of measured engine steps.
        public: Folder of public measurements. Repeatable.
        ledger: Add the scores to the shipped ledger.csv, in a line with this description of the
            checkpoint.
        widths: Fit the widths of the checkpoint's prediction intervals to all groups of evaluation
            data, and write them to the checkpoint's intervals file.
    """

    checkpoint: Path | None = None
    against: Path | None = None
    alone: str | None = None
    held_out_runs: list[Path] | None = None
    steps: Path | None = None
    public: list[Path] | None = None
    ledger: str | None = None
    widths: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftsRequest:
    """Assumptions about deployments with unrecorded multi-token prediction.

    Attributes:
        draft_tokens: Assumed number of draft tokens per step.
    """

    checkpoint: Path | None = None
    draft_tokens: Annotated[int, Flag(least=1, most=8)] = 3


@dataclass(frozen=True, kw_only=True)
class KernelErrorsRequest:
    """Table of the errors of kernel surrogates on held-out kernels.

    Attributes:
        path: CSV file written by 'pinn kernels score'. [default: the checkpoint's]
    """

    path: Path | None = None
