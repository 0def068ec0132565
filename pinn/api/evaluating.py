"""Python functions of ``pinn evaluate``, one for each subcommand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api import score_requests as requests
from pinn.api.arguments import read_request, with_arguments
from pinn.api.scores import ScoreTable
from pinn.common.files import cache_folder, find_checkpoint, json_text
from pinn.common.numbers import amount
from pinn.common.progress import doing
from pinn.common.screen import WIDEST, Grid, page, printed
from pinn.common.tables import read_frame, records
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError, warn_user

if TYPE_CHECKING:
    import pandas as pd

    from pinn.common import Json


@dataclass(frozen=True)
class Evaluation:
    """Finished run of the evaluation suite, with its folder of tables and an HTML page.

    Attributes:
        folder: Folder of results.csv, ranking.csv, decisions.csv and report.html.
        summary: Paths of the written files, and the best methods by split and metric, as in the
            last line that the command prints.
    """

    folder: Path
    summary: Mapping[str, Any]

    def table(self, name: str = "results") -> pd.DataFrame:
        """Read a table of the folder: ``results``, ``ranking`` or ``decisions``."""
        return read_frame(self.folder / f"{name}.csv", "use results, ranking or decisions")

    def __str__(self) -> str:
        """Return the summary as JSON."""
        return json_text(self.summary)


@with_arguments(request=requests.SuiteRequest)
def evaluate(**given: object) -> Evaluation:
    """Score every prediction method on every data split, as ``pinn evaluate`` does.

    Args:
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If an override is unknown, or data cannot be used.
    """
    from hydra.utils import get_method
    from omegaconf import OmegaConf

    from pinn.evaluation.config import compose_config, typed

    asked, _ = read_request(requests.SuiteRequest, given)
    # Write a run without new fits to the cache folder, not to the working directory.
    place = [f"output_dir='{cache_folder() / 'evaluate'}'"] if asked.fast else []
    fast = f"fast={str(asked.fast).lower()}"
    try:
        composed = compose_config(["+experiment=suite", fast, *place, *(asked.overrides or [])])
        config = typed(composed)
        config.check()
    except PinnError as error:
        raise PinnError(f"the settings of --set are invalid: {error}") from error
    kept = Path(config.output_dir) / ".hydra" / "config.yaml"
    kept.parent.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(composed, kept)
    return Evaluation(Path(config.output_dir), get_method(config.entry)(config))


@with_arguments(request=requests.DecisionsRequest)
def evaluate_decisions(path: str | Path | None = None, **given: object) -> ScoreTable:
    """Score the deployments that predictions choose, as ``pinn evaluate decisions`` does.

    Args:
        path: predictions.csv of an evaluation. [default: the file of the checkpoint]
        **given: No other arguments are accepted.

    Raises:
        PinnError: If the file has no predictions of held-out measured deployments.
    """
    from pinn.evaluation.decisions import decide, decision_table, read_predictions
    from pinn.evaluation.tables import print_decisions
    from pinn.training.data.silicon import read_silicon

    asked, _ = read_request(requests.DecisionsRequest, given, path=path)
    place = asked.path or find_checkpoint().with_suffix(".predictions.csv")
    decided = decide(read_predictions(place), read_silicon()[0])
    if decided.empty:
        raise PinnError(
            "the file has no predictions of held-out measured deployments, so no decisions can "
            "be evaluated: give the file predictions.csv of an evaluation"
        )
    return ScoreTable(decided, printed(print_decisions, decision_table(decided)))


@with_arguments(request=requests.ServingRunsRequest)
def evaluate_serving_runs(
    path: str | Path, *, intervals: bool = True, **given: object
) -> ScoreTable:
    """Simulate measured serving runs and score them, as ``pinn evaluate serving-runs`` does.

    Args:
        path: CSV of serving runs, a folder that inference-perf wrote, or a folder of such folders.
        intervals: Whether to predict 90 % intervals of each metric (``low_s`` to ``high_s``), which
            requires two more simulations of each run.
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If the path has no serving runs, or a run cannot be simulated.
    """
    from pinn.evaluation import serving_runs as scoring
    from pinn.evaluation.tables import print_scores, print_summary

    own = {"path": path, "intervals": intervals}
    asked, _ = read_request(requests.ServingRunsRequest, given, **own)
    runs = scoring.read_runs(asked.path, asked.gpu, asked.model_configs, asked.seed)
    doing(f"simulating {amount(len(runs), 'run')}")
    network = find_checkpoint(asked.checkpoint)
    scores, fault = scoring.score_checkpoint(runs, network, intervals=intervals)
    summary = scoring.summarize_runs(scores)
    inversions = {scoring.NETWORK: scoring.ranking_inversions(scores)}
    text = printed(print_scores, scores) + printed(print_summary, summary, inversions)
    text += f"No intervals: {fault}" if fault else ""
    more: dict[str, Json] = {"summary": [*records(summary)], "ranked_wrongly": dict(inversions)}
    return ScoreTable(scores, text.rstrip("\n"), more)


@with_arguments(request=requests.EnginesRequest)
def evaluate_engines(**given: object) -> ScoreTable:
    """Score held-out predictions of SGLang and TensorRT-LLM, as ``pinn evaluate engines`` does.

    Args:
        **given: Keyword arguments listed below.
    """
    from pinn.evaluation.engines import engine_grids, engine_rows, networks, score_engines

    asked, _ = read_request(requests.EnginesRequest, given)
    scores = score_engines(engine_rows(), networks(asked.checkpoint))
    heading = "measured deployments, model held out"
    legend = (
        "Median / mean absolute percentage error (bias); 'of N': the method predicts only N of "
        "the rows."
    )
    grids = [f"\n{a or heading}\n\n{g.markdown()}" for a, g in engine_grids(scores)]
    return ScoreTable(scores, "\n".join([legend, *grids]))


@with_arguments(EngineSpec, request=requests.FileScoresRequest)
def evaluate_coefficients(
    file: str | Path, observations: str | Path, **given: object
) -> ScoreTable:
    """Score a coefficient file on measurements, as ``pinn evaluate coefficients`` does.

    Args:
        file: File of ``pinn calibrate`` or of ``Prediction.save``.
        observations: Folder that ``pinn ingest`` wrote from measurements of the same server.
        **given: Flags of the engine's scheduler that differ from the defaults.

    Raises:
        PinnError: If file and observations belong to different servers.
    """
    from pinn.evaluation.coefficient_file import score_file

    own = {"file": file, "observations": observations}
    asked, flags = read_request(requests.FileScoresRequest, given, EngineSpec, **own)
    table, grids = score_file(asked.file, asked.observations, EngineSpec(**flags))
    return ScoreTable(table, printed(_print_grids, grids).rstrip("\n"))


@with_arguments(request=requests.PanelRequest)
def evaluate_panel(**given: object) -> ScoreTable:
    """Score a checkpoint on all evaluation data, as ``pinn evaluate panel`` does.

    Args:
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If measurements, or the other checkpoint's scorecard, cannot be read.
    """
    from pinn.evaluation import interval_widths
    from pinn.evaluation import panel as scoring
    from pinn.evaluation.panel_rows import learned_steps, panel_rows
    from pinn.surrogate.uncertainty.intervals import read_calibration

    asked, _ = read_request(requests.PanelRequest, given)
    if asked.alone is not None and asked.against is None:
        raise PinnError(
            "--alone is given without --against: give the other scorecard with --against"
        )
    path = find_checkpoint(asked.checkpoint)
    other = (
        None
        if asked.against is None
        else scoring.read_panel(asked.against, "write a scorecard with 'pinn evaluate panel --out'")
    )
    if asked.widths:
        read_calibration(path)  # report an unreadable file before any simulation starts
    if asked.steps is not None and learned_steps(path, asked.steps):
        warn_user(
            f"{asked.steps} is part of the training data of {path}, so it is excluded from "
            f"the scorecard"
        )
    rows = panel_rows(path, asked.held_out_runs or (), asked.steps, asked.public or ())
    try:
        scored = interval_widths.interval_rows(path, rows)
    except PinnError:  # the checkpoint has no intervals, so none are scored
        scored = None
    found = scoring.sum_up(rows.assign(half=math.nan if scored is None else scored["nested"]))
    scores = scoring.group_scores(found)
    lines = [scoring.panel_grid(scores).markdown()]
    if other is not None:
        table, verdict = scoring.compare_panels(other, found, scoring.shipped_noise(), asked.alone)
        lines = [f"{scoring.panel_grid(table).markdown()}\n\nB is {verdict}."]
        if left := scoring.uncompared_groups(other, found):
            groups = ", ".join(left)
            warn_user(f"the scorecards have no common configuration in these groups: {groups}")
    if scored is not None:
        lines.append(f"\n{interval_widths.judge_intervals(scored)}")
    if asked.widths and scored is not None:
        interval_widths.write_widths(path, scored)
    if asked.ledger is not None:
        ledger = find_checkpoint().with_name("ledger.csv")
        scoring.add_to_ledger(ledger, scoring.ledger_line(path, scores, asked.ledger))
    return ScoreTable(found, "\n".join(lines), decimals="%.6g")


@with_arguments(request=requests.DraftsRequest)
def evaluate_speculation(**given: object) -> ScoreTable:
    """Score predictions of unrecorded speculation, as ``pinn evaluate speculation`` does.

    The measured deployments use multi-token prediction, but their number of draft tokens was not
    recorded and is assumed.

    Args:
        **given: Keyword arguments listed below.
    """
    from pinn.evaluation.engines import networks
    from pinn.evaluation.speculation import score_speculating, speculating_grid
    from pinn.training.data.engine_deployments import read_speculating

    asked, _ = read_request(requests.DraftsRequest, given)
    rows, counts = read_speculating()
    lines = [f"{refused:8,} {reason}" for reason, refused in counts.refused.items()]
    tokens = asked.draft_tokens
    lines.append(f"{len(rows):8,} rows, assuming {tokens} draft tokens per step\n")
    scores = score_speculating(rows, networks(asked.checkpoint), tokens)
    return ScoreTable(scores, "\n".join([*lines, speculating_grid(scores).markdown()]))


def _print_grids(grids: list[Grid]) -> None:
    for grid in grids:
        page(WIDEST).print(grid)
