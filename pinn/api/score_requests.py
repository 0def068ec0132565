"""Arguments of the functions and commands that list, read, score and compare.

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
        contains: Show only names that contain this text; case is ignored.
    """

    contains: str = ""


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """Folder for the tables of a server, and its model and GPU.

    Attributes:
        out: Folder for the tables.
        model: Model served: a name, or the path of its config.json.
        gpu: GPU it ran on, such as H100.
    """

    out: Path
    model: str | None = None
    gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Two sides of a comparison.

    Attributes:
        a: Checkpoint, coefficient file or evaluation.
        b: Checkpoint, coefficient file or evaluation to compare with A.
        method: Method whose errors are compared, for tables with several.
    """

    a: Path
    b: Path
    method: str = "network"


@dataclass(frozen=True, kw_only=True)
class ResultsRequest:
    """Selection of errors or measurements to show.

    Attributes:
        path: results.csv of an experiment. [default: that of the checkpoint]
        metric: tpot or ttft.
        measured: What was measured, by engine and release; no errors.
    """

    path: Path | None = None
    metric: str = "tpot"
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """Settings of a run of the evaluation suite.

    Attributes:
        fast: Fit nothing: score what is on disk and was published.
        overrides: Value of conf/experiment/suite.yaml, such as workers.backend=ray or
            'evaluation.splits=[leave-one-gpu-out]'. Repeatable.
    """

    fast: bool = False
    overrides: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class DecisionsRequest:
    """Whose decisions are priced.

    Attributes:
        path: predictions.csv of an experiment. [default: that of the checkpoint]
    """

    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServingRunsRequest:
    """Measured serving runs.

    Attributes:
        path: CSV of serving runs, or a folder that inference-perf wrote (or of such folders).
        model_configs: Folder of MODEL/config.json for models pinn does not know.
        gpu: GPU of inference-perf's runs, whose files do not name it.
        seed: Seed of arrival times and lengths.
    """

    path: Path
    model_configs: Path | None = None
    gpu: str | None = None
    checkpoint: Path | None = None
    seed: Annotated[int, Flag(least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class EnginesRequest:
    """The network whose held-out fits are scored."""

    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FileScoresRequest:
    """A coefficient file, and measurements of its server.

    Attributes:
        file: Coefficient file of 'pinn calibrate' or 'pinn coefficients --json'.
        observations: Folder that 'pinn ingest' wrote.
    """

    file: Path
    observations: Path


@dataclass(frozen=True, kw_only=True)
class PanelRequest:
    """A checkpoint, and evaluation data to score it on.

    Attributes:
        against: Scorecard of another checkpoint, as --out writes it; prints the differences.
        alone: With --against, the group in which a single new mechanism acts alone.
        held_out_runs: CSV of serving runs that are in no training data; may be repeated.
        steps: CSV of measured whole steps.
        public: Folder of public measurements; may be repeated.
        ledger: Description of the candidate; adds a line to the shipped ledger.csv.
        widths: Fit the widths of the checkpoint's intervals to all groups, and write them.
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
    """Assumptions about deployments that hide multi-token prediction.

    Attributes:
        draft_tokens: Assumed number of drafted tokens per step.
    """

    checkpoint: Path | None = None
    draft_tokens: Annotated[int, Flag(least=1, most=8)] = 3


@dataclass(frozen=True, kw_only=True)
class KernelErrorsRequest:
    """A table of errors of kernels.

    Attributes:
        path: Table of 'pinn kernels score'. [default: that of the checkpoint]
    """

    path: Path | None = None
