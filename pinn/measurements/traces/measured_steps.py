"""Measured engine steps: the table of ``pinn measure``, or of Dynamo's forward-pass metrics.

All steps with equal batches are combined into one row of :class:`MeasuredSteps`, with their median
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.documents import read_json
from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import KeptRows
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import read_arguments
from pinn.errors import PinnError
from pinn.measurements.benchmarks.tree import Tree
from pinn.measurements.program.batches import Wanted
from pinn.measurements.program.table import FACTS_FILE, STEPS_FILE
from pinn.measurements.traces.step_table import (
    ALIKE,
    COUNTS,
    StepTable,
    read_step_table,
)
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.physics.batch_sums import BatchSums, UniformBatches
from pinn.specs.flags import FlagValue, given_flags, specified
from pinn.specs.gpu import find_gpu
from pinn.specs.serving import VLLM, ServingSpec
from pinn.units import MILLISECOND

#: Folder in which the measuring program stores the load generator's result files.
SERVING_FOLDER = "serving"

#: Name of the table of measured steps in a folder written by ``pinn ingest``.
MEASURED = "measured_steps"

#: Minimum number of steps of a batch for a median: the smallest number that ``pinn measure``
#: accepts for a batch with slow steps.
LEAST = 3

#: A step counts as warm-up or stalled above this multiple of its batch's median step time, as in
#: ``pinn measure``.
FAR = 3.0

#: Assumed minimum relative noise of one step's time, because a few measured times may be equal by
#: chance.
_LEAST_NOISE = 0.005

#: The scatter of a batch's step times is estimated from these times and from the typical scatter of
#: all batches, which is assumed to weigh as much as this number of steps. Repeats stop as soon as
#: the times agree closely, so the scatter of a few repeats alone is too small.
_LIKE_OTHERS = 16.0

Rows = Float[np.ndarray, " batches"]


@dataclass(frozen=True)
class MeasuredSteps:
    """Measured batches with their step times.

    Attributes:
        name: Name of the file or folder with the measurement.
        facts: Metadata of the measurement: GPU, host, release, flags.
        report: Counts of steps read, accepted and rejected.
        rows: One row per batch: ``COUNTS``, means over its steps; ``seconds``, median step time;
            ``error``, the median's relative standard error; and ``count``, number of steps.
    """

    name: str
    facts: Tree
    report: ReadReport
    rows: pd.DataFrame

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> Rows:
        """Return the median step time of each batch, in seconds."""
        return self.rows["seconds"].to_numpy(float)

    @property
    def error(self) -> Rows:
        """Return the relative standard error of each batch's median step time."""
        return self.rows["error"].to_numpy(float)

    @property
    def names(self) -> list[str]:
        """Return the batches in the notation of the command line."""
        alike = zip(*vars(alike_batches(self.rows)).values(), strict=True)
        return [str(Wanted(*map(round, batch))) for batch in alike]

    def sums(self, window: float | None) -> BatchSums:
        """Return each batch's sums over requests, given the model's attention window in tokens."""
        return alike_batches(self.rows).sums(window)

    def target(self, model: str | None, gpu: str | None, flags: Mapping[str, FlagValue]) -> Target:
        """Return the measured server, from the user's flags or else from the metadata.

        Raises:
            PinnError: If the model or the GPU is unknown.
        """
        cards = [card.text("name") for card in self.facts.trees("cards")]
        model = model or self.facts.text("model")
        gpu = gpu or self.facts.text("gpu") or next((c for c in cards if find_gpu(c)), None)
        limits = self.facts.at("limits")
        release = self.facts.text("engine_version").partition("+")[0]
        version = release if release[:1].isdigit() else ""
        settings: dict[str, FlagValue] = {
            "max_num_seqs": limits.count("max_num_seqs"),
            "max_num_batched_tokens": limits.count("budget"),
            "engine_version": version,
        }
        settings = {name: value for name, value in settings.items() if value}
        ahead = self.facts.values.get("async_scheduling")
        if isinstance(ahead, bool):
            settings["async_scheduling"] = ahead
        given = {
            **typed_flags(self.facts.texts("flags"), version),
            **settings,
            **flags,
        }
        return Target.of(
            model,
            gpu,
            given,
            f"{self.name} does not state the model and the GPU that were measured",
        )

    def engine(self, flags: Mapping[str, FlagValue]) -> EngineSpec:
        """Return scheduler settings from the user's flags, or else from the engine's metadata."""
        blocks = self.facts.values.get("kv_blocks") or None
        return specified(EngineSpec, {"num_gpu_blocks_override": blocks, **flags})

    @property
    def serving(self) -> list[Path]:
        """Return the result files of loads that ``pinn measure`` sent to a server, if any."""
        return sorted((Path(self.name).parent / SERVING_FOLDER).glob("*.json"))


def alike_batches(steps: pd.DataFrame) -> UniformBatches:
    """Return the batches of a table, assuming equal prompts and equal decodes within a batch."""
    prompts, tokens, cached, decodes, context = steps[list(COUNTS)].to_numpy(float).T
    each = np.maximum(prompts, 1)
    of_decode = context / np.maximum(decodes, 1)
    return UniformBatches(decodes, of_decode, prompts, tokens / each, cached / each)


def typed_flags(words: Sequence[str], release: str = "") -> dict[str, FlagValue]:
    """Return the flags in vLLM's command-line arguments, by field (or ``precision``).

    Raises:
        PinnError: If a flag has an invalid value.
    """
    found = read_arguments(VLLM, list(map(str, words)), release, only_known=True).configuration
    format_ = {"precision": found["precision"]} if found.get("precision") else {}
    return given_flags(ServingSpec, found, "the engine's flags") | format_


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Read a folder written by ``pinn measure``, or a CSV file of one server in the same format.

    The table may be of any size (:func:`read_step_table`).

    Raises:
        PinnError: If there is not a table, or it lacks a column, has several servers, or has no
            batch with enough steps.
    """
    file = path / STEPS_FILE if path.is_dir() else path
    table = read_step_table(file)
    facts_file = file.parent / FACTS_FILE
    facts = _facts(facts_file) if facts_file.is_file() else Tree()
    return _grouped(table, file, facts)


def _facts(file: Path) -> Tree:
    """Read the metadata of a measurement from the folder of its table of steps.

    Raises:
        PinnError: If the metadata file was not written by ``pinn measure``.
    """
    facts = read_json(file)
    told = facts if isinstance(facts, dict) else {}
    limits, cards = told.get("limits") or {}, told.get("cards") or []
    fits = isinstance(facts, dict) and isinstance(limits, dict) and isinstance(cards, list)
    if not fits or not all(isinstance(card, dict) for card in cards):
        raise PinnError(
            f"{file} is not a file that 'pinn measure' wrote: move the file to "
            "another folder, or correct the file"
        )
    return Tree(facts)


def ingested_steps(traces: TraceTables) -> MeasuredSteps:
    """Return the measured steps in a folder that ``pinn ingest steps`` wrote."""
    report = ReadReport.from_json(traces.manifest["reports"][MEASURED])
    rows = traces.table(MEASURED).to_pandas()
    return MeasuredSteps(report.source, Tree(traces.manifest.get("facts")), report, rows)


def _grouped(table: StepTable, file: Path, facts: Tree) -> MeasuredSteps:
    """Return the measured batches, each with the median time of its steps, excluding outliers."""
    latency, batch, kept = table.milliseconds, table.batch, KeptRows(len(table.batch))
    usual_ms = _medians(latency, batch, len(table.alike))
    slow = latency > FAR * usual_ms[batch]
    kept.refuse(f"step time above {FAR:g} times the median of its batch", slow)
    count = np.bincount(batch, kept.mask, len(usual_ms))
    kept.refuse(f"batch with fewer than {LEAST} usable steps", count[batch] < LEAST)
    refused, accepted = {**table.refused, **kept.refused}, int(kept.mask.sum())
    version, digest = facts.text("engine_version"), file_sha256(file)
    report = ReadReport(file.name, version, digest, table.read, accepted, refused)
    if not accepted:
        raise PinnError(f"{file} has no batch with enough steps for a median:\n{report.table()}")
    rows = _counts(table, kept.mask)
    batch, latency = batch[kept.mask], latency[kept.mask]
    usual_ms = _medians(latency, batch, len(table.alike))
    rows["seconds"] = usual_ms[rows.index] * MILLISECOND
    away = _medians(np.abs(latency - usual_ms[batch]), batch, len(table.alike))[rows.index]
    rows["count"] = np.bincount(batch, minlength=len(usual_ms))[rows.index].astype(float)
    scatter = 1.4826 * away * MILLISECOND / rows["seconds"]
    usual = float(np.median(np.repeat(scatter, rows["count"].astype(int))))
    own = rows["count"] / (rows["count"] + _LIKE_OTHERS)
    scatter = np.sqrt(own * scatter**2 + (1 - own) * usual**2)
    rows["error"] = 1.2533 * np.maximum(scatter, _LEAST_NOISE) / np.sqrt(rows["count"])
    return MeasuredSteps(str(file), facts, report, rows.reset_index(drop=True))


def _medians(values: np.ndarray, batch: np.ndarray, batches: int) -> np.ndarray:
    """Return the median value of each batch's steps; 0 for a batch without steps."""
    found = pd.Series(values).groupby(batch).median()
    medians = np.zeros(batches)
    medians[found.index] = found
    return medians


def _counts(table: StepTable, mask: np.ndarray) -> pd.DataFrame:
    """Return each batch's requests and tokens, as means over its steps, by order of appearance."""
    context = pd.Series(table.context[mask].astype(float))
    mean = context.groupby(table.batch[mask], sort=False).mean()
    alike = table.alike[mean.index].astype(float)
    rows = pd.DataFrame(alike, index=mean.index, columns=list(ALIKE))
    rows[COUNTS[-1]] = mean
    return rows
