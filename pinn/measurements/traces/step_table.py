"""Reader of tables of engine steps, which reads tables of any size piece by piece."""

import codecs
import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
from jaxtyping import Float, Int, Shaped

from pinn.common.documents import MOST_COLUMNS, MOST_LINE_BYTES
from pinn.common.tables import KeptRows
from pinn.errors import PinnError
from pinn.measurements.readers.vllm import check_file

#: Required columns of a table of steps: numbers of requests and tokens in a step.
COUNTS = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens",
          "num_decode_requests", "sum_decode_kv_tokens")  # fmt: skip
LATENCY = "latency_ms"

#: Columns with equal values in all steps of a batch; decode contexts grow with each step.
ALIKE = COUNTS[:4]
_BATCH, _COLD = "batch", "is_cold"
#: Errors for columns that identify a server and have several values in one file, by column.
_SERVERS = {
    "run": "{file} has steps of {count} runs: give a file with one server",
    "dp_rank": "{file} has steps of several data-parallel ranks: give a file with one rank",
}
_REMEDY = "give a folder that 'pinn measure' wrote"
_MISSING = "a cell is missing or not a number"

#: Number of bytes read from a table at a time.
_PIECE_BYTES = 2**22


@dataclass(frozen=True)
class StepTable:
    """Accepted steps of a table of engine steps, with their batches.

    Attributes:
        alike: Prefills, prefill tokens, cached prefill tokens and decodes of each batch: the values
            of the columns ``ALIKE``.
        batch: Index of each step's batch in ``alike``; some batches may have no accepted step.
        context: Cached tokens of all decodes before each step.
        milliseconds: Time of each step in ms.
        read: Number of rows of the table.
        refused: Number of rejected rows, by reason.
    """

    alike: Shaped[np.ndarray, "batches 4"]
    batch: Int[np.ndarray, " steps"]
    context: Shaped[np.ndarray, " steps"]
    milliseconds: Float[np.ndarray, " steps"]
    read: int
    refused: dict[str, int]


def read_step_table(file: Path) -> StepTable:
    """Read a CSV table of measured engine steps.

    Without a column ``batch``, consecutive steps with equal prompts and equal numbers of decodes
    form one batch. A row that is too short or too long is rejected and counted.

    Raises:
        PinnError: If the file is not a CSV table, lacks a column, or has several servers.
    """
    check_file(file, _REMEDY)
    _check_text(file)
    names = _header(file)
    lacking = [name for name in (*COUNTS, LATENCY) if name not in names]
    if lacking:
        raise PinnError(
            f"{file} lacks the columns {', '.join(lacking)}: it has only {', '.join(names)}"
        )
    pieces = _Pieces(file, [name for name in (*COUNTS, LATENCY, _BATCH, _COLD) if name in names])
    wrong = Counter[str]()
    try:
        for table in _tables(file, names, wrong):
            pieces.add(table)
    except pa.ArrowException as error:
        raise PinnError(f"{file} is no CSV table ({error}): {_REMEDY}") from error
    pa.default_memory_pool().release_unused()
    return pieces.whole(wrong)


def _check_text(file: Path) -> None:
    """Raise an error for a file that is not UTF-8, because Arrow would drop rows from it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with file.open("rb") as pieces:
        try:
            while piece := pieces.read(_PIECE_BYTES):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise PinnError(f"{file} is not UTF-8 text: {_REMEDY}") from error


def _header(file: Path) -> list[str]:
    with file.open("rb") as lines:
        first = lines.readline(MOST_LINE_BYTES)
    try:
        (names,) = csv.reader([first.decode("utf-8-sig")])
    except (ValueError, csv.Error) as error:
        raise PinnError(f"{file} is no CSV table ({error}): {_REMEDY}") from error
    names = [name.strip() for name in names]
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise PinnError(f"{file}: the column {twice[0]!r} occurs twice: remove one of the two")
    if len(names) > MOST_COLUMNS:
        raise PinnError(
            f"{file} has {len(names):,} columns, expected at most {MOST_COLUMNS:,}: remove columns"
        )
    return names


def _tables(file: Path, names: list[str], wrong: Counter[str]) -> Iterator[pa.Table]:
    """Yield a CSV table in pieces, with cells as strings; count rows not matching the header."""

    def skip(row: arrow_csv.InvalidRow) -> str:
        short = row.actual_columns < row.expected_columns
        wrong[_MISSING if short else "more cells than columns"] += 1
        return "skip"

    wanted = [name for name in (*COUNTS, LATENCY, _BATCH, _COLD, *_SERVERS) if name in names]
    reading = arrow_csv.ReadOptions(
        use_threads=False, block_size=_PIECE_BYTES, column_names=names, skip_rows=1
    )
    converting = arrow_csv.ConvertOptions(
        include_columns=wanted,
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    parsing = arrow_csv.ParseOptions(invalid_row_handler=skip)
    with arrow_csv.open_csv(file, reading, parsing, converting) as stream:
        yield from (pa.Table.from_batches([piece]) for piece in stream if piece.num_rows)


class _Pieces:
    """Accepted steps and batches of all pieces of a table that were read so far."""

    def __init__(self, file: Path, names: list[str]) -> None:
        self._file, self._names = file, names
        self._alike: list[np.ndarray] = [np.zeros((0, len(ALIKE)), np.int32)]
        self._batch: list[np.ndarray] = [np.zeros(0, np.int32)]
        self._context: list[np.ndarray] = [np.zeros(0, np.int32)]
        self._milliseconds: list[np.ndarray] = [np.zeros(0)]
        self._servers: dict[str, set[object]] = {name: set() for name in _SERVERS}
        self._batches = 0
        self._known: dict[bytes, int] = {}
        self._last = np.full((1, len(ALIKE)), np.nan)
        self._read, self._refused = 0, Counter[str]()

    def add(self, table: pa.Table) -> None:
        """Add the accepted steps of a piece of the table.

        Raises:
            PinnError: If the table has several servers.
        """
        for name in set(_SERVERS) & set(table.column_names):
            self._servers[name] |= set(table[name].unique().drop_null().to_pylist())
            if (count := len(self._servers[name])) > 1:
                raise PinnError(_SERVERS[name].format(file=self._file, count=count))
        numbers = pd.DataFrame({name: _numbers(table[name]) for name in self._names})
        kept = KeptRows(len(numbers))
        _refuse_faulty(numbers, kept)
        self._read += len(numbers)
        self._refused.update(kept.refused)
        accepted = numbers[kept.mask]
        if _BATCH in numbers:
            self._batch.append(self._of_known(accepted[[_BATCH, *ALIKE]].to_numpy()))
        else:
            self._batch.append(self._of_runs(numbers[list(ALIKE)].to_numpy())[kept.mask])
        self._context.append(_small(accepted[COUNTS[-1]].to_numpy()))
        self._milliseconds.append(accepted[LATENCY].to_numpy().copy())

    def _of_known(self, rows: np.ndarray) -> np.ndarray:
        """Return each row's batch index; rows with equal ``batch`` and counts are one batch."""
        codes = _group_numbers(rows)
        _, first = np.unique(codes, return_index=True)
        numbers = [self._known.setdefault(row.tobytes(), len(self._known)) for row in rows[first]]
        is_new = np.array(numbers, np.int32) >= self._batches
        self._alike.append(_small(rows[first][is_new, 1:]))
        self._batches = len(self._known)
        return np.array(numbers, np.int32)[codes]

    def _of_runs(self, rows: np.ndarray) -> np.ndarray:
        """Return each row's batch index; consecutive rows with equal counts are one batch.

        A batch may continue from the previous piece of the table.
        """
        before = np.vstack([self._last, rows[:-1]])
        is_new = ~((rows == before) | (np.isnan(rows) & np.isnan(before))).all(axis=1)
        is_new[0] |= not self._batches
        numbers = self._batches - 1 + np.cumsum(is_new)
        self._alike.append(_small(rows[is_new]))
        self._last, self._batches = rows[-1:], int(numbers[-1]) + 1
        return numbers.astype(np.int32)

    def whole(self, wrong: Counter[str]) -> StepTable:
        """Return all accepted steps, with counts of rejected rows including those in ``wrong``."""
        read, refused = self._read + wrong.total(), dict(wrong + self._refused)
        alike, batch = _joined(self._alike), _joined(self._batch)
        context, milliseconds = _joined(self._context), _joined(self._milliseconds)
        return StepTable(alike, batch, context, milliseconds, read, refused)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenate parts, and free their memory."""
    found = np.concatenate(parts)
    parts.clear()
    return found


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Convert cells to numbers; NaN for a missing cell or any other text."""
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        found = pd.to_numeric(column.to_pandas(), errors="coerce")
        return found.to_numpy(np.float64, na_value=np.nan)


def _small(values: np.ndarray) -> np.ndarray:
    """Convert whole numbers to 32-bit integers if they fit, to save memory."""
    return values.astype(np.int32 if abs(values).max(initial=0) < 2**31 else values.dtype)


def _refuse_faulty(numbers: pd.DataFrame, kept: KeptRows) -> None:
    """Drop and count warm-up steps, and steps with missing or implausible counts or times."""
    refuse = kept.refuse
    whole = numbers[[name for name in numbers if name != LATENCY]]
    refuse(_MISSING, ~np.isfinite(numbers).all(axis=1))
    refuse("a count is negative or a fraction", ((whole < 0) | (whole % 1 != 0)).any(axis=1))
    refuse("no time", numbers[LATENCY] <= 0)
    refuse("no request", numbers[["num_prefill_requests", "num_decode_requests"]].sum(axis=1) < 1)
    prompts, tokens, cached, decodes, context = (numbers[name] for name in COUNTS)
    beside = ((prompts == 0) & (tokens + cached > 0)) | ((decodes == 0) & (context > 0))
    refuse("tokens without a request, or a prompt without tokens", beside | (prompts > tokens))
    if _COLD in numbers:
        refuse("cold", numbers[_COLD] > 0)


def _group_numbers(rows: np.ndarray) -> np.ndarray:
    """Number distinct rows in order of first appearance; return the number of each row."""
    groups = np.zeros(len(rows), np.int64)
    for column in rows.T:
        codes, values = pd.factorize(column)
        groups, _ = pd.factorize(groups * max(len(values), 1) + codes)
    return groups
