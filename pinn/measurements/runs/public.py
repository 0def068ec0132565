"""Public measurements of other parties' servers, described in ``data/public/sets.yaml``.

Measured steps are grouped into types (equal batches) with their median times. Measured loads become
serving runs of one stage. Steps and loads are evaluation data, with one exception: in sets of steps
that are marked ``held_out: half``, the steps of every other batch size are training data.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pinn.common.files import ReadReport, data_folder, file_sha256
from pinn.engines.configurations import KEYS, canonical, make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.runs.measured_runs import FIGURES, MeasuredRun
from pinn.measurements.runs.whole_steps import (
    BATCH,
    MeasuredSteps,
    kinds_of_steps,
    length_class,
    median_steps,
    read_table,
)
from pinn.simulator.metric_features import WHOLE_RUN
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import Workload, closed_loop, open_loop
from pinn.units import MILLISECOND

#: Description of a set of public measurements, from ``sets.yaml``.
About = Mapping[str, Any]
#: Assumed number of requests per client in a closed loop if the source does not state it.
_REQUESTS_PER_CLIENT = 10
#: Assumed duration of an open loop, in seconds, if the source does not state it.
_OPEN_LOOP_S = 300.0
#: Metric of a serving run, by metric in ``public_points.csv``. Medians are used as means.
_POINT_FIGURES = {
    "ttft_ms": "ttft_mean_s", "ttft_p50_ms": "ttft_mean_s", "tpot_ms": "itl_mean_s",
    "tpot_p50_ms": "itl_mean_s", "itl_ms": "itl_mean_s",
}  # fmt: skip


@dataclass(frozen=True)
class PublicSteps:
    """Measured steps of one deployment in a set of public measurements.

    Attributes:
        set_name: Name of the set in the scorecard (the table of all evaluation errors).
        measured: Types of steps (equal batches) and their times.
        is_held_out: Whether the steps are evaluation data; False for the half that is training
            data.
        is_half: Whether the set is split by batch size into evaluation data and training data.
    """

    set_name: str
    measured: MeasuredSteps
    is_held_out: bool = True
    is_half: bool = False

    def source(self) -> str:
        """Return the name of the source of the steps, as shown in the scorecard."""
        return f"{self.set_name}, half held out" if self.is_half else self.set_name


@dataclass(frozen=True)
class PublicRun:
    """Serving run of a public set; under a closed loop, ``rates_per_s`` is the concurrency."""

    set_name: str
    run: MeasuredRun


def read_public_steps(folders: Sequence[Path]) -> tuple[list[PublicSteps], list[ReadReport]]:
    """Read the measured steps of every public set whose file is in one of the folders.

    Raises:
        PinnError: If a file cannot be read or lacks a column, or a deployment is unknown.
    """
    found: list[PublicSteps] = []
    reports = []
    for about, path in _present("steps", folders):
        rows, report = _rows(about, path)
        table = pd.DataFrame(0.0, rows.index, list(BATCH)).assign(
            **_columns(rows, about["batch"] | {"seconds": about["seconds"]})
        )
        for name, deployment, part in _by_deployment(about, rows):
            steps = table.loc[part.index].reset_index(drop=True)
            name = f"{path.name} {name}".strip()
            found += _halves(about, name, deployment, steps)
        reports.append(report)
    return found, reports


def _halves(
    about: About, name: str, deployment: Deployment, steps: pd.DataFrame
) -> Iterator[PublicSteps]:
    """Yield a set's steps as evaluation data; for a split set, also the training half."""
    is_half = about.get("held_out") == "half"
    kind = kinds_of_steps(steps)
    new = steps["decode_requests"] + steps["prefill_requests"] * steps["prefill_tokens"]
    order = length_class(new).rank(method="dense").astype(int)
    for is_held_out in (True, False) if is_half else (True,):
        mine = order % 2 == int(is_held_out) if is_half else order > 0
        if mine.any():
            measured = median_steps(name, steps[mine], kind[mine], deployment)
            yield PublicSteps(about["set"], measured, is_held_out, is_half)


def read_public_runs(folders: Sequence[Path]) -> tuple[list[PublicRun], list[ReadReport]]:
    """Read the measured loads of every public set whose file is in one of the folders.

    Raises:
        PinnError: If a file cannot be read or lacks a column, or a deployment is unknown.
    """
    found, reports = [], []
    for about, path in _present("loads", folders):
        rows, report = _rows(about, path)
        read = _loads(about, rows) if "figures" in about else _points(about, rows)
        found += [PublicRun(about["set"], run) for run in read]
        reports.append(report)
    return found, reports


def _present(kind: str, folders: Sequence[Path]) -> Iterator[tuple[About, Path]]:
    """Yield description and file of each set of a kind (steps or loads) whose file exists."""
    for folder in folders:
        if not folder.is_dir():
            raise PinnError(
                f"the folder {folder} does not exist: give a folder of public measurements"
            )
    sets = yaml.safe_load((data_folder("public") / "sets.yaml").read_text())[kind]
    for about in sets:
        paths = (folder / about["file"] for folder in folders)
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            yield about, path


def _rows(about: About, path: Path) -> tuple[pd.DataFrame, ReadReport]:
    """Return the rows of a file that belong to a set, and counts of rows read and rejected."""
    table = read_table(path, ())
    rows = table.query(about["where"], engine="python") if "where" in about else table
    refused = {f"not {about['where']}": len(table) - len(rows)} if "where" in about else {}
    return rows, ReadReport(path.name, "", file_sha256(path), len(table), len(rows), refused)


def _by_deployment(
    about: About, rows: pd.DataFrame
) -> Iterator[tuple[str, Deployment, pd.DataFrame]]:
    """Yield the name, the deployment and the rows of each configuration measured in a set."""
    given = about.get("of", {})
    columns = pd.DataFrame(_columns(rows, given), rows.index)
    groups = columns.groupby(list(given), sort=True) if given else [((), columns)]
    for values, part in groups:
        of_rows = dict(zip(given, values, strict=True))
        named = " ".join(f"{name}={value}" for name, value in of_rows.items())
        yield named, make_deployment(canonical(about["configuration"] | of_rows)), part


def _columns(rows: pd.DataFrame, expressions: About) -> dict[str, pd.Series]:
    """Return new columns, by name, computed by expressions over the columns of ``rows``."""
    return {name: pd.Series(rows.eval(str(of)), rows.index) for name, of in expressions.items()}


def _loads(about: About, rows: pd.DataFrame) -> Iterator[MeasuredRun]:
    """Yield a serving run for each row of a set of measured loads."""
    load, figures = (pd.DataFrame(_columns(rows, about[part])) for part in ("load", "figures"))
    for named, deployment, part in _by_deployment(about, rows):
        for place in part.index:
            sent = load.loc[place].to_dict()
            name = " ".join([about["file"], named, *(f"{k}={v:g}" for k, v in sent.items())])
            yield _run(name, deployment, sent, figures.loc[place].to_dict())


def _points(about: About, rows: pd.DataFrame) -> Iterator[MeasuredRun]:
    """Yield a serving run for each load of each row of ``public_points.csv``."""
    rows = rows.fillna({"flags": ""})
    known = ["id", "flags", "load", *about["of"].values(), *about["load"].values()]
    for values, part in rows.groupby(known, sort=True):
        row = dict(zip(known, values, strict=True))
        configuration = {name: _stated(row[of]) for name, of in about["of"].items()}
        deployment = make_deployment(canonical(configuration | _named_flags(row["flags"])))
        kind, value = str(row["load"]).split()
        sent = {name: row[of] for name, of in about["load"].items()} | {kind: float(value)}
        metrics = part["measured_metric"].map(_POINT_FIGURES)
        figures = dict(zip(metrics, part["measured"] * MILLISECOND, strict=True))
        name = " ".join(map(str, (row["id"], row["load"], *sent.values(), row["flags"])))
        yield _run(name, deployment, sent, figures)


def _stated(value: object) -> object:
    """Return the value of a table cell without its remark in parentheses."""
    text = str(value).partition(" (")[0]
    return "" if text.startswith(("unknown", "before")) else text


def _named_flags(text: str) -> dict[str, object]:
    """Return the flags in a list such as ``enforce_eager; max_num_seqs 30``, without remarks."""
    words = (part.split() for part in text.split(";"))
    named = {part[0]: part[1] if len(part) == 2 else True for part in words if len(part) in (1, 2)}
    return {name: value for name, value in named.items() if name in KEYS}


def _run(
    name: str, deployment: Deployment, sent: Mapping[str, float], figures: Mapping[str, float]
) -> MeasuredRun:
    if unknown := set(figures) - set(FIGURES):
        listed = ", ".join(sorted(unknown))
        raise PinnError(f"{name}: the metrics {listed} are unknown: use any of {FIGURES}")
    load = f"{sent['prompt_tokens']:g} / {sent['output_tokens']:g}"
    size = (sent["rate"] if "rate" in sent else sent["concurrency"],)
    measured = {WHOLE_RUN: figures}, {WHOLE_RUN: 0.0}
    return MeasuredRun(name, deployment, load, size, _workload(name, sent), *measured)


def _workload(name: str, sent: Mapping[str, float]) -> Workload:
    lengths = round(sent["prompt_tokens"]), round(sent["output_tokens"])
    if "rate" in sent:
        lasts_s = sent["requests"] / sent["rate"] if "requests" in sent else _OPEN_LOOP_S
        return open_loop([Stage(sent["rate"], lasts_s)], *lengths, name=name)
    clients = int(sent["concurrency"])
    return closed_loop(clients, _REQUESTS_PER_CLIENT * clients, *lengths, name=name)
