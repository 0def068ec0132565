"""Coefficients and step times of many configurations as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import ManyRequest, named
from pinn.engines.configurations import Values, canonical, expand_grid, typed_configurations
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd

    from pinn.engines.configurations import Configuration

    #: A table, its rows, a grid (lists per key, or as typed), or a file of either.
    AnyConfigurations = pd.DataFrame | Iterable[Configuration] | Configuration | str | Path


@with_arguments(ServingSpec, request=ManyRequest, deploys=True)
def predict_many(
    configurations: AnyConfigurations, batches: str | Sequence[str] = (), **given: object
) -> pd.DataFrame:
    """Coefficients of many configurations, a row each, as ``pinn coefficients --out`` writes them.

    >>> import pandas as pd
    >>> wanted = pd.DataFrame({"gpu": ["H100", "H200"], "tensor_parallel_size": [1, 2]})
    >>> found = predict_many(wanted, "32 decode @ 700", model="meta-llama/Llama-3.1-8B")
    >>> found[["gpu", "tensor_parallel_size"]].values.tolist()
    [['H100', 1], ['H200', 2]]
    >>> bool(found["step_time_us: 32 decode @ 700"].is_monotonic_decreasing)
    True

    Args:
        configurations: A DataFrame or an iterable of mappings with model, gpu and the engine's
            flags as keys; a mapping of lists, whose every combination is meant; the same as text
            (``"gpu=H100,H200 tensor_parallel_size=1,2"``); or a CSV, YAML or JSON file.
        batches: To be timed, each in columns of its own, in microseconds.
        **given: All else; model, GPU and the engine's flags are of the rows that have none.

    Returns:
        The keys that any row has, ``beta.NAME [unit]`` and ``alpha.NAME [unit]`` in SI units,
        times and floors of the batches, and the nearest measured deployment;
        ``attrs["left_out"]`` has a reason for each row that ``skip_invalid`` left out.

    Raises:
        PinnError: If a row names something unknown, or does not fit together.
    """
    from pinn.export.coefficient_table import many_table

    asked, flags = read_request(ManyRequest, given, ServingSpec)
    shared = canonical(flags | named(asked.model, asked.gpu))
    rows = [shared | row for row in configuration_rows(configurations)]
    listed = [batches] if isinstance(batches, str) else list(batches)
    table, reasons = many_table(rows, listed, asked.checkpoint, asked.skip_invalid)
    found: pd.DataFrame = table.to_pandas()
    found.attrs["left_out"] = reasons
    return found


def configuration_rows(configurations: AnyConfigurations) -> list[Values]:
    """Configurations in any of the forms that :func:`predict_many` takes, one by one."""
    import pandas as pd

    if isinstance(configurations, str | Path):
        return typed_configurations(configurations)
    if isinstance(configurations, Mapping):
        return expand_grid(configurations)
    records: Any = configurations
    if isinstance(configurations, pd.DataFrame):
        blank = configurations.isna()
        records = configurations.astype(object).mask(blank, None).to_dict("records")
    return [canonical(row, f"row {number}: ") for number, row in enumerate(records, 1)]
