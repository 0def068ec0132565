"""Write ``data/engines/measured.csv``: engine releases with measurements, and their counts.

python scripts/count_measured.py data/engines
"""

from pathlib import Path

import pandas as pd
import typer

from pinn.common.tables import write_frame
from pinn.engines.recipe import ALL, MEASURED_FILE, release_order
from pinn.specs.gpu import load_gpu
from pinn.training.data.engine_deployments import read_every_engine
from pinn.training.data.splits import deployment_keys


def measured_releases(rows: pd.DataFrame) -> pd.DataFrame:
    """Return counts of measurements by engine and release.

    Args:
        rows: Rows of :func:`pinn.training.data.engine_deployments.read_every_engine`.

    Returns:
        One row per engine, with the release ``ALL``, and one row per release. Columns: ``rows``,
        ``configurations`` (combinations of model, GPU, format and parallel sizes), ``points``
        (configurations with given lengths and concurrency), names of ``models`` and ``gpus``, and
        the first and last day ``since`` and ``until``.
    """
    keys = deployment_keys(rows)
    at = rows[["prompt_tokens", "output_tokens", "concurrency"]].astype(str).agg("|".join, axis=1)
    known = rows.assign(configuration=keys, point=keys + "|" + at)
    both = pd.concat([known.assign(engine_version=ALL), known])
    lines = [
        {
            "engine": engine,
            "release": version,
            "rows": len(part),
            "configurations": part["configuration"].nunique(),
            "points": part["point"].nunique(),
            "models": " ".join(sorted({name.rpartition("/")[2] for name in part["model"]})),
            "gpus": " ".join(sorted({load_gpu(name).name for name in part["gpu"]})),
            "since": part["date"].min(),
            "until": part["date"].max(),
        }
        for (engine, version), part in both.groupby(["engine", "engine_version"])
    ]
    order = sorted(lines, key=lambda line: (line["engine"], release_order(line["release"])))
    return pd.DataFrame(order)


def main(folder: Path) -> None:
    """Read all measurements and write ``measured.csv`` to ``folder``."""
    write_frame(measured_releases(read_every_engine()[0]), folder / MEASURED_FILE)


if __name__ == "__main__":
    typer.run(main)
