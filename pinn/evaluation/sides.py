"""Comparison of two checkpoints, coefficients or evaluations, called side A and side B.

Prediction errors, step times and coefficients are compared.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common import JsonObject
from pinn.common.documents import read_json
from pinn.common.screen import PrintedResult, printed
from pinn.common.tables import records
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.labels import server_label
from pinn.errors import PinnError
from pinn.evaluation.comparison import Scores, compare_errors
from pinn.evaluation.metrics import (
    RESULT_COLUMNS,
    error_summary,
    predictions_of,
    read_results,
)
from pinn.measurements.deployments.observations import read_observations
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set, set_to_json
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.prediction import Prediction
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import Surrogate, batch_seconds
from pinn.training.data.splits import deployment_keys

#: GPUs of the reference deployments that are compared, by model and tensor-parallel size.
SHOWN = {
    ("meta-llama/Llama-3.1-8B", 1): ("A100", "H100", "B200"),
    ("meta-llama/Llama-3.1-70B", 4): ("A100", "H100", "B200"),
    ("Qwen/Qwen3-30B-A3B", 2): ("A100", "H100", "B200"),
    ("openai/gpt-oss-120b", 2): ("H100", "B200"),
    ("deepseek-ai/DeepSeek-V3", 8): ("H200", "B200"),
}

#: Batches of the steps whose times are compared.
BATCHES = ("64 decode @ 1000", "1 prefill 2048 @ 0", "1 prefill 512 @ 0 + 64 decode @ 1000")


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(PrintedResult):
    """Errors, step times and coefficients of sides A and B; tables that a side lacks are empty.

    Attributes:
        a: Path of side A, or the title of a prediction.
        b: Path of side B, or the title of a prediction.
        errors: Table as :func:`pinn.evaluation.comparison.compare_errors` returns it.
        step_times: Times of reference steps: ``deployment``, ``batch``, ``a_us``, ``b_us`` and
            ``ratio`` (b / a).
        coefficients: Coefficients of a coefficient file's deployment: ``name``, ``unit``, ``a``,
            ``b``, ``ratio`` and ``verdict``. The verdict shows whether B's value lies inside A's
            interval, if A has one. Empty for two checkpoints.
        no_errors: Reason why errors are not compared; empty if errors are compared, or if neither
            side has errors.
    """

    a: Path | str
    b: Path | str
    errors: pd.DataFrame
    step_times: pd.DataFrame
    coefficients: pd.DataFrame
    no_errors: str = ""

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables of errors, step times and coefficients that are not empty, by name."""
        return {name: t for name, t in vars(self).items() if isinstance(t, pd.DataFrame) and len(t)}

    def to_json(self) -> JsonObject:
        """Return the rows of each table as JSON values, by table name."""
        return {name: [*records(table)] for name, table in self.tables().items()}

    def show(self, details: bool = False) -> None:
        """Print the comparison on one screen; with ``details``, print every row and column."""
        from pinn.evaluation.comparison_text import print_comparison

        print_comparison(self, details)

    def __str__(self) -> str:
        """Return the text that ``pinn compare`` prints."""
        return printed(self.show)


def compare(a: Path | Prediction, b: Path | Prediction, method: str = "network") -> Comparison:
    """Compare checkpoints, coefficient files, predictions, tables of results or evaluations.

    Args:
        a: File, folder or prediction of side A.
        b: File, folder or prediction of side B.
        method: Method whose errors are compared, in tables with several methods.

    Raises:
        PinnError: If a side is not one of these or lacks the method, or if the sides have nothing
            in common.
    """
    sides = _read_side(a, method), _read_side(b, method)
    titles = _title(a), _title(b)
    named = zip((f"A ({titles[0]})", f"B ({titles[1]})"), sides, strict=True)
    without = [name for name, side in named if side.results.empty]
    errors, no_errors = pd.DataFrame(), ""
    try:
        errors = compare_errors(*sides)
    except PinnError as error:
        lacking = f"no errors against measurements in {' and '.join(without)}"
        remedy = (
            "compare checkpoints with held-out errors, evaluations, or files calibrated to traces "
            "or to several loads"
        )
        no_errors = f"{lacking}: {remedy}" if without else str(error)
    found = Comparison(*titles, errors, *_steps_and_coefficients(*sides), no_errors)
    if not found.tables():
        raise PinnError(no_errors)
    return found if len(without) < 2 else replace(found, no_errors="")


@dataclass(frozen=True)
class _Side(Scores):
    """Side A or B of a comparison; error summaries are empty if the side's file has none.

    Attributes:
        surrogate: Checkpoint that is ready to predict; None for other files.
        given: Content of a coefficient file; None for other files.
        ends: Both ends of each coefficient's interval, by ``beta.NAME`` or ``alpha.NAME``; empty
            for files without intervals.
    """

    surrogate: Surrogate | None = None
    given: CoefficientSet | None = None
    ends: dict[str, tuple[float, float]] = field(default_factory=dict)

    def coefficients(
        self, deployment: Deployment, where: str
    ) -> Float[np.ndarray, " coefficients"]:
        """Return the coefficients of a deployment: beta, then alpha.

        Raises:
            PinnError: If a coefficient file belongs to another deployment.
        """
        if self.given is not None:
            _check_same(self.given, deployment, where)
            return np.concatenate([self.given.beta, self.given.alpha])
        assert self.surrogate is not None
        found = self.surrogate.coefficients([deployment])
        return np.concatenate([found.beta[0], found.alpha[0]])


def _check_same(given: CoefficientSet, deployment: Deployment, where: str) -> None:
    """Check that coefficients belong to a deployment.

    Raises:
        PinnError: If they belong to another deployment; the message includes the differences.
    """
    try:
        given.check_deployment(deployment, where)
    except PinnError as error:
        fault = str(error).rpartition(": ")[0]
        raise PinnError(
            f"{fault}: compare coefficients of one model, GPU, number format and parallelism. For "
            "the step times of several deployments, use 'pinn coefficients --grid' or "
            "pinn.predict_many"
        ) from error


def _title(side: Path | Prediction) -> Path | str:
    if isinstance(side, Path):
        return side
    return f"prediction of {server_label(side.deployment)}"


def _read_side(path: Path | Prediction, method: str) -> _Side:
    if isinstance(path, Prediction):
        given = path.coefficients
        tree = set_to_json(given, path.evidence.coefficient_ends)
        return _Side(_calibration_results(given), given=given, ends=_ends(tree))
    if path.is_dir():
        return _read_folder(path, method)
    if not path.is_file():
        raise PinnError(
            f"{path} does not exist: give a checkpoint, a coefficient file or an "
            "evaluation's folder"
        )
    if path.suffix == ".safetensors":
        surrogate = Surrogate.load(path)
        held_out = surrogate.checkpoint.metadata.get("held_out_results") or []
        results = pd.DataFrame(held_out, columns=list(RESULT_COLUMNS))
        return _Side(results[results["method"] == method], surrogate=surrogate)
    if path.suffix == ".json":
        given = read_coefficient_set(path)
        return _Side(_calibration_results(given), given=given, ends=_ends(read_json(path)))
    if path.suffix == ".csv":
        return _Side(_of_method(read_results(path), method, path))
    raise PinnError(
        f"the format of {path} is unknown: give a checkpoint (.safetensors), a coefficient file "
        "(.json), a results.csv or an evaluation's folder"
    )


def _read_folder(folder: Path, method: str) -> _Side:
    results = _of_method(read_results(folder / "results.csv"), method, folder)
    observations, predictions = folder / "observations" / "silicon.parquet", predictions_of(folder)
    if predictions is None or not observations.is_file():
        return _Side(results)
    rows = read_observations(observations)
    groups = deployment_keys(rows).set_axis(rows["row_id"])
    return _Side(results, predictions[predictions["method"] == method], groups)


def _of_method(results: pd.DataFrame, method: str, path: Path) -> pd.DataFrame:
    found = results[results["method"] == method]
    if found.empty:
        known = "; ".join(sorted(results["method"].unique()))
        raise PinnError(
            f"{path} has no results of the method {method!r}: give one of {known} as method "
            "(--method)"
        )
    return found


def _calibration_results(given: CoefficientSet) -> pd.DataFrame:
    """Return a calibration's error summaries: of step times, or of metrics of held-out loads.

    Step times have a split for each period and type of step.
    """
    if held_out := given.calibration.get("held_out"):
        return _load_results(pd.DataFrame(list(held_out)))
    columns = ["part", "kind", "coefficients", "n", "median", "mean", "bias"]
    errors = pd.DataFrame(list(given.calibration.get("errors", ())), columns=columns)
    rows = errors[(errors["n"] > 0) & (errors["coefficients"] == "calibrated")]
    percent = {name: 100 * rows[name] for name in ("median", "mean", "bias")}
    splits = rows["part"] + ", " + rows["kind"]
    rows = rows.assign(split=splits, held_out="all", method="calibrated", metric="step", **percent)
    return rows.reindex(columns=list(RESULT_COLUMNS))


def _load_results(held_out: pd.DataFrame) -> pd.DataFrame:
    """Return error summaries of the metrics of held-out loads after a calibration."""
    rows = [
        {"metric": str(figure).removesuffix("_mean_s")}
        | asdict(error_summary(of["after"].to_numpy(), of["measured"].to_numpy()))
        for figure, of in held_out.groupby("figure", sort=False)
    ]
    table = pd.DataFrame(rows).assign(split="held-out loads", held_out="all", method="calibrated")
    return table.reindex(columns=list(RESULT_COLUMNS))


def _ends(tree: Any) -> dict[str, tuple[float, float]]:
    return {
        f"{part}.{name}": (entry["low"], entry["high"])
        for part in ("beta", "alpha")
        for name, entry in tree[part].items()
        if isinstance(entry, dict) and "low" in entry
    }


def _deployments(a: _Side, b: _Side) -> dict[str, Deployment]:
    """Return the deployments for which both sides have coefficients, by label."""
    if any(side.surrogate is None and side.given is None for side in (a, b)):
        return {}
    files = [side.given.configuration() for side in (a, b) if side.given is not None]
    if files:
        known = [
            make_deployment(canonical(configuration)) for configuration in files if configuration
        ]
        return {f"{one.model.name} on {one.gpu.name}": one for one in known[:1]}
    found = {}
    for (model, size), gpu in ((key, gpu) for key, gpus in SHOWN.items() for gpu in gpus):
        given = canonical({"model": model, "gpu": gpu, "tensor_parallel_size": size})
        found[f"{model.split('/')[-1]}, {size} x {gpu}"] = make_deployment(given)
    return found


def _steps_and_coefficients(a: _Side, b: _Side) -> tuple[pd.DataFrame, pd.DataFrame]:
    batches = [parse_batch(text) for text in BATCHES]
    units = [f.unit for f in STEP_FEATURES.values()] + [f.unit for f in REQUEST_FEATURES.values()]
    times, coefficients = [], []
    for label, deployment in _deployments(a, b).items():
        both = a.coefficients(deployment, "A"), b.coefficients(deployment, "B")
        us = (1e6 * batch_seconds(of[: len(STEP_FEATURES)], deployment, batches) for of in both)
        each = zip(BATCHES, *(of.tolist() for of in us), strict=True)
        times += [(label, batch, x, y, y / x) for batch, x, y in each]
        if a.given is None and b.given is None:
            continue
        for name, unit, x, y in zip(NAMES, units, *(of.tolist() for of in both), strict=True):
            ratio = y / x if x else (1.0 if not y else float("inf"))
            coefficients.append((name, unit, x, y, ratio, _inside(a.ends.get(name), y)))
    return (
        pd.DataFrame(times, columns=["deployment", "batch", "a_us", "b_us", "ratio"]),
        pd.DataFrame(coefficients, columns=["name", "unit", "a", "b", "ratio", "verdict"]),
    )


def _inside(ends: tuple[float, float] | None, value: float) -> str:
    if ends is None:
        return ""
    return "inside A's interval" if ends[0] <= value <= ends[1] else "outside A's interval"
