"""Evaluation suite: errors for every split, method and metric, in one table on disk."""

from functools import partial
from pathlib import Path

import pandas as pd

from pinn.common.files import find_checkpoint, replace_atomically, write_json_file
from pinn.common.progress import doing, note
from pinn.common.screen import say
from pinn.common.tables import write_frame
from pinn.errors import PinnError
from pinn.evaluation import crossvalidation, formulas, methods, metrics, tables
from pinn.evaluation.comparison import leaders, rank
from pinn.evaluation.config import ExperimentConfig
from pinn.evaluation.decisions import decide, decision_table
from pinn.evaluation.folds import experiment_splits, shipped_predictions, shipped_runs
from pinn.evaluation.measured import Measured, make_repeatable, mark, read_measured
from pinn.evaluation.regressions import tuned_regressions
from pinn.evaluation.report.write import write_report
from pinn.surrogate.uncertainty.interval_fit import calibration_curve
from pinn.surrogate.uncertainty.intervals import calibration_path, read_calibration
from pinn.training.data.released import PEERS
from pinn.training.data.splits import deployment_keys
from pinn.training.kernel_data import fitted_surrogates

#: Description of the evaluation data, printed below every table.
EVIDENCE = "4 models with measured deployments and 6 models with serving runs"

#: Methods that are excluded from first place, because they were trained on the rows that they
#: predict or on kernels of held-out models.
NOT_FOR_UNSEEN = ("blackbox, per configuration", *PEERS)


def run_suite(config: ExperimentConfig) -> dict[str, object]:
    """Run the evaluation suite and write its tables and page.

    Args:
        config: Configuration as ``conf/experiment/suite.yaml`` composes it. With ``fast``, nothing
            is fitted: trained methods are scored only on predictions already on disk.

    Returns:
        Paths of the written files, and the best methods by split and metric, as JSON-ready values.

    Raises:
        PinnError: If data or configuration are invalid.
    """
    make_repeatable(config)
    doing("reading measurements and kernels")
    folder = Path(config.output_dir)
    measured = read_measured(config)
    predictions, skipped = _predictions(config, measured)
    summary = _write_tables(config, measured, predictions)
    for name in ("coverage", "stated"):
        (folder / f"{name}.csv").unlink(missing_ok=True)  # Remove the table of an earlier run.
    try:
        _write_coverage(config, measured, predictions)
        if config.fast:
            skipped["intervals of held-out kernels"] = "--fast fits no kernel surrogates"
    except PinnError as error:
        skipped["intervals"] = str(error)
    images = Path(config.report.images) if config.report.images else None
    page = write_report(folder, EVIDENCE, images)
    summary |= {"report": str(page), "skipped": skipped}
    write_json_file(folder / "evaluation.json", summary, indent=1)
    if not config.fast:
        tables.print_results(pd.read_csv(folder / "results.csv"), evidence=EVIDENCE)
        tables.print_decisions(pd.read_csv(folder / "decisions.csv"))
        for what, why in skipped.items():
            note(f"{what}: {why}")
    say(f"Written: {page}, with results.csv and ranking.csv in the same folder.")
    return summary


def _predictions(
    config: ExperimentConfig, measured: Measured
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return every method's predicted latencies, and the reasons for missing predictions.

    The column ``group`` is set for predictions of serving runs only.
    """
    folder, observations = Path(config.output_dir), measured.observations
    splits, fingerprint = experiment_splits(config, measured), mark(config, measured)
    published = [methods.roofline(), formulas.blis(observations), *methods.peers()]
    wanted = crossvalidation.cells(splits, published, folder, fingerprint)
    slow = crossvalidation.cells(splits, _learned(config, measured), folder, fingerprint)
    crossvalidation.adopt(wanted + slow, [Path(other) for other in config.cells_from])
    to_make = wanted if config.fast else wanted + slow
    crossvalidation.compute(measured.rows, to_make, config.workers.workers())
    found = crossvalidation.read_cells([c for c in wanted + slow if c.path.is_file()])
    skipped: dict[str, str] = {}
    try:
        runs = shipped_runs(find_checkpoint(config.report.checkpoint))
        found = pd.concat([found, runs], ignore_index=True)
    except PinnError as error:
        skipped["shipped serving runs"] = str(error)
    if config.fast:
        try:
            checkpoint = find_checkpoint(config.report.checkpoint)
            kept = shipped_predictions(checkpoint, config.shipped, found, observations)
            found = pd.concat([found, kept], ignore_index=True)
        except PinnError as error:
            skipped["shipped predictions"] = str(error)
    if left := crossvalidation.missing(slow):
        fits = len({cell.logs for cell in left})
        skipped["fits"] = f"{fits} do not exist yet: run 'pinn evaluate' without --fast"
    return found, skipped


def _learned(config: ExperimentConfig, measured: Measured) -> list[methods.Method]:
    """Return the prediction methods that require a fit, in order of increasing fitting time."""
    found: list[methods.Method] = [
        *formulas.fitted_formulas(measured.observations),
        *tuned_regressions(measured.observations, config.seed),
        *methods.without_kernels(config),
    ]
    if config.kernels.enabled:
        found += methods.kernel_methods(methods.kernel_fits(config, measured.runs))
    return found


def _write_tables(
    config: ExperimentConfig, measured: Measured, found: pd.DataFrame
) -> dict[str, object]:
    """Write tables of predictions, errors, ranking and decisions, and print an overview of them."""
    folder, observations = Path(config.output_dir), measured.observations
    predictions = found.drop(columns="group", errors="ignore")
    path = folder / "predictions.parquet"
    replace_atomically(path, partial(predictions.to_parquet, index=False))
    masks = metrics.group_masks(config.evaluation.groups, measured.rows, predictions)
    summary = metrics.with_correlation(metrics.summarize(predictions, masks), predictions)
    write_frame(summary, folder / "results.csv")
    # Bootstrap median errors by resampling whole deployments or, for serving runs, whole models.
    groups = deployment_keys(observations).set_axis(observations["row_id"])
    if "group" in found:
        of_runs = found.dropna(subset="group").drop_duplicates("row_id")
        groups = pd.concat([groups, of_runs.set_index("row_id")["group"]])
    ranking = rank(predictions, groups, metrics.METRICS, NOT_FOR_UNSEEN)
    write_frame(ranking, folder / "ranking.csv")
    write_frame(decision_table(decide(predictions, observations)), folder / "decisions.csv")
    tables.print_overview(pd.read_csv(folder / "results.csv"), ranking)
    return {
        "folder": str(folder),
        "predictions": str(path),
        **{name: str(folder / f"{name}.csv") for name in ("results", "ranking", "decisions")},
        "evidence": EVIDENCE,
        "first": leaders(ranking),
    }


def _write_coverage(config: ExperimentConfig, measured: Measured, found: pd.DataFrame) -> None:
    """Write the coverage of prediction intervals on data that was not used to calibrate them.

    With ``fast``, write the coverage stored with the shown checkpoint's intervals.

    Raises:
        PinnError: If there are no errors from which to calibrate intervals.
    """
    folder = Path(config.output_dir)
    if not config.kernels.enabled:
        raise PinnError("kernels is off, but intervals need measured kernels: run with kernels=on")
    if not config.fast:
        surrogates = partial(fitted_surrogates, config.kernels.settings)
        errors = crossvalidation.described_errors(found, measured.observations, surrogates, folder)
        write_frame(calibration_curve(errors), folder / "coverage.csv")
        return
    checkpoint = find_checkpoint(config.report.checkpoint)
    if calibration_path(checkpoint).is_file():
        write_frame(pd.DataFrame(read_calibration(checkpoint).coverage), folder / "stated.csv")
