"""Published scorecard: errors of a checkpoint, the previous checkpoint, and other estimators."""

from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import pandas as pd
import yaml

from pinn.common.files import data_folder, read_rows
from pinn.common.screen import Grid
from pinn.evaluation.panel import group_scores, read_panel, sum_up
from pinn.evaluation.panel_rows import panel_deployments
from pinn.training.data.released import PEERS, released_predictions

#: Suffixes of the two scorecards next to a checkpoint: its own, and the previous checkpoint's.
PANEL, BEFORE = ".panel.csv", ".before.panel.csv"

_TITLES = {"aiconfigurator": "AIConfigurator", "aisimulate": "AISimulate"}
_WHOLE = "panel"


def scorecard(checkpoint: Path) -> pd.DataFrame:
    """Return the TPOT and TTFT errors of every group of a checkpoint's scorecard (panel).

    Groups in which another estimator (peer) has a lower TPOT error come first.

    Args:
        checkpoint: Checkpoint, with the files ``PANEL`` and ``BEFORE`` in the same folder, as
            written by ``pinn evaluate panel --out``.

    Returns:
        ``group``, ``rows``, and mean absolute log errors in percent, NaN where there is none:
        ``tpot``, ``ttft`` and ``score``, those of the previous checkpoint with the suffix
        ``_before``, and ``tpot`` and ``ttft`` of each of ``PEERS``. ``inside`` is the percentage of
        rows inside their intervals. ``loses`` states whether a peer's TPOT error is lower.

    Raises:
        PinnError: If a panel cannot be read.
    """
    found = _scores(checkpoint.with_suffix(PANEL))
    before = _scores(checkpoint.with_suffix(BEFORE))[["tpot", "ttft", "score"]]
    table = found[["rows", "tpot", "ttft", "score", "inside"]].join(before, rsuffix="_before")
    for peer in PEERS:
        table = table.join(_peer_scores(peer), rsuffix=f"_{peer}")
    nearest = table[[f"tpot_{peer}" for peer in PEERS]].min(axis=1)
    table["loses"] = nearest < table["tpot"]
    order = table.assign(last=table.index == _WHOLE)
    order = order.sort_values(["last", "loses", "score"], ascending=[True, False, False])
    return order.drop(columns="last").reset_index()


def _scores(path: Path) -> pd.DataFrame:
    found = group_scores(read_panel(path))
    return found.set_index("group")


def _peer_scores(peer: str) -> pd.DataFrame:
    """Return another estimator's TPOT and TTFT errors by group, over the rows that it predicts."""
    answers = released_predictions(peer)[["row_id", "tpot_s", "ttft_s"]].dropna()
    rows = panel_deployments().merge(answers, on="row_id", suffixes=("", "_peer"))
    tables = []
    for metric in ("tpot", "ttft"):
        mine = rows if metric == "tpot" else rows[~rows["saturated"]]
        seconds = {"measured_s": mine[f"{metric}_s"], "predicted_s": mine[f"{metric}_s_peer"]}
        tables.append(mine[["group", "configuration"]].assign(metric=metric, half=0.0, **seconds))
    scores = group_scores(sum_up(pd.concat(tables, ignore_index=True))).set_index("group")
    return scores.drop(index=_WHOLE)[["tpot", "ttft"]].add_suffix(f"_{peer}")


def scorecard_grid(table: pd.DataFrame) -> Grid:
    """Return the scorecard as a grid: ``TPOT / TTFT`` errors, held-out data, source and licence."""
    about = {row["set"]: row for row in sources()}
    peers = [_TITLES[peer] for peer in PEERS]
    headings = "set", "held out", "source", "licence", "rows", "inside", "this", "before", *peers
    grid = Grid.of(*headings, text=4)
    for row in table.to_dict("records"):
        known = about.get(str(row["group"]).partition(": ")[0].removesuffix(", half held out"), {})
        held_out = known.get("held_out", "")
        if ", half held out" in str(row["group"]):
            held_out = "half of the batch sizes"
        cells = (_pair(row, end) for end in ("", "_before", *(f"_{peer}" for peer in PEERS)))
        texts = str(row["group"]), held_out, known.get("source", ""), known.get("licence", "")
        grid.add(*texts, f"{row['rows']:,}", f"{row['inside']:.0f}", *cells)
    return grid


def _pair(row: Mapping[Hashable, float], end: str) -> str:
    found = [row[f"{metric}{end}"] for metric in ("tpot", "ttft")]
    if all(pd.isna(value) for value in found):
        return ""
    return " / ".join("-" if pd.isna(value) else f"{value:.1f}" for value in found)


def sources() -> Iterator[dict[str, str]]:
    """Yield what is held out, the source and the licence for each set of evaluation data."""
    folder = data_folder("public")
    yield from read_rows(folder / "sources.csv")
    listed = yaml.safe_load((folder / "sets.yaml").read_text(encoding="utf-8"))
    entries = pd.DataFrame([entry for part in listed.values() for entry in part])
    for name, part in entries.groupby("set"):
        said = {key: "; ".join(part[key].drop_duplicates()) for key in ("source", "licence")}
        yield {"set": str(name), "held_out": "models of the training data", **said}
