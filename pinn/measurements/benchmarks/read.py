"""Reader of benchmark files of all tools, which are recognized by their contents."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError, printable
from pinn.measurements.benchmarks import (
    aiperf,
    console,
    guidellm,
    inferencex,
    latency_profile,
    llm_d,
    llmperf,
    marks,
    metrics_page,
    vllm_bench,
    vllm_log,
)
from pinn.measurements.benchmarks import inference_perf as perf
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.companions import result_files
from pinn.measurements.benchmarks.documents import Document, NotUsable, read_document
from pinn.measurements.benchmarks.reading import GivenLoad, Reading
from pinn.measurements.benchmarks.tree import Tree

#: One unparsed run of a file: a JSON document, a table or the whole file.
Point = TypeVar("Point")


@dataclass(frozen=True)
class Reader(Generic[Point]):
    """Reader of the files of one tool.

    Attributes:
        tool: Name of the tool.
        mark: Mark of the tool's files.
        read: Function that reads one run.
        points: Function that splits a file into its runs.
        of_text: Whether the reader parses the file as text and ignores unrelated lines.
    """

    tool: str
    mark: marks.Mark
    read: Callable[[Point, Reading], BenchmarkRun]
    points: Callable[[Document], list[Point]]
    of_text: bool = False

    def unread(self, document: Document) -> list[Callable[[Reading], BenchmarkRun]]:
        """Return one function per run in a file, which reads the run when called."""
        return [partial(self.read, point) for point in self.points(document)]


def _trees(document: Document) -> list[Tree]:
    """Return the JSON documents of a file, each with the data of one run."""
    return document.trees


def _whole(document: Document) -> list[Document]:
    """Return the whole file as the data of one run."""
    return [document]


READERS = (
    Reader("vllm bench serve", vllm_bench.is_vllm_bench, vllm_bench.read_vllm_bench, _trees),
    Reader(
        "sglang.bench_serving", vllm_bench.is_sglang_bench, vllm_bench.read_sglang_bench, _trees
    ),
    Reader("InferenceX", inferencex.is_inferencex, inferencex.read_inferencex, _trees),
    Reader("guidellm", guidellm.is_guidellm, guidellm.read_guidellm, guidellm.guidellm_points),
    Reader("llm-d-benchmark", llm_d.is_llm_d, llm_d.read_llm_d, _trees),
    Reader("inference-perf", perf.is_inference_perf, perf.read_inference_perf, _whole),
    Reader("aiperf", aiperf.is_aiperf, aiperf.read_aiperf, aiperf.aiperf_points),
    Reader("aiperf", aiperf.is_aiperf_table, aiperf.read_aiperf, aiperf.aiperf_table, of_text=True),
    Reader("llmperf", llmperf.is_llmperf, llmperf.read_llmperf, _trees),
    Reader(
        "latency profile generator",
        latency_profile.is_latency_profile,
        latency_profile.read_latency_profile,
        _trees,
    ),
    Reader("request spans of vLLM", vllm_log.is_request_spans, vllm_log.read_request_spans, _whole),
    Reader(
        "printed output of vllm bench serve and sglang.bench_serving",
        console.is_console,
        console.read_console,
        console.console_points,
        of_text=True,
    ),
    Reader("vLLM log", vllm_log.is_vllm_log, vllm_log.read_vllm_log, _whole, of_text=True),
)

#: Maximum number of files or lines that are listed for each reason of skipping data.
_PLACES = 4


@dataclass
class _Found:
    """Runs read from benchmark files so far, and reasons for skipped data.

    Attributes:
        given: Options for data missing from the files.
        runs: Runs in the order of the files.
        refused: Locations of the skipped runs, lines or files, by reason.
    """

    given: GivenLoad
    runs: list[BenchmarkRun] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)

    def refuse(self, reason: str, place: str) -> None:
        """Count a skipped run, line or file under its reason."""
        self.refused.setdefault(reason, []).append(place)

    @contextmanager
    def counted(self, tool: str, place: str) -> Iterator[None]:
        """Count a run as skipped if the enclosed code raises an error on its data."""
        try:
            yield
        except PinnError as reason:
            line = getattr(reason, "line", None)
            self.refuse(str(reason), f"{place}, line {line}" if line else place)
        except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            met = printable(error, 60) or type(error).__name__
            self.refuse(f"a value is not in the format of {tool} ({met})", place)

    def report(self, source: str, digest: str) -> ReadReport:
        """Return a report with the counts of runs read and skipped."""
        refused = {reason: len(places) for reason, places in self.refused.items()}
        places = {reason: tuple(each[:_PLACES]) for reason, each in self.refused.items()}
        read = len(self.runs) + sum(refused.values())
        return ReadReport(source, "", digest, read, len(self.runs), refused, places=places)


def read_benchmarks(
    paths: Sequence[Path], given: GivenLoad | None = None
) -> tuple[list[BenchmarkRun], ReadReport]:
    """Read benchmark files of one tool or of several tools.

    Unreadable files, runs and lines are skipped and counted.

    Args:
        paths: Files or folders of files. Metrics pages must be given in pairs, the earlier first; a
            single page covers the time since the server's start.
        given: Options for data missing from the files.

    Returns:
        The runs in the order of the files, and a report that counts runs. A pair of metrics pages
        counts as one run, and a skipped line as one rejected run.

    Raises:
        PinnError: If no run could be read, with the reasons.
    """
    found, pages = _Found(given or GivenLoad()), list[Document]()
    digest = hashlib.sha256()
    for path in result_files(paths):
        with found.counted("a benchmark's file", str(path)):
            document = read_document(path)
            digest.update(file_sha256(path).encode())
            if metrics_page.is_metrics_page(document):
                pages.append(document)
            else:
                _read_document(document, found)
    _read_pages(pages, found)
    names = ", ".join(str(path) for path in paths)
    report = found.report(names, digest.hexdigest())
    if not found.runs:
        raise PinnError(_nothing_read(report))
    return found.runs, report


def _nothing_read(report: ReadReport) -> str:
    """Return the error message if no run could be read: every reason, with the lines or files."""
    known = ""
    if not report.refused or any(_UNKNOWN in reason for reason in report.refused):
        tools = ", ".join(dict.fromkeys(reader.tool for reader in READERS))
        known = f". Give files of {tools}, or metrics pages of vLLM and SGLang"
    if report.read == 1:
        (reason,), (places,) = report.refused, report.places.values()
        return f"{places[0]}: {reason}{known}"
    reasons = "; ".join(report.located) or "no files"
    return f"{report.source}: no benchmark run could be read: {reasons}{known}"


_UNKNOWN = "the file was not written by a known tool"


def _read_document(document: Document, found: _Found) -> None:
    marked = ((reader, reader.mark(document)) for reader in READERS)
    reader, mark = next(((reader, mark) for reader, mark in marked if mark), (None, ""))
    if reader is None:
        like = marks.nearest(document, [(reader.tool, reader.mark) for reader in READERS])
        raise NotUsable(f"{_UNKNOWN}: {like}" if like else _UNKNOWN)
    path = str(document.path)
    if not reader.of_text:
        for line in document.skipped:
            found.refuse(line.reason, f"{path}, line {line.number}")
    with found.counted(reader.tool, path):
        unread = reader.unread(document)
        lines = document.lines if len(document.lines) == len(unread) else ()
        for number, read in enumerate(unread, 1):
            name = path if len(unread) == 1 else f"{path}#{number}"
            with found.counted(reader.tool, f"{path}, line {lines[number - 1]}" if lines else name):
                found.runs.append(read(Reading(name, reader.tool, found.given, mark)))


def _read_pages(pages: list[Document], found: _Found) -> None:
    """Read metrics pages in pairs, or a single page."""
    if len(pages) > 1 and len(pages) % 2:
        found.refuse("the /metrics page has no second scrape", str(pages.pop().path))
    for at in range(0, len(pages), 2):
        scrapes = pages[at : at + 2]
        name = " to ".join(str(page.path) for page in scrapes)
        mark = metrics_page.is_metrics_page(scrapes[0])
        with found.counted("an engine's metrics page", name):
            reading = Reading(name, "metrics page", found.given, mark)
            texts = [page.text for page in scrapes]
            found.runs.append(metrics_page.read_metrics_pages(texts, reading))
