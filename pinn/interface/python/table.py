"""Many configurations as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.coefficients.configuration_files import read_configurations
from pinn.coefficients.configurations import canonical, expand_grid, parse_grid
from pinn.interface.commands.coefficients import many_table
from pinn.interface.python.flags import FlagValue, given_flags, with_flags
from pinn.interface.python.prediction import named, path_or_none
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd

    #: A table, its rows, a grid (lists per key, or as typed), or a file of either.
    AnyConfigurations = pd.DataFrame | Iterable[Mapping[str, Any]] | Mapping[str, Any] | str | Path


@with_flags(ServingSpec, deploys=True)
def predict_many(
    configurations: AnyConfigurations,
    batches: str | Sequence[str] = (),
    *,
    model: str | Path | None = None,
    gpu: str | Path | None = None,
    skip_invalid: bool = False,
    checkpoint: str | Path | None = None,
    **flags: FlagValue,
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
        model: Of the rows that have none.
        gpu: Of the rows that have none.
        skip_invalid: Leave out rows that do not fit together; ``attrs["left_out"]`` has a reason
            for each.
        checkpoint: Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]
        **flags: The engine's flags, of the rows that have none.

    Returns:
        The keys that any row has, ``beta.NAME [unit]`` and ``alpha.NAME [unit]`` in SI units,
        times and floors of the batches, and the nearest measured deployment.

    Raises:
        PinnError: If a row names something unknown, or does not fit together.
    """
    shared = canonical(given_flags(flags, ServingSpec, gpu=gpu) | named(model, gpu))
    rows = [shared | row for row in configuration_rows(configurations)]
    listed = [batches] if isinstance(batches, str) else list(batches)
    table, reasons = many_table(rows, listed, path_or_none(checkpoint), skip_invalid)
    found: pd.DataFrame = table.to_pandas()
    found.attrs["left_out"] = reasons
    return found


def configuration_rows(
    configurations: AnyConfigurations,
) -> list[dict[str, Any]]:
    """Configurations in any of the forms that :func:`predict_many` takes, one by one."""
    import pandas as pd

    if isinstance(configurations, str | Path):
        path = Path(configurations).expanduser()
        grid = "=" in str(configurations) and not path.is_file()
        return parse_grid(str(configurations)) if grid else read_configurations(path)
    if isinstance(configurations, Mapping):
        return expand_grid(configurations)
    records: Any = configurations
    if isinstance(configurations, pd.DataFrame):
        blank = configurations.isna()
        records = configurations.astype(object).mask(blank, None).to_dict("records")
    return [canonical(row, f"row {number}: ") for number, row in enumerate(records, 1)]
