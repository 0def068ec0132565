"""Loads that a Python function accepts: files, mappings and tables of requests."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.common import Json
from pinn.common.files import given_path, json_text
from pinn.errors import PinnError
from pinn.simulator.workloads.load import UNNAMED

if TYPE_CHECKING:
    import pandas as pd

    #: Workload: a path, the content of a plain YAML file, a table of requests, or None if flags
    #: describe the load.
    AnyWorkload = (
        str | Path | Mapping[str, Json] | Sequence[Mapping[str, Json]] | pd.DataFrame | None
    )


#: Alternative columns of the prompt length.
_PROMPTS = ["prompt_tokens", "server_input_tokens", "input_tokens"]


def _requests_table(workload: object) -> pd.DataFrame:
    """Convert a load, given as a table or a list of mappings, to a table with one row per request.

    Raises:
        PinnError: If the load has an unsupported type.
    """
    import pandas as pd

    if isinstance(workload, pd.DataFrame):
        return workload
    listed = workload if isinstance(workload, list) else []
    if not listed or not all(isinstance(each, Mapping) for each in listed):
        example = 'such as {"prompt_tokens": 512, "output_tokens": 64, "concurrency": 8}'
        kinds = "a path, a mapping or a list of requests"
        raise PinnError(
            f"workload must be {kinds}, got {workload!r:.60}: give a path or requests, {example}"
        )
    return pd.DataFrame(listed)


def _check_lengths(table: pd.DataFrame, is_list: bool) -> None:
    """Raise an error for a request of a table or a list without a prompt or output length."""
    several = len(table.columns.intersection(_PROMPTS)) > 1  # one of them suffices
    for name in ("output_tokens", *(() if several else _PROMPTS)):
        once = [*table.columns].count(name) == 1
        missing = [*table.index[table[name].isna()]] if once else []
        if missing:
            label = missing[0]
            row = f"workload[{label}]" if is_list else f"workload, row with index {label}"
            raise PinnError(f"{row}: {name} is missing: give a number")


def _is_model(path: Path) -> bool:
    """Return whether a path is a model's config.json or its folder."""
    if not path.is_file():
        return (path / "config.json").is_file()
    with path.open("rb") as file:
        return b'"architectures"' in file.read(1024)


def _mapping_text(workload: Mapping[str, object]) -> str:
    """Return a workload given as a mapping, as JSON text.

    Raises:
        PinnError: If a value cannot be written as JSON, such as a table of requests.
    """
    try:
        return json_text(workload)
    except TypeError as error:
        raise PinnError(
            f"the values of a workload must be numbers, text or lists ({error}): to send recorded "
            "requests, give their table itself as the workload"
        ) from None


@contextlib.contextmanager
def workload_file(workload: AnyWorkload) -> Iterator[Path | None]:
    """Yield the path of a workload file; other workloads are first written to a temporary file."""
    if isinstance(workload, str | Path):
        file = given_path(workload)
        is_missing = isinstance(workload, str) and not file.is_file()
        if is_missing or _is_model(file):
            fault = "is a model" if _is_model(file) else "does not exist"
            raise PinnError(
                f"the workload file {workload} {fault}: give the load first, then the model and "
                "the GPU. The load is a file, a mapping or a table of requests"
            )
        yield file
        return
    if workload is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=UNNAMED) as folder:
        if isinstance(workload, Mapping):
            path = Path(folder, "workload.yaml")
            path.write_text(_mapping_text(workload))
        else:
            path = Path(folder, "workload.csv")
            table = _requests_table(workload)
            _check_lengths(table, isinstance(workload, list))
            table.to_csv(path, index=False)
        try:
            yield path
        except PinnError as error:
            # The user does not know the temporary file's path, so errors say "workload" instead.
            said = str(error).replace(str(path), "workload").replace(folder, "workload")
            error.args = (said,)
            raise
