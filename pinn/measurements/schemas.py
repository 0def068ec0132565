"""Schemas of the tables into which trace files and logs are read.

``schemas.csv`` lists the columns of each table: the raw rows of request spans (``engine`` and
``front``), the tables that are written to an ingested folder (``steps``, ``snapshots`` and
``requests``), and the ``iterations`` of a log. A column's name includes its unit, if any.
"""

from pathlib import Path

import pyarrow as pa

from pinn.common.files import read_rows

#: Arrow types, by column type in ``schemas.csv``, for types that Arrow has no name for.
_TYPES = {"list": pa.list_(pa.int64()), "dictionary": pa.dictionary(pa.int8(), pa.string())}


def _read_schemas() -> dict[str, pa.Schema]:
    columns: dict[str, dict[str, pa.DataType]] = {}
    for row in read_rows(Path(__file__).with_name("schemas.csv")):
        kind = _TYPES.get(row["type"]) or pa.type_for_alias(row["type"])
        columns.setdefault(row["table"], {})[row["column"]] = kind
    return {table: pa.schema(found) for table, found in columns.items()}


#: Arrow schemas of tables, by name of the table.
SCHEMAS = _read_schemas()
