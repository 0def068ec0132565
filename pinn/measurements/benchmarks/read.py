"""Benchmark files of any tool: which tool wrote a file shows in its content."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from pinn.common.files import ReadReport, file_sha256
from pinn.errors import PinnError, printable
from pinn.measurements.benchmarks import (
    aiperf,
    guidellm,
    inferencex,
    llm_d,
    metrics_page,
    vllm_bench,
    vllm_log,
)
from pinn.measurements.benchmarks import inference_perf as perf
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.documents import Document, NotUsable, read_document
from pinn.measurements.benchmarks.reading import GivenLoad, Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.measurements.benchmarks.vllm_bench import read_sglang_bench

#: One run of a file, unread.
Point = TypeVar("Point")


@dataclass(frozen=True)
class Reader(Generic[Point]):
    """How the files of one tool are read.

    Attributes:
        tool: Its name.
        wrote: Whether it wrote a file.
        read: One of its runs.
        points: The runs of a file, unread.
    """

    tool: str
    wrote: Callable[[Document], bool]
    read: Callable[[Point, Reading], BenchmarkRun]
    points: Callable[[Document], list[Point]]

    def unread(self, document: Document) -> list[Callable[[Reading], BenchmarkRun]]:
        """Return the runs of a file, each still to be read."""
        return [partial(self.read, point) for point in self.points(document)]


def _trees(document: Document) -> list[Tree]:
    """One run a JSON document."""
    return document.trees


def _whole(document: Document) -> list[Document]:
    """One run a file."""
    return [document]


READERS = (
    Reader("vllm bench serve", vllm_bench.is_vllm_bench, vllm_bench.read_vllm_bench, _trees),
    Reader("sglang.bench_serving", vllm_bench.is_sglang_bench, read_sglang_bench, _trees),
    Reader("InferenceX", inferencex.is_inferencex, inferencex.read_inferencex, _trees),
    Reader("guidellm", guidellm.is_guidellm, guidellm.read_guidellm, guidellm.guidellm_points),
    Reader("llm-d-benchmark", llm_d.is_llm_d, llm_d.read_llm_d, _trees),
    Reader("inference-perf", perf.is_inference_perf, perf.read_inference_perf, _whole),
    Reader("aiperf", aiperf.is_aiperf, aiperf.read_aiperf, aiperf.aiperf_points),
    Reader("request spans of vLLM", vllm_log.is_request_spans, vllm_log.read_request_spans, _whole),
    Reader("vLLM log", vllm_log.is_vllm_log, vllm_log.read_vllm_log, _whole),
)

#: What tools write beside their results, which the readers of those look at.
_COMPANIONS = {"config.yaml", "profile.yaml", "exp-config.yaml"}


def read_benchmarks(
    paths: Sequence[Path], given: GivenLoad | None = None
) -> tuple[list[BenchmarkRun], ReadReport]:
    """Read files of benchmarks, of one tool or of several.

    Args:
        paths: Files, or folders of them. Metrics pages come in pairs, the earlier first.
        given: What the files leave out.

    Returns:
        The runs in the order of the files, and the counts: a point of a file that holds several is
        one, like a pair of metrics pages.

    Raises:
        PinnError: If nothing could be read, with the reasons, or the user has to say more.
    """
    given = given or GivenLoad()
    refused, runs = Counter[str](), list[BenchmarkRun]()
    pages: list[Document] = []
    digest = hashlib.sha256()
    for path in _files(paths):
        with _counted("a benchmark's file", refused):
            document = read_document(path)
            digest.update(file_sha256(path).encode())
            if metrics_page.is_metrics_page(document):
                pages.append(document)
            else:
                _read_document(document, given, runs, refused)
    _read_pages(pages, given, runs, refused)
    read = len(runs) + refused.total()
    names = ", ".join(str(path) for path in paths)
    if not runs:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in refused.items()) or "no files"
        known = f"{', '.join(reader.tool for reader in READERS)}, and pairs of metrics pages"
        raise PinnError(f"{names}: no benchmark run could be read: {reasons}. Known are {known}")
    report = ReadReport(names, "", digest.hexdigest(), read, len(runs), dict(refused))
    return runs, report


def _read_document(
    document: Document, given: GivenLoad, runs: list[BenchmarkRun], refused: Counter[str]
) -> None:
    reader = next((reader for reader in READERS if reader.wrote(document)), None)
    if reader is None:
        raise NotUsable("written by no known tool")
    with _counted(reader.tool, refused):
        unread = reader.unread(document)
        for number, read in enumerate(unread, 1):
            name = str(document.path) if len(unread) == 1 else f"{document.path}#{number}"
            with _counted(reader.tool, refused):
                runs.append(read(Reading(name, reader.tool, given)))


@contextmanager
def _counted(tool: str, refused: Counter[str]) -> Iterator[None]:
    """Count what is not usable: values of other types than a tool writes are, wherever met."""
    try:
        yield
    except NotUsable as reason:
        refused[str(reason)] += 1
    except PinnError:
        raise
    except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        met = printable(error, 60) or type(error).__name__
        refused[f"a value that {tool} does not write there ({met})"] += 1


def _read_pages(
    pages: list[Document], given: GivenLoad, runs: list[BenchmarkRun], refused: Counter[str]
) -> None:
    for first, second in zip(pages[::2], pages[1::2], strict=False):
        texts, name = (first.text, second.text), f"{first.path} to {second.path}"
        with _counted("an engine's metrics page", refused):
            reading = Reading(name, "metrics page", given)
            runs.append(metrics_page.read_metrics_pages(texts, reading))
    if len(pages) % 2:
        refused["a metrics page without a second scrape"] += 1


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and those of folders; what lies beside results is left out there.

    Raises:
        PinnError: If one does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            found += [p for p in inside if p.name not in _COMPANIONS]
        elif path.is_file():
            found.append(path)
        else:
            raise PinnError(f"no file or folder at {path}: give the files that a benchmark wrote")
    return found
