"""Result files of serving benchmarks and tables of steps, with values, lines and bytes changed."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import Any

from benchmark_files import KINDS, write
from fuzz.hostile_values import changed, changed_bytes, written
from fuzz.target import Fuzzed
from hypothesis import strategies as st
from served_load import served

from pinn.errors import PinnError

#: An array of every request is as long as the others of its file.
_REQUESTS = 12


def _documents(shared: Fuzzed, name: str) -> tuple[list[Any], list[bytes]]:
    """JSON documents of all kinds, and the bytes of every file."""
    from pinn.simulator.linear_latency import LinearLatency

    def latency(deployment: Any) -> LinearLatency:
        found = shared.surrogate.coefficients([deployment])
        return LinearLatency(deployment, found.beta[0], found.alpha[0])

    run = served(latency, concurrency=4, requests=_REQUESTS)
    folder = shared.folder / name
    files = [path for kind in KINDS for path in write(run, kind, folder / kind.replace(" ", "_"))]
    plain = itertools.chain.from_iterable(
        path.rglob("*") if path.is_dir() else [path] for path in files
    )
    contents = [path.read_bytes() for path in plain if path.is_file()]
    trees = [json.loads(text) for text in contents if text[:1] == b"{" and b"\n{" not in text]
    return trees, contents


def benchmark_files(shared: Fuzzed) -> st.SearchStrategy[bytes]:
    """One file."""
    trees, contents = _documents(shared, "files")
    return st.one_of(changed(trees).map(written), changed_bytes(contents), st.binary(max_size=60))


def check_benchmark_file(shared: Fuzzed, content: bytes) -> None:
    """Check that a file's runs are counted, and have a load that some server could have had."""
    from pinn.measurements.benchmarks.read import read_benchmarks
    from pinn.measurements.benchmarks.reading import GivenLoad

    given = GivenLoad(concurrency=4)
    runs, report = read_benchmarks([shared.file("benchmark", content)], given)
    assert len(runs) == report.accepted
    assert report.accepted + sum(report.refused.values()) == report.read
    for run in runs:
        assert run.load.requests >= 1
        assert all(value >= 0 for value in run.figures.values())


def folders(shared: Fuzzed) -> st.SearchStrategy[tuple[bytes, bytes]]:
    """Two files: one of a tool or of lines of several, and any other."""
    _, contents = _documents(shared, "pieces")
    stray = [b"", b"max_prefill:8192,is_dp:False", b"{", b'{"a": 1}', b"a,b,c,d\n1,2,3", b"\xff"]
    pieces = [line for text in contents for line in text.split(b"\n")[:60] if len(line) < 20_000]
    picked = st.one_of(st.sampled_from(pieces), st.sampled_from(contents), st.sampled_from(stray))
    mixed = st.lists(picked, max_size=5).map(b"\n".join)
    changed_too = changed_bytes(contents)
    return st.tuples(mixed, st.one_of(mixed, changed_too))


def check_folder(shared: Fuzzed, given: tuple[bytes, bytes]) -> None:
    """Tables are written whole, and hold every run that was counted, or there is no folder."""
    from pinn.measurements.benchmarks.reading import GivenLoad
    from pinn.measurements.traces.ingestion import (
        GivenServer,
        ingest_benchmarks,
        read_benchmark_table,
    )
    from pinn.measurements.traces.trace_tables import read_trace_tables

    inside, out = shared.folder / "results", shared.folder / "ingested"
    for folder in (inside, out):
        shutil.rmtree(folder, ignore_errors=True)
    inside.mkdir()
    for name, content in zip(("a.csv", "b"), given, strict=True):
        (inside / name).write_bytes(content)
    server = GivenServer("Llama-3.1-8B", "H100", {})
    try:
        runs, report = ingest_benchmarks([inside], out, server, GivenLoad(concurrency=4))
    except PinnError:
        assert not out.exists()
        raise
    assert len(read_benchmark_table(read_trace_tables(out))) == len(runs) == report.accepted
    assert report.places.keys() == report.refused.keys()
    assert not list(shared.folder.glob(".*"))


STEPS = (
    "batch,num_prefill_requests,sum_prefill_tokens,sum_prefill_kv_tokens,num_decode_requests,"
    "sum_decode_kv_tokens,latency_ms,is_cold\n"
    + "0,0,0,0,8,5600,7.5,0\n0,0,0,0,8,5608,7.6,0\n0,0,0,0,8,5616,7.4,0\n0,0,0,0,8,5624,80,0\n"
    + "1,1,512,0,4,2800,19.5,1\n1,1,512,0,4,2804,19.4,0\n1,1,512,0,4,2808,19.6,0\n" * 2
).encode()


def check_steps(shared: Fuzzed, content: bytes) -> None:
    """Batches have positive times and as many steps as were accepted."""
    from pinn.measurements.traces.measured_steps import read_measured_steps

    found = read_measured_steps(shared.file("steps.csv", content))
    assert found.rows["count"].sum() == found.report.accepted
    assert (found.seconds > 0).all()
    assert (found.error > 0).all()
