"""The two sides that pinn compare reads, and what it prints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from rich.console import Console

from pinn.common.documents import read_json
from pinn.common.screen import WIDEST, WIDTH, Column, Grid, page
from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.evaluation.comparison import Scores
from pinn.evaluation.metrics import RESULT_COLUMNS, read_results
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import Surrogate, batch_seconds
from pinn.training.data.splits import deployment_keys
from pinn.training.data.table import read_observations

# A comparison, printed and written.

#: Rows of each table of a screen; --details has all.
_ROWS = 5


def print_comparison(
    a: Path, b: Path, tables: Mapping[str, pd.DataFrame], no_errors: str, details: bool
) -> None:
    """Print what ``pinn compare`` found.

    Args:
        a: Where A was read from.
        b: Where B was.
        tables: ``errors``, ``step_times`` and ``coefficients``, those that there are.
        no_errors: Why errors are not compared, where they are not.
        details: Every row and column, in place of what fits one screen.
    """
    console = page(WIDEST if details else WIDTH)
    console.print(f"A: {a}\nB: {b}\n")
    if "errors" in tables:
        _print_rows(console, _errors(tables["errors"], details), details)
    elif no_errors:
        console.print(f"Errors: {no_errors}.\n")
    if "coefficients" in tables:
        _print_rows(console, _coefficients(tables["coefficients"], details), details)
        console.print(_changed(tables["coefficients"]))
    if "step_times" in tables:
        if details:
            _print_rows(console, _step_times(tables["step_times"]), details)
        ratio = tables["step_times"]["ratio"]
        console.print(
            f"Step times of B are {ratio.min():.2f} to {ratio.max():.2f} x those of A, median "
            f"{ratio.median():.2f}."
        )
    if not details:
        console.print("More: --details (every row), --json FILE.")


def _print_rows(console: Console, table: Grid, details: bool) -> None:
    """A table, or its first rows and how many more there are."""
    shown = table if details else replace(table, rows=table.rows[:_ROWS])
    if shown.rows:
        console.print(shown)
    if len(shown.rows) < len(table.rows):
        console.print(f"... and {len(table.rows) - len(shown.rows)} more")
    console.print()


def _errors(errors: pd.DataFrame, details: bool) -> Grid:
    more = ("B - A", "95 % interval", "B lower in") if details else ()
    table = Grid.of(
        "split", "metric", "n", "A", "B", *more, Column("verdict", True), text=2,
        caption="median absolute percentage error",
    )  # fmt: skip
    for row in errors.to_dict("records"):
        ends = "-" if pd.isna(row["low"]) else f"{row['low']:+.1f} to {row['high']:+.1f}"
        parts = f"{row['parts_b_lower']} of {row['parts']}" if row["parts"] else "-"
        cells = (f"{row['difference']:+.1f}", ends, parts) if details else ()
        table.add(
            row["split"], row["metric"].upper(), str(row["n"]), f"{row['a']:.1f}",
            f"{row['b']:.1f}", *cells, row["verdict"],
        )  # fmt: skip
    return table


def _coefficients(coefficients: pd.DataFrame, details: bool) -> Grid:
    """All of them, or those that differ, the most different first."""
    if not details:
        with np.errstate(divide="ignore"):  # one that is 0 on one side differs most
            off = np.abs(np.log(coefficients["ratio"].to_numpy(float)))
        coefficients = coefficients.assign(off=off).sort_values("off", ascending=False)
        coefficients = coefficients[coefficients["off"] > 0]
    name, unit = (Column(heading, True, folds=False) for heading in ("name", "unit"))
    headings = (name, unit, "A", "B", "B / A", Column("A's interval", True))
    table = Grid.of(*headings, caption="coefficients")
    for row in coefficients.to_dict("records"):
        values = (f"{row['a']:.4g}", f"{row['b']:.4g}", f"{row['ratio']:.2f}")
        table.add(row["name"], row["unit"], *values, row["verdict"].removesuffix(" A's interval"))
    return table


def _changed(coefficients: pd.DataFrame) -> str:
    """How many coefficients differ, in words."""
    differ = int((coefficients["a"] != coefficients["b"]).sum())
    outside = int(coefficients["verdict"].str.startswith("outside").sum())
    return f"{differ} of {len(coefficients)} coefficients differ, {outside} outside A's interval."


def _step_times(times: pd.DataFrame) -> Grid:
    headings = ("deployment", "batch", "A us", "B us", "B / A")
    table = Grid.of(*headings, caption="step times", text=2)
    for row in times.to_dict("records"):
        values = (f"{row['a_us']:.0f}", f"{row['b_us']:.0f}", f"{row['ratio']:.2f}")
        table.add(row["deployment"], row["batch"], *values)
    return table


# What ``pinn compare`` knows of one side: errors, and coefficients of deployments.


@dataclass(frozen=True)
class Side:
    """One of two things that are compared.

    Attributes:
        scores: Its errors; without rows where it carries none.
        surrogate: Of a checkpoint.
        given: Of a coefficient file.
        ends: ``beta.NAME`` or ``alpha.NAME`` -> interval, where the file has them.
    """

    scores: Scores
    surrogate: Surrogate | None = None
    given: CoefficientSet | None = None
    ends: dict[str, tuple[float, float]] | None = None

    def deployment(self) -> Deployment | None:
        """The one that a coefficient file belongs to."""
        if self.given is None or not self.given.configuration():
            return None
        return make_deployment(canonical(self.given.configuration()))

    def coefficients(
        self, deployment: Deployment, where: str
    ) -> tuple[Float[np.ndarray, " beta"], Float[np.ndarray, " alpha"]]:
        """Beta and alpha of a deployment.

        Raises:
            PinnError: If a file belongs to another one.
        """
        if self.given is not None:
            self.given.check_deployment(deployment, where)
            return self.given.beta, self.given.alpha
        assert self.surrogate is not None
        found = self.surrogate.coefficients([deployment])
        return found.beta[0], found.alpha[0]


def read_side(path: Path, method: str) -> Side:
    """Read a checkpoint, a coefficient file, a table of results or an evaluation's folder.

    Raises:
        PinnError: If it is none of them, or has no results of the method.
    """
    if path.is_dir():
        return Side(_folder_scores(path, method))
    if not path.is_file():
        raise PinnError(
            f"nothing at {path}: give a checkpoint, a coefficient file or an evaluation's folder"
        )
    if path.suffix == ".safetensors":
        surrogate = Surrogate.load(path)
        held_out = surrogate.checkpoint.metadata.get("held_out_results") or []
        results = pd.DataFrame(held_out, columns=list(RESULT_COLUMNS))
        return Side(Scores(_of_method(results, method)), surrogate)
    if path.suffix == ".json":
        given = read_coefficient_set(path)
        return Side(Scores(_calibration_results(given)), given=given, ends=_ends(read_json(path)))
    if path.suffix == ".csv":
        return Side(Scores(_of_known(read_results(path), method, path)))
    raise PinnError(
        f"{path}: expected a checkpoint (.safetensors), a coefficient file (.json), a results.csv "
        "or an evaluation's folder"
    )


def _folder_scores(folder: Path, method: str) -> Scores:
    results = _of_known(read_results(folder / "results.csv"), method, folder)
    for name, read in (("predictions.parquet", pd.read_parquet), ("predictions.csv", pd.read_csv)):
        observations = folder / "observations" / "silicon.parquet"
        if (folder / name).is_file() and observations.is_file():
            rows = read_observations(observations)
            groups = deployment_keys(rows).set_axis(rows["row_id"])
            return Scores(results, _of_method(read(folder / name), method), groups)
    return Scores(results)


def _of_known(results: pd.DataFrame, method: str, path: Path) -> pd.DataFrame:
    found = _of_method(results, method)
    if found.empty:
        known = "; ".join(sorted(results["method"].unique()))
        raise PinnError(
            f"{path} has no results of the method {method!r}: name one with --method, known ones "
            f"are {known}"
        )
    return found


def _of_method(table: pd.DataFrame, method: str) -> pd.DataFrame:
    return table[table["method"] == method]


def _calibration_results(given: CoefficientSet) -> pd.DataFrame:
    """Errors of a calibration's coefficients: parts of the run's time are the splits."""
    rows = [
        {
            "split": f"{row['part']}, {row['kind']}",
            "held_out": "all",
            "method": "calibrated",
            "metric": "step",
            "n": row["n"],
        }
        | {name: 100 * row[name] for name in ("median", "mean", "bias")}
        for row in given.calibration.get("errors", ())
        if row["n"] and row["coefficients"] == "calibrated"
    ]
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


def _ends(tree: Any) -> dict[str, tuple[float, float]]:
    return {
        f"{part}.{name}": (entry["low"], entry["high"])
        for part in ("beta", "alpha")
        for name, entry in tree[part].items()
        if isinstance(entry, dict) and "low" in entry
    }


#: Model and tensor-parallel size of well-known deployments -> their GPUs.
SHOWN = {
    ("meta-llama/Llama-3.1-8B", 1): ("A100", "H100", "B200"),
    ("meta-llama/Llama-3.1-70B", 4): ("A100", "H100", "B200"),
    ("Qwen/Qwen3-30B-A3B", 2): ("A100", "H100", "B200"),
    ("openai/gpt-oss-120b", 2): ("H100", "B200"),
    ("deepseek-ai/DeepSeek-V3", 8): ("H200", "B200"),
}

#: Steps that are timed.
BATCHES = ("64 decode @ 1000", "1 prefill 2048 @ 0", "1 prefill 512 @ 0 + 64 decode @ 1000")


def shown_deployments() -> dict[str, Deployment]:
    """Label -> deployment of each of ``SHOWN``."""
    found = {}
    for (model, size), gpu in ((key, gpu) for key, gpus in SHOWN.items() for gpu in gpus):
        given = canonical({"model": model, "gpu": gpu, "tensor_parallel_size": size})
        found[f"{model.split('/')[-1]}, {size} x {gpu}"] = make_deployment(given)
    return found


def compare_step_times(a: Side, b: Side) -> pd.DataFrame:
    """Times of well-known steps: of a file's deployment, else of well-known ones.

    Returns:
        Columns ``deployment``, ``batch``, ``a_us``, ``b_us`` and ``ratio`` (b / a); no rows where
        a side has no coefficients.
    """
    rows = []
    for label, deployment in _deployments(a, b).items():
        batches = [parse_batch(text) for text in BATCHES]
        known = _coefficients_of(a, b, deployment)
        of_a, of_b = (1e6 * batch_seconds(beta, deployment, batches) for beta, _ in known)
        rows += [
            (label, batch, float(x), float(y), float(y / x))
            for batch, x, y in zip(BATCHES, of_a, of_b, strict=True)
        ]
    return pd.DataFrame(rows, columns=["deployment", "batch", "a_us", "b_us", "ratio"])


def compare_coefficients(a: Side, b: Side) -> pd.DataFrame:
    """Every coefficient of the deployment that a file belongs to.

    Returns:
        Columns ``name``, ``unit``, ``a``, ``b``, ``ratio`` and ``verdict``: whether B's value lies
        inside A's interval, where A has one. No rows for two checkpoints.
    """
    if a.given is None and b.given is None:
        return pd.DataFrame()
    rows = []
    units = [f.unit for f in STEP_FEATURES.values()] + [f.unit for f in REQUEST_FEATURES.values()]
    for deployment in _deployments(a, b).values():
        known = _coefficients_of(a, b, deployment)
        of_a, of_b = (np.concatenate(both).tolist() for both in known)
        for name, unit, x, y in zip(NAMES, units, of_a, of_b, strict=True):
            ratio = y / x if x else (1.0 if not y else float("inf"))
            rows.append((name, unit, x, y, ratio, _inside((a.ends or {}).get(name), y)))
    return pd.DataFrame(rows, columns=["name", "unit", "a", "b", "ratio", "verdict"])


def _coefficients_of(
    a: Side, b: Side, deployment: Deployment
) -> list[tuple[Float[np.ndarray, " beta"], Float[np.ndarray, " alpha"]]]:
    return [a.coefficients(deployment, "A"), b.coefficients(deployment, "B")]


def _inside(ends: tuple[float, float] | None, value: float) -> str:
    if ends is None:
        return ""
    return "inside A's interval" if ends[0] <= value <= ends[1] else "outside A's interval"


def _deployments(a: Side, b: Side) -> dict[str, Deployment]:
    """What both have coefficients of."""
    if any(side.surrogate is None and side.given is None for side in (a, b)):
        return {}
    own = [side.deployment() for side in (a, b) if side.given is not None]
    if not own:
        return shown_deployments()
    known = next((deployment for deployment in own if deployment is not None), None)
    if known is None:
        return {}
    return {f"{known.model.name} on {known.gpu.name}": known}
