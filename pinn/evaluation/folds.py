"""Networks of cross-validation folds, intervals fitted to errors, and published checkpoints."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common import files, old_names, tables
from pinn.errors import PinnError
from pinn.evaluation.config import ExperimentConfig
from pinn.evaluation.crossvalidation import held_out_errors, held_out_kernels, mean_steps, parts_of
from pinn.evaluation.measured import Measured
from pinn.evaluation.methods import kernel_fits
from pinn.evaluation.metrics import CHECKPOINT_COLUMN
from pinn.evaluation.serving_runs import HELD_OUT, RUNS_HELD_OUT, network_latencies, run_folds
from pinn.kernels.surrogates import KernelSurrogates
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.simulator.intervals import Figures, gains
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, figure_seconds
from pinn.simulator.run import Run
from pinn.simulator.simulate import measured_job
from pinn.specs.gpu import load_gpu
from pinn.surrogate.checkpoint import Checkpoint, save_checkpoint
from pinn.surrogate.uncertainty import interval_fit
from pinn.surrogate.uncertainty.coefficient_changes import FoldNetwork, coefficient_changes
from pinn.surrogate.uncertainty.held_out import described_steps, shape_of
from pinn.surrogate.uncertainty.intervals import calibration_path, write_calibration
from pinn.training.data.splits import Split, named_splits
from pinn.training.folds import Fold, fold_of, learn_fold
from pinn.training.kernel_data import fitted_surrogates
from pinn.training.serving_rows import ServingRows

# Publishing a trained checkpoint and its tables in the folder that commands read by default.

#: Tables of a checkpoint's cross-validation errors, stored next to the checkpoint.
TABLES = ("results.csv", "serving_runs.csv", "predictions.csv")

#: Folder of the networks that were each trained without one model. Each file is named after that
#: model.
LEFT_OUT_FOLDER = "left_out"


def publish(path: Path, folder: Path) -> Path:
    """Copy a checkpoint, its intervals, and its cross-validation's tables and networks to a folder.

    Args:
        path: ``checkpoint.safetensors`` of an experiment.
        folder: Folder in which the commands look for a checkpoint.

    Returns:
        Path of the copied checkpoint, which commands now use by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "pinn.safetensors"
    mark = files.file_sha256(path)
    for name in TABLES:
        kept = target.with_suffix(f".{name}")
        source = path.with_name(name)
        if source.is_file():
            table = pd.read_csv(source, dtype={"stage": str}).assign(**{CHECKPOINT_COLUMN: mark})
            tables.write_frame(table, kept, float_format="%.8g")
        else:
            kept.unlink(missing_ok=True)
    left_out = path.with_name(LEFT_OUT_FOLDER)
    if left_out.is_dir():
        shutil.rmtree(folder / LEFT_OUT_FOLDER, ignore_errors=True)
        shutil.copytree(left_out, folder / LEFT_OUT_FOLDER)
    intervals = path.with_suffix(".intervals.json")
    if intervals.is_file():
        files.write_whole(target.with_suffix(".intervals.json"), intervals.read_bytes())
    files.write_whole(target, path.read_bytes())
    return target


# Cross-validation folds of an experiment's splits, and the networks trained on them.

#: Split method whose trained networks, one per held-out model, are stored next to a checkpoint.
KEPT = "leave-one-model-out"


def split_folds(splits: Mapping[str, list[Split]], measured: Measured) -> list[Fold]:
    """Return the cross-validation folds of splits of measured deployments, without duplicates."""
    folds = (fold for _, fold, _ in _folds(splits, measured))
    return list({(fold.rows.row_id, fold.exclude.slug()): fold for fold in folds}.values())


def experiment_splits(config: ExperimentConfig, measured: Measured) -> dict[str, list[Split]]:
    """Return an experiment's splits by split method, and write them to its folder.

    Raises:
        PinnError: If a split method, or the model or GPU to hold out, is unknown.
    """
    folder, rows = Path(config.output_dir) / "splits", measured.observations
    wanted = config.evaluation.held_out
    if wanted is None:
        return named_splits(config.evaluation.splits, rows, folder)
    kinds, name = _kinds_of(wanted, rows)
    splits = named_splits(kinds, rows, folder)
    return {kind: [s for s in splits[kind] if s.held_out == (name,)] for kind in kinds}


def _kinds_of(wanted: str, rows: pd.DataFrame) -> tuple[list[str], str]:
    """Return the split methods that can hold out a given model or GPU, and its name in the data."""
    models, gpus = (sorted(rows[column].unique()) for column in ("model", "gpu"))
    if of_models := [name for name in models if wanted in (name, name.split("/")[-1])]:
        return [KEPT], of_models[0]
    if of_gpus := [name for name in gpus if wanted in (name, load_gpu(name).name)]:
        return ["leave-one-gpu-out", "leave-one-gpu-and-its-kernels-out"], of_gpus[0]
    known = ", ".join([*models, *gpus])
    raise PinnError(
        f"evaluation.held_out is {wanted}, which is no measured model or GPU: use one of {known}"
    )


def fold_networks(
    config: ExperimentConfig, measured: Measured, splits: Mapping[str, list[Split]]
) -> list[FoldNetwork]:
    """Return the network of every cross-validation fold, saved below the experiment's folder.

    Networks that held out a model are also saved to ``LEFT_OUT_FOLDER``, which :func:`publish`
    copies.
    """
    fits, folder = kernel_fits(config, measured.runs), Path(config.output_dir)
    shutil.rmtree(folder / LEFT_OUT_FOLDER, ignore_errors=True)
    (folder / LEFT_OUT_FOLDER).mkdir(parents=True)
    found = []
    for number, (kind, fold, test) in enumerate(_folds(splits, measured)):
        network = learn_fold(fits.learner, fold, fits.root).network
        checkpoint = Checkpoint(network.weights(), {"excluded": fold.exclude.describe()})
        name = f"{fold.exclude.slug()}.safetensors"
        path = folder / "networks" / kind / f"{number:02d}-{name}"
        save_checkpoint(checkpoint, path)
        if kind == KEPT:
            save_checkpoint(checkpoint, folder / LEFT_OUT_FOLDER / name)
        found.append(FoldNetwork(kind, test.deployments, path))
    return found


def _folds(
    splits: Mapping[str, list[Split]], measured: Measured
) -> Iterator[tuple[str, Fold, ServingRows]]:
    """Yield (split method, fold, held-out rows) of every split."""
    for kind, of_kind in splits.items():
        for split in of_kind:
            train, test = parts_of(measured.rows, split)
            exclude = held_out_kernels(kind, test)
            yield kind, fold_of(train, measured.runs, exclude), test


# Cross-validation predictions that are published with a checkpoint, including serving runs.

#: Names of a serving run's latency metrics in the evaluation suite, by metric. Mean ITL is used as
#: TPOT.
_METRICS = {
    "itl_mean_s": "tpot", "ttft_mean_s": "ttft", "e2e_mean_s": "e2e", "e2e_p99_s": "e2e_p99",
}  # fmt: skip

#: Relative difference up to which measured values count as equal, because tables store eight
#: digits.
_ROUNDING = 1e-6


def shipped_predictions(
    checkpoint: Path, splits: Sequence[str], made: pd.DataFrame, observations: pd.DataFrame
) -> pd.DataFrame:
    """Return those published cross-validation predictions of a checkpoint that ``made`` lacks.

    Each prediction comes from a fit without the row's model, or without the row's GPU and its
    kernels.

    Args:
        checkpoint: Checkpoint next to which ``publish`` wrote the predictions.
        splits: Split methods whose predictions are returned.
        made: Existing predictions; their pairs of split and method are skipped.
        observations: Table of measured deployments that were predicted.

    Returns:
        Table as ``pinn.evaluation.crossvalidation.read_cells`` returns it, with the checkpoint's
        SHA-256 in the column ``CHECKPOINT_COLUMN``.

    Raises:
        PinnError: If the predictions are missing, or belong to another checkpoint or to other
            measurements.
    """
    kept = _published("predictions.csv", checkpoint)
    kept = kept[kept["split"].isin(list(splits))]
    measured = observations.set_index("row_id")[["tpot_s", "ttft_s"]].reindex(kept["row_id"])
    own = kept[["tpot_measured_s", "ttft_measured_s"]].to_numpy()
    if not np.allclose(measured.to_numpy(), own, rtol=_ROUNDING, atol=0):
        path = checkpoint.with_suffix(".predictions.csv")
        raise PinnError(
            f"the predictions in {path} are of other measurements than this experiment's: train "
            "the checkpoint again with 'python train.py +experiment=release'"
        )
    there, pairs = (pd.MultiIndex.from_frame(of[["split", "method"]]) for of in (made, kept))
    return kept[~pairs.isin(there)]


def shipped_runs(checkpoint: Path) -> pd.DataFrame:
    """Return predictions of serving runs, each by a network trained without the run's model.

    The table has one row per method and run, with the same columns as the predictions on all other
    splits. All runs of a model are one group, so that a bootstrap resamples them together.

    Args:
        checkpoint: Checkpoint next to which ``publish`` wrote the predictions of runs.

    Returns:
        Table as :func:`shipped_predictions` returns it, with the column ``group``.

    Raises:
        PinnError: If the predictions are missing or belong to another checkpoint.
    """
    scores = _published("serving_runs.csv", checkpoint)
    unseen = scores["method"].str.endswith(HELD_OUT) & (scores["stage"] == WHOLE_RUN)
    whole = scores[unseen & scores["figure"].isin(list(_METRICS))]
    wide = whole.assign(method=whole["method"].str.removesuffix(HELD_OUT)).pivot(
        index=["method", "run", "model"], columns="figure", values=["predicted_s", "measured_s"]
    )
    table = wide.index.to_frame(index=False).rename(columns={"run": "row_id"})
    table = table.assign(split=RUNS_HELD_OUT, held_out=table["model"], group=table["model"])
    for figure, metric in _METRICS.items():
        if ("predicted_s", figure) in wide:
            table[f"{metric}_s"] = wide["predicted_s", figure].to_numpy()
            table[f"{metric}_measured_s"] = wide["measured_s", figure].to_numpy()
    return table.drop(columns="model")


def _published(name: str, checkpoint: Path) -> pd.DataFrame:
    """Return one of the tables ``TABLES`` that were published with a checkpoint."""
    path = checkpoint.with_suffix(f".{name}")
    if not path.is_file():
        raise PinnError(
            f"{path} does not exist, as the checkpoint was published without this table: train the "
            "checkpoint again with 'python train.py +experiment=release'"
        )
    table = pd.read_csv(path, dtype={"stage": str})
    if set(table[CHECKPOINT_COLUMN]) != {files.file_sha256(checkpoint)}:
        raise PinnError(
            f"{path} belongs to a checkpoint other than {checkpoint}: publish the table and its "
            "checkpoint together"
        )
    if "method" in table:
        current = old_names.current_texts(table["method"], old_names.METHODS, str(path))
        table = table.assign(method=current)
    return table


# Errors and features of held-out serving runs, with the same columns as for measured deployments.

#: Name, in tables of errors, of the split that holds out the models of serving runs.
RUN_ERRORS_SPLIT = "serving-runs-leave-one-model-out"

#: Client-side metrics of a serving run, by evaluation metric. A run's ITL is used as TPOT.
FIGURES = {"tpot": "itl_mean_s", "ttft": "ttft_mean_s", "e2e": "e2e_mean_s"}


def run_error_rows(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], kernels: KernelSurrogates
) -> pd.DataFrame:
    """Return log errors of one fold's serving runs, with the columns used to fit interval widths.

    Each run is simulated three times: with the predicted step times, and with slightly shorter and
    longer ones, to determine how latencies change with step times.

    Args:
        runs: Runs whose model shape was held out of the fits that produced ``latencies`` and
            ``kernels``.
        latencies: Coefficients of each run's deployment.
        kernels: Kernel surrogates of the fold.

    Returns:
        One row per run, with the columns ``pinn.evaluation.crossvalidation.COLUMNS``.
    """
    rows = pd.DataFrame(list(map(_row, runs, latencies)))
    steps = mean_steps([latency.deployment for latency in latencies], rows)
    return pd.concat([rows, described_steps(kernels, steps)], axis=1)


def mean_figures(run: Run) -> Figures:
    """Return the mean TPOT, TTFT and E2E latency that a run's clients see, in seconds."""
    return {metric: figure_seconds(run, WHOLE_RUN, name) for metric, name in FIGURES.items()}


def _row(run: MeasuredRun, latency: LinearLatency) -> dict[str, object]:
    job = measured_job(latency.deployment, run.workload, latency)
    simulated = job.run()
    value = mean_figures(simulated)
    magnified = gains(job, mean_figures, value)
    measured = run.measured[WHOLE_RUN]
    model, gpu = latency.deployment.model, latency.deployment.gpu.name
    requests = simulated.requests
    return {
        "split": RUN_ERRORS_SPLIT,
        "row_id": run.name,
        "model": model.name,
        "shape": shape_of(model),
        "gpu": gpu,
        "group": f"{model.name} on {gpu}",
        "concurrency": float(np.mean(simulated.steps["requests"])),
        "prompt_tokens": float(np.mean(requests.prompt_tokens)),
        "output_tokens": float(np.mean(requests.output_tokens)),
        "ttft_share": value["ttft"] / value["e2e"],
        **{f"{m}_gain": magnified[m] for m in FIGURES},
        **{m: float(np.log(measured[figure] / value[m])) for m, figure in FIGURES.items()},
    }


# Prediction intervals of a checkpoint, calibrated to errors of its experiment's cross-validation.


def calibrate_folds(
    config: ExperimentConfig, measured: Measured, splits: Mapping[str, list[Split]], path: Path
) -> None:
    """Fit a checkpoint's prediction intervals to its experiment's cross-validation errors.

    The intervals and the networks of the folds are written to the checkpoint's folder.

    Args:
        config: Configuration of the experiment.
        measured: All data of the experiment.
        splits: Splits of the experiment's folds.
        path: Checkpoint in the experiment's folder, trained on all data.

    Raises:
        PinnError: If the experiment is not finished.
    """
    networks, folder = fold_networks(config, measured, splits), path.parent
    surrogates = partial(fitted_surrogates, config.kernels.settings)
    errors = held_out_errors(folder, measured.observations, surrogates)
    source = {
        "experiment": folder.name,
        "splits": sorted(errors["split"].unique().tolist()),
        "rows": len(errors),
        "predictions_sha256": files.file_sha256(folder / "predictions.csv"),
    }
    fits = kernel_fits(config, measured.runs)
    of_runs = []
    for fold, test in run_folds(measured.rows, measured.runs):
        learned = learn_fold(fits.learner, fold, fits.root)
        latencies = network_latencies(learned.network, test)
        of_runs.append(run_error_rows(test, latencies, learned.teacher.kernels))
    together = pd.concat([errors, *of_runs], ignore_index=True)
    changes = coefficient_changes(path, networks)
    found = interval_fit.calibrate(together, changes, path, [source])
    write_calibration(found, calibration_path(path))
