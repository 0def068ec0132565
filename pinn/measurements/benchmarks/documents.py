"""Benchmark file, parsed as JSON, YAML, lines, table or text, and its metrics in SI units."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pinn.common import Json
from pinn.common.documents import MOST_CSV_BYTES, parse_json, parse_yaml, read_text
from pinn.errors import PinnError, TooLargeError
from pinn.measurements.benchmarks.benchmark_run import LATENCIES, STATISTICS
from pinn.measurements.benchmarks.lines import SkippedLine, csv_rows, json_lines
from pinn.measurements.benchmarks.tree import Tree
from pinn.units import MICROSECOND, MILLISECOND

# A benchmark file, parsed as far as possible without knowledge of the tool that wrote it.


class NotUsable(PinnError):  # noqa: N818  a reason to leave a run out, no failure
    """Error for a skipped run or file; its message is the reason, which the report counts.

    Attributes:
        line: Line of the file to which the reason applies; None for the whole file.
    """

    def __init__(self, reason: object, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Document:
    """Benchmark file with its parsed content.

    Attributes:
        path: Path of the file.
        text: Text of the file; empty for a JSON or YAML document or JSON lines.
        values: JSON or YAML documents in the file, one for each JSON line or table row; empty for
            other text.
        lines: Line number of each value in the file, if each value has its own line.
        skipped: Lines that could not be parsed, in a file whose other lines could be.
    """

    path: Path
    text: str
    values: tuple[Json, ...]
    lines: tuple[int, ...] = ()
    skipped: tuple[SkippedLine, ...] = ()

    @property
    def first(self) -> Tree:
        """Return the first document if it is a mapping, else an empty mapping."""
        return Tree(self.values[0] if self.values else None)

    @property
    def trees(self) -> list[Tree]:
        """Return every JSON or YAML document of the file as a mapping with typed access."""
        return [Tree(each) for each in self.values]


def read_document(path: Path) -> Document:
    """Read a benchmark file and parse its content.

    Raises:
        NotUsable: If the file cannot be read, is empty, too large or truncated.
    """
    try:
        text = read_text(path, MOST_CSV_BYTES, "text")
    except TooLargeError as error:
        raise NotUsable(f"the file is larger than {MOST_CSV_BYTES >> 20} MiB") from error
    except PinnError as error:
        raise NotUsable("the file cannot be read as text") from error
    if not text.strip():
        raise NotUsable("the file is empty")
    fault: NotUsable | None = None
    if text.lstrip()[0] in "{[":
        try:
            whole = parse_json(text, "invalid JSON")
            return Document(path, "", tuple(whole) if isinstance(whole, list) else (whole,))
        except PinnError as error:
            fault = _json_fault(error)
    if path.suffix in (".yaml", ".yml"):
        try:
            return Document(path, "", (parse_yaml(text, "the YAML"),))
        except PinnError as error:
            raise NotUsable(str(error)) from error
    found = json_lines(text)
    if found.values:
        left = text if found.skipped else ""
        return Document(path, left, tuple(found.values), tuple(found.numbers), tuple(found.skipped))
    # A log may also begin with a brace or bracket, so only these beginnings count as broken JSON.
    if fault and text.lstrip().startswith(('{"', "{\n", "[{", "[\n", "[[")):
        raise fault
    rows = csv_rows(text)
    return Document(path, text, tuple(rows.values), tuple(rows.numbers), tuple(rows.skipped))


def _json_fault(error: PinnError) -> NotUsable:
    """Return the reason why a text is not a JSON document, with its line."""
    cause = error.__cause__
    if not isinstance(cause, ValueError):
        return NotUsable(error)
    return NotUsable("the JSON is malformed, perhaps truncated", getattr(cause, "lineno", None))


# Metrics of benchmark files in SI units, and parsers of keys shared by the files of several tools.

#: Lengths of time units in seconds, by spelling in benchmark files.
SECONDS = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "s/token": 1.0,
    "ms": MILLISECOND, "ms/token": MILLISECOND, "us": MICROSECOND, "ns": 1e-9,
}  # fmt: skip


def unit_seconds(latency: str, unit: str) -> float:
    """Return the length in seconds of a unit of time given in a file.

    Raises:
        NotUsable: If the unit is unknown.
    """
    if unit not in SECONDS:
        known = ", ".join(SECONDS)
        raise NotUsable(f"the unit of {latency} is {unit!r}, expected one of {known}")
    return SECONDS[unit]


def kept(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Drop metrics that are 0, null or NaN, which tools write for metrics they did not measure.

    >>> kept({"ttft_mean_s": 0.1, "itl_mean_s": 0.0, "e2e_mean_s": None})
    {'ttft_mean_s': 0.1}
    """
    return {k: float(v) for k, v in figures.items() if v is not None and v > 0 and math.isfinite(v)}


def throughputs(
    requests_per_s: float | None, output_tokens_per_s: float | None
) -> dict[str, float]:
    """Return the requests and output tokens per second that a file states, by metric."""
    return kept({"requests_per_s": requests_per_s, "output_tokens_per_s": output_tokens_per_s})


def streamed(figures: dict[str, float]) -> dict[str, float]:
    """Return metrics unchanged, or raise an error if they do not include TTFT.

    Raises:
        NotUsable: If there is no TTFT.
    """
    if not any(name.startswith("ttft") for name in figures):
        raise NotUsable("the file has no TTFT, because the run did not stream")
    return figures


def statistics_of(
    latency: str, lookup: Callable[[str], float | None], unit_s: float
) -> dict[str, float]:
    """Return the mean and percentiles of one latency in a file, in seconds, by metric.

    Args:
        latency: Name of the latency, such as ``ttft``.
        lookup: Function that returns the file's value of a statistic (``mean``, ``p50``, ...), or
            None.
        unit_s: Unit of the file's values, in seconds.
    """
    found = {each: lookup(each) for each in STATISTICS}
    return kept({f"{latency}_{k}_s": None if v is None else v * unit_s for k, v in found.items()})


def client_statistics(values: Tree, e2e: str, unit_s: float, suffix: str = "") -> dict[str, float]:
    """Return the latencies in a file with keys such as ``mean_ttft``, in seconds, by metric.

    Args:
        values: Content of the file.
        e2e: Spelling of ``e2e`` in the file; other latencies have their usual names.
        unit_s: Unit of the file's values, in seconds.
        suffix: Unit suffix of the keys, such as ``_ms``.
    """
    figures: dict[str, float] = {}
    for latency in LATENCIES:
        key = f"{e2e if latency == 'e2e' else latency}{suffix}"
        found = {each: values.number(f"{each}_{key}") for each in STATISTICS if each != "p50"}
        found["p50"] = values.number(f"median_{key}", f"p50_{key}")
        figures |= statistics_of(latency, found.get, unit_s)
    return figures


def sample_figures(latency: str, seconds: Iterable[float]) -> dict[str, float]:
    """Return the mean and percentiles of a latency's positive samples, in seconds, by metric."""
    values = np.array([v for v in seconds if v is not None and v > 0], float)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    percentiles = {f"p{n}": np.percentile(values, n) for n in (50, 90, 95, 99)}
    return statistics_of(latency, {"mean": values.mean(), **percentiles}.get, 1.0)


def request_figures(
    ttft_s: Iterable[float], e2e_s: Iterable[float], output_tokens: Iterable[int]
) -> dict[str, float]:
    """Return mean and percentiles of TTFT, E2E and TPOT over requests, in seconds, by metric."""
    rows = list(zip(ttft_s, e2e_s, output_tokens, strict=True))
    return (
        sample_figures("ttft", (first for first, _, _ in rows))
        | sample_figures("e2e", (last for _, last, _ in rows))
        | sample_figures("tpot", ((last - first) / (n - 1) for first, last, n in rows if n > 1))
    )
