"""Result files of serving benchmarks, with values and bytes changed."""

from __future__ import annotations

import itertools
import json
from typing import Any

from benchmark_files import KINDS, write
from fuzz.hostile_values import changed, changed_bytes, written
from fuzz.target import Fuzzed
from hypothesis import strategies as st
from served_load import served

#: An array of every request is as long as the others of its file.
_REQUESTS = 12


def _documents(shared: Fuzzed) -> tuple[list[Any], list[bytes]]:
    """JSON documents of all kinds, and the bytes of every file."""
    from pinn.simulator.linear_latency import LinearLatency

    def latency(deployment: Any) -> LinearLatency:
        found = shared.surrogate.coefficients([deployment])
        return LinearLatency(deployment, found.beta[0], found.alpha[0])

    run = served(latency, concurrency=4, requests=_REQUESTS)
    folder = shared.folder / "benchmarks"
    files = [path for kind in KINDS for path in write(run, kind, folder / kind.replace(" ", "_"))]
    plain = itertools.chain.from_iterable(
        path.rglob("*") if path.is_dir() else [path] for path in files
    )
    contents = [path.read_bytes() for path in plain if path.is_file()]
    trees = [json.loads(text) for text in contents if text[:1] == b"{" and b"\n{" not in text]
    return trees, contents


def benchmark_files(shared: Fuzzed) -> st.SearchStrategy[bytes]:
    """One file."""
    trees, contents = _documents(shared)
    return st.one_of(changed(trees).map(written), changed_bytes(contents), st.binary(max_size=60))


def check_benchmark_file(shared: Fuzzed, content: bytes) -> None:
    """What is read is counted, and has a load that some server could have had."""
    from pinn.measurements.benchmarks.read import read_benchmarks
    from pinn.measurements.benchmarks.reading import GivenLoad

    given = GivenLoad(concurrency=4)
    runs, report = read_benchmarks([shared.file("benchmark", content)], given)
    assert len(runs) == report.accepted
    assert report.accepted + sum(report.refused.values()) == report.read
    for run in runs:
        assert run.load.requests >= 1
        assert all(value >= 0 for value in run.figures.values())
