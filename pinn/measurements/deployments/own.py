"""Reader of a user's own measured deployments: a CSV file with the columns of observations."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import read_frame
from pinn.errors import PinnError
from pinn.measurements.benchmarks.inferencex import PROMPTS_PER_CONCURRENCY
from pinn.measurements.deployments.launch_facts import KNOWN
from pinn.measurements.deployments.observations import COLUMNS, validate, write_observations
from pinn.measurements.deployments.silicon import UNKNOWN_VERSION, series_key
from pinn.specs.serving import VLLM

#: Required columns of the CSV file; names and units are those of the table of observations.
REQUIRED = (
    "model", "gpu", "precision", "tensor_parallel_size", "concurrency", "prompt_tokens",
    "output_tokens", "ttft_s", "tpot_s",
)  # fmt: skip
#: Default values of optional columns of the CSV file. All other missing columns are empty: the flag
#: was not passed and has the default of the engine's release.
OPTIONAL: Mapping[str, str] = {
    "data_parallel_size": "1",
    "enable_expert_parallel": "false",
    "prompts_per_client": str(PROMPTS_PER_CONCURRENCY),
    "warmups_per_client": "0",
    "engine": VLLM,
    "engine_version": UNKNOWN_VERSION,
    "facts": KNOWN,
}
_REMEDY = "see docs/training.md for the columns and an example"


def import_own(target: Path | str, source: Path | str) -> ReadReport:
    """Write the rows of a user's CSV file as a table of observations.

    Args:
        target: Parquet file to write; its manifest is written to the same folder.
        source: CSV file to read.

    Returns:
        Counts of rows read, rejected and accepted.

    Raises:
        PinnError: If the file is missing, lacks a column, or has an unknown column or a value not
            allowed in its column.
    """
    rows, report = read_own(Path(source))
    write_observations(rows, Path(target), report)
    return report


def read_own(path: Path) -> tuple[pd.DataFrame, ReadReport]:
    """Read a user's CSV file of measured deployments; every row is kept.

    Returns:
        Observations with the columns of ``COLUMNS``, and the counts of rows read.

    Raises:
        PinnError: If the file is missing, lacks a column, or has an unknown column or a value not
            allowed in its column.
    """
    rows = read_frame(path, _REMEDY, dtype="str", keep_default_na=False)
    missing = [name for name in REQUIRED if name not in rows]
    unknown = [str(name) for name in rows if name not in COLUMNS]
    if missing or unknown:
        found = " and ".join(
            f"{what} the column(s) {', '.join(names)}"
            for what, names in (("lacks", missing), ("has", unknown))
            if names
        )
        raise PinnError(f"{path} {found}, expected {', '.join(REQUIRED)}: {_REMEDY}")
    rows = pd.DataFrame({name: rows.get(name, OPTIONAL.get(name, "")) for name in COLUMNS})
    if "" in set(rows["row_id"]):
        rows["row_id"] = [f"{path.name} row {number}" for number in range(1, len(rows) + 1)]
    flag = rows["enable_expert_parallel"].str.lower().map({"true": True, "false": False})
    rows = validate(rows.assign(enable_expert_parallel=flag), str(path))
    rows["series"] = [series_key(row) for _, row in rows.iterrows()]
    return rows, ReadReport(path.name, "", file_sha256(path), len(rows), len(rows))
