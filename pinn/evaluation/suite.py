"""The evaluation suite: every split, method and metric, in one table on disk."""

from functools import partial
from pathlib import Path

import pandas as pd

from pinn.common.files import find_checkpoint, replace_atomically, write_json_file
from pinn.common.progress import doing, note
from pinn.common.screen import say
from pinn.common.tables import write_frame
from pinn.errors import PinnError
from pinn.evaluation import crossvalidation, formulas, methods, metrics, tables
from pinn.evaluation.config import ExperimentConfig
from pinn.evaluation.decisions import decide, decision_table
from pinn.evaluation.folds import experiment_splits, shipped_predictions, shipped_runs
from pinn.evaluation.measured import Measured, make_repeatable, mark, read_measured
from pinn.evaluation.ranking import leaders, rank
from pinn.evaluation.regressions import tuned_regressions
from pinn.evaluation.report.write import write_report
from pinn.surrogate.uncertainty.interval_fit import calibration_curve
from pinn.surrogate.uncertainty.intervals import calibration_path, read_calibration
from pinn.training.data.released import PEERS
from pinn.training.data.splits import deployment_keys
from pinn.training.kernel_data import fitted_surrogates

#: What every table rests on.
EVIDENCE = "4 measured deployment models and 6 serving-run models"

#: Methods that saw what they predict, or kernels of the very models: no choice for an unseen pair.
NOT_FOR_UNSEEN = ("blackbox, per configuration", *PEERS)


def run_suite(config: ExperimentConfig) -> dict[str, object]:
    """Run the suite.

    Args:
        config: As ``conf/experiment/suite.yaml`` composes it. With ``fast`` nothing is fitted: of
            what learns, the cells that are on disk are scored.

    Returns:
        Files and verdicts, ready for JSON.

    Raises:
        PinnError: If data or configuration cannot be used.
    """
    make_repeatable(config)
    doing("reading measurements and kernels")
    folder = Path(config.output_dir)
    measured = read_measured(config)
    observations, rows = measured.observations, measured.rows
    splits, fingerprint = experiment_splits(config, measured), mark(config, measured)
    published = [methods.roofline(), formulas.blis(observations), *methods.peers()]
    wanted = crossvalidation.cells(splits, published, folder, fingerprint)
    slow = crossvalidation.cells(splits, _learned(config, measured), folder, fingerprint)
    crossvalidation.adopt(wanted + slow, [Path(other) for other in config.cells_from])
    to_make = wanted if config.fast else wanted + slow
    crossvalidation.compute(rows, crossvalidation.missing(to_make), config.workers.workers())
    predictions = crossvalidation.read_cells(
        [cell for cell in wanted + slow if cell.path.is_file()]
    )
    skipped: dict[str, str] = {}
    runs = kept = None
    try:
        runs = shipped_runs(find_checkpoint(config.report.checkpoint))
    except PinnError as error:
        skipped["shipped serving runs"] = str(error)
    groups = _groups(observations, runs)
    predictions = pd.concat([predictions, runs], ignore_index=True)
    if config.fast:
        try:
            checkpoint = find_checkpoint(config.report.checkpoint)
            kept = shipped_predictions(checkpoint, config.shipped, predictions, observations)
        except PinnError as error:
            skipped["shipped predictions"] = str(error)
    predictions = pd.concat([predictions, kept], ignore_index=True)
    if left := crossvalidation.missing(slow):
        fits = len({cell.logs for cell in left})
        skipped["fits"] = f"{fits} are not made yet: pinn evaluate without --fast makes them"
    summary = _tables(config, predictions, measured, groups)
    return _finish(config, measured, summary, skipped)


def _learned(config: ExperimentConfig, measured: Measured) -> list[methods.Method]:
    """Methods that are fitted, cheap ones first."""
    found: list[methods.Method] = [
        *formulas.fitted_formulas(measured.observations),
        *tuned_regressions(measured.observations, config.seed),
        *methods.without_kernels(config),
    ]
    if config.kernels.enabled:
        found += methods.kernel_methods(methods.kernel_fits(config, measured.runs))
    return found


def _groups(observations: pd.DataFrame, runs: pd.DataFrame | None) -> pd.Series:
    """Row id -> what the bootstrap draws: deployments, models of serving runs."""
    keys = deployment_keys(observations).set_axis(observations["row_id"])
    if runs is None:
        return keys
    return pd.concat([keys, runs.drop_duplicates("row_id").set_index("row_id")["group"]])


def _tables(
    config: ExperimentConfig, predictions: pd.DataFrame, measured: Measured, groups: pd.Series
) -> dict[str, object]:
    """Tables to disk first; what is printed and drawn is read from them."""
    folder = Path(config.output_dir)
    predictions = predictions.drop(columns=["group"], errors="ignore")
    path = folder / "predictions.parquet"
    replace_atomically(path, partial(predictions.to_parquet, index=False))
    masks = metrics.group_masks(config.evaluation.groups, measured.rows, predictions)
    write_frame(
        metrics.with_correlation(metrics.summarize(predictions, masks), predictions),
        folder / "results.csv",
    )
    results = pd.read_csv(folder / "results.csv")
    ranking = rank(predictions, groups, metrics.METRICS, NOT_FOR_UNSEEN)
    write_frame(ranking, folder / "ranking.csv")
    decisions = decide(predictions, measured.observations)
    write_frame(decision_table(decisions), folder / "decisions.csv")
    tables.print_overview(results, ranking)
    return {
        "folder": str(folder),
        "predictions": str(path),
        **{name: str(folder / f"{name}.csv") for name in ("results", "ranking", "decisions")},
        "evidence": EVIDENCE,
        "first": leaders(ranking),
    }


def _finish(
    config: ExperimentConfig,
    measured: Measured,
    summary: dict[str, object],
    skipped: dict[str, str],
) -> dict[str, object]:
    """Intervals, and the page of everything."""
    folder = Path(config.output_dir)
    for name in ("coverage", "stated"):
        (folder / f"{name}.csv").unlink(missing_ok=True)  # of an earlier run
    try:
        if not config.kernels.enabled:
            raise PinnError("intervals rest on kernels: run with kernels=on")
        if config.fast:
            _stated(config, folder)
        else:
            _intervals(config, measured, folder)
    except PinnError as error:
        skipped["intervals"] = str(error)
    if config.fast and "intervals" not in skipped:
        skipped["intervals of left-out kernels"] = "their kernels are fitted without --fast"
    images = Path(config.report.images) if config.report.images else None
    page = write_report(folder, EVIDENCE, images)
    summary = summary | {"report": str(page), "skipped": skipped}
    write_json_file(folder / "evaluation.json", summary, indent=1)
    if not config.fast:
        results = pd.read_csv(folder / "results.csv")
        tables.print_results(results, evidence=EVIDENCE)
        tables.print_decisions(pd.read_csv(folder / "decisions.csv"))
        for what, why in skipped.items():
            note(f"{what}: {why}")
    say(f"All of it: {page}, results.csv and ranking.csv beside it.")
    return summary


def _intervals(config: ExperimentConfig, measured: Measured, folder: Path) -> None:
    """Coverage of intervals that never saw what they are judged on, and decisions by them."""
    predictions = pd.read_parquet(folder / "predictions.parquet")
    surrogates = partial(fitted_surrogates, config.kernels.settings)
    errors = crossvalidation.described_errors(
        predictions, measured.observations, surrogates, folder
    )
    write_frame(calibration_curve(errors), folder / "coverage.csv")


def _stated(config: ExperimentConfig, folder: Path) -> None:
    """What the intervals of the checkpoint cover, whose predictions are shown."""
    checkpoint = find_checkpoint(config.report.checkpoint)
    if calibration_path(checkpoint).is_file():
        write_frame(pd.DataFrame(read_calibration(checkpoint).coverage), folder / "stated.csv")
