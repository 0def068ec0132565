"""Turns a foreign file into a table of observations on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pinn.data.engine_deployments import read_every_engine
from pinn.data.silicon import read_silicon
from pinn.data.table import write_observations
from pinn.specs.files.read_report import ReadReport


def import_silicon(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write the clean measured deployments of aiconfigurator-core as observations.

    Args:
        target: Parquet file to write; its manifest goes beside it.
        source: ``silicon_sample.csv``; None for the installed package's.

    Returns:
        The counts of rows read, refused and accepted.

    Raises:
        PinnError: If the package or file is missing or does not have the expected content.
    """
    return _written(read_silicon(None if source is None else Path(source)), target)


def import_every_engine(target: Path | str, source: Path | str | None = None) -> ReadReport:
    """Write the measured deployments of vLLM, SGLang and TensorRT-LLM."""
    return _written(read_every_engine(None if source is None else Path(source)), target)


def _written(read: tuple[pd.DataFrame, ReadReport], target: Path | str) -> ReadReport:
    rows, report = read
    write_observations(rows, Path(target), report)
    return report
