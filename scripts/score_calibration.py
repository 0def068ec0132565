"""Score calibrations on measured servers, for docs/calibration_notes.md.

    python scripts/score_calibration.py steps
    python scripts/score_calibration.py deployments
    python scripts/score_calibration.py serving-runs
    python scripts/score_calibration.py round-trips --trials 200
    python scripts/score_calibration.py journeys --trials 200
    python scripts/score_calibration.py all --page docs/calibration_notes.md

The part ``steps`` requires PINN_STEPS_DIR; ``serving-runs`` requires PINN_SERVING_RUNS and
PINN_MODEL_CONFIGS. ``round-trips`` recovers known calibration factors of simulated servers from
each type of benchmark file. ``journeys`` recovers known request coefficients (alpha) from traces of
requests. ``--page`` writes the table of each part between its markers on that page, with the name
of the checkpoint. The last line of each part's output is one JSON document.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import typer
from calibration_scores import deployments, servers
from page_parts import write_part

from pinn.common.files import file_sha256, find_checkpoint
from pinn.common.screen import Column, Grid

# The tests define the functions that write benchmark files and traces.
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / each) for each in ("", "data/benchmarks", "training/calibration")]

Scores = tuple[pd.DataFrame, dict[str, float]]


def round_trips(trials: int) -> Scores:
    """Return errors of known calibration factors, recovered from simulated benchmark files.

    The fits start from the shipped checkpoint's prior.
    """
    from round_trips import score

    table = score(servers.prior_of, trials, workers=None)
    return table, {name: float(table[name].min()) for name in ("off_within", "none_moved")}


def journeys(trials: int) -> Scores:
    """Return errors of known request coefficients (alpha), recovered from simulated traces.

    The fits start from the shipped checkpoint's prior.
    """
    from journeys import DEPLOYMENT, score

    table = score(servers.prior_of(DEPLOYMENT), trials, workers=None)
    return table, {"within": float(table["within"].mean())}


def shown_deployments(table: pd.DataFrame, _: dict[str, float]) -> pd.DataFrame:
    """Return the table of median and mean errors, over all models and for each held-out model."""
    shown = table[["model", "figure"]].copy()
    for side in ("before", "after"):
        median, mean = (table[f"{side}_{name}"].map("{:.1f}".format) for name in ("median", "mean"))
        shown[side] = median + " / " + mean
    return shown.join(table[["worse_draws", "covered", "width", "kept"]].round(1))


def shown_runs(_: pd.DataFrame, figures: dict[str, float]) -> pd.DataFrame:
    """Return median and worst errors over pairs of loads.

    The server whose loads disagree most has a separate row.
    """
    names = ("n", "before_median", "median", "worst")
    return pd.DataFrame(
        {"servers": side} | {name: round(figures[f"{side}_{name}"], 2) for name in names}
        for side in ("others", "apart")
    )


def as_it_is(table: pd.DataFrame, _: dict[str, float]) -> pd.DataFrame:
    """Return the table of scores unchanged."""
    return table.round(2)


#: Functions that compute a part of the scores, and functions that return its table for a docs page,
#: by part.
PARTS: dict[str, tuple[Callable[[int], Scores], Callable[..., pd.DataFrame]]] = {
    "steps": (lambda _: servers.score_steps(), as_it_is),
    "deployments": (lambda _: deployments.score(), shown_deployments),
    "serving-runs": (lambda _: servers.score_runs(), shown_runs),
    "round-trips": (round_trips, as_it_is),
    "journeys": (journeys, as_it_is),
}


def markdown(shown: pd.DataFrame) -> str:
    """Return the table of scores as Markdown, with the name of the checkpoint."""
    is_number = pd.api.types.is_numeric_dtype
    grid = Grid([Column(name.replace("_", " "), not is_number(shown[name])) for name in shown])
    for row in shown.itertuples(index=False):
        grid.add(*("" if pd.isna(value) else f"{value}" for value in row))
    return f"{grid.markdown()}\n\nCheckpoint {file_sha256(find_checkpoint(None))[:12]}."


def main(part: str, trials: int = 200, page: Path | None = None) -> None:
    """Print the tables of one part or of all; ``trials`` counts simulated servers."""
    if part not in (*PARTS, "all"):
        raise typer.BadParameter(
            f"the part {part!r} is unknown: give all or one of {', '.join(PARTS)}"
        )
    for name in PARTS if part == "all" else [part]:
        score, shown = PARTS[name]
        table, figures = score(trials)
        print(table.round(2).to_string(index=False))
        print(json.dumps(figures), flush=True)
        if page:
            write_part([page], f"scores-{name}", markdown(shown(table, figures)))


if __name__ == "__main__":
    typer.run(main)
