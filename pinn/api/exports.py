"""Tables of predictions, and files for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api import requests
from pinn.api.arguments import read_request, with_arguments
from pinn.api.requests import named
from pinn.cli import export
from pinn.cli.coefficient_table import many_table
from pinn.cli.explore import write_explore_page
from pinn.cli.outputs import printed
from pinn.engines.configurations import canonical, expand_grid, typed_configurations
from pinn.errors import PinnError
from pinn.planning.explore.page import SIZES
from pinn.specs.serving import ServingSpec

# Many configurations as one table.

if TYPE_CHECKING:
    import pandas as pd

    #: A table, its rows, a grid (lists per key, or as typed), or a file of either.
    AnyConfigurations = pd.DataFrame | Iterable[Mapping[str, Any]] | Mapping[str, Any] | str | Path


@with_arguments(ServingSpec, request=requests.ManyRequest, deploys=True)
def predict_many(
    configurations: AnyConfigurations, batches: str | Sequence[str] = (), **given: Any
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
    asked, flags = read_request(requests.ManyRequest, given, ServingSpec)
    shared = canonical(flags | named(asked.model, asked.gpu))
    rows = [shared | row for row in configuration_rows(configurations)]
    listed = [batches] if isinstance(batches, str) else list(batches)
    table, reasons = many_table(rows, listed, asked.checkpoint, asked.skip_invalid)
    found: pd.DataFrame = table.to_pandas()
    found.attrs["left_out"] = reasons
    return found


def configuration_rows(configurations: AnyConfigurations) -> list[dict[str, Any]]:
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


# Files that other programs read.


@with_arguments(request=requests.TableRequest)
def export_table(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: Any
) -> None:
    """Write the flat coefficient table that the Go package loads: ``pinn export table``.

    Args:
        out: File to write.
        configurations: As of :func:`pinn.predict_many`. [default: those of ``coefficients``]
        **given: The keyword arguments below.

    Raises:
        PinnError: If something is unknown or does not fit together.
    """
    how, _ = read_request(requests.TableRequest, given)
    printed(export.table_of, _rows(configurations, how.coefficients), Path(out), how)


@with_arguments(request=requests.BlisRequest)
def export_blis(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: Any
) -> None:
    """Write a folder per configuration that an unmodified BLIS runs: ``pinn export blis``.

    Args:
        out: Folder for the folders.
        configurations: As of :func:`export_table`.
        **given: The keyword arguments below.

    Raises:
        PinnError: If something is unknown, does not fit together, or BLIS cannot express it.
    """
    how, _ = read_request(requests.BlisRequest, given)
    printed(export.blis_of, _rows(configurations, how.coefficients), Path(out), how)


@with_arguments(request=requests.OnnxRequest)
def export_onnx(out: str | Path, **given: Any) -> None:
    """Write the network and the step time as ONNX graphs into a folder: ``pinn export onnx``.

    Args:
        out: Folder for the two graphs.
        **given: The keyword arguments below.
    """
    how, _ = read_request(requests.OnnxRequest, given)
    printed(export.onnx, out=Path(out), **vars(how))


@with_arguments(request=requests.SpecsRequest)
def export_specs(out: str | Path, **given: Any) -> None:
    """Write models and GPUs as JSON for the Go package: ``pinn export specs``.

    Args:
        out: File to write.
        **given: The keyword arguments below.
    """
    how, _ = read_request(requests.SpecsRequest, given)
    printed(export.specs, out=Path(out), **vars(how))


@with_arguments(ServingSpec, request=requests.ExploreRequest, deploys=True)
def explore(
    out: str | Path,
    model: str | Path | None = None,
    gpus: Sequence[str | Path] = (),
    *,
    tensor_parallel_sizes: Sequence[int] = SIZES,
    formats: Sequence[str] = (),
    **given: Any,
) -> int:
    """Write a page with sliders of a few servers, which needs no other file: ``pinn explore``.

    Args:
        out: Page to write.
        model: Name, or path of a config.json or its folder.
        gpus: Names, or paths of datasheets, to choose from.
        tensor_parallel_sizes: To choose from; not with ``tensor_parallel_size``.
        formats: Number formats to choose from. [default: the checkpoint's own and fp8]
        **given: All else; the engine's flags are for all servers.

    Returns:
        How many servers the page has; those that do not start are named in it.

    Raises:
        PinnError: If something is unknown, no server starts, or the page cannot show one.
    """
    own = {"model": model, "gpus": None}
    asked, flags = read_request(requests.ExploreRequest, given, ServingSpec, **own)
    flags |= named(asked.model, None)
    if "model" not in flags or not gpus:
        raise PinnError("a page needs a model and gpus, such as 'Llama-3.1-8B', ['H100', 'H200']")
    one = flags.get("tensor_parallel_size")
    flags["tensor_parallel_size"] = list(tensor_parallel_sizes) if one is None else [one]
    if formats:
        flags["precision"] = ",".join(formats)
    names = [str(gpu) for gpu in gpus]
    return write_explore_page(Path(out), flags.pop("model"), names, asked.checkpoint, flags)


def _rows(
    configurations: AnyConfigurations | None, files: list[Path] | None
) -> list[dict[str, object]]:
    if configurations is None:
        return export.rows_of_files(files)
    return configuration_rows(configurations)
