"""Run a load test of `pinn serve` with many clients.

    python scripts/bench_serve.py [--seconds 60] [--clients 100] [--workers 2] [--new-share 0.002]

Starts a server on a free port of the loopback address. Clients send prediction requests in a closed
loop; a share of the requests is new, and the rest is cached. Prints the numbers of requests and
errors, and the memory use of the server and its processes before and after the load. Then it prints
the p50 and p99 latency of a single client's cached predictions, and of requests with 1,000 new
candidates. The last line is one JSON document.
"""

import asyncio
import itertools
import json
import random
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
import typer
from timing import PINN, resident_bytes

MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-70B")
GPUS = ("H100", "H200", "B200", "A100")
#: Prediction requests repeated by all clients, so that the server can answer from its cache.
USUAL = [{"model": model, "gpu": gpu} for model in MODELS[:2] for gpu in GPUS]
CANDIDATES = 1000
#: Duration, in seconds, of the load before the first measurement of the server's memory use.
SETTLING_S = 5.0


@dataclass
class Load:
    """Latencies and errors of the responses to all clients' requests.

    Attributes:
        seconds: Latency of each response in seconds.
        errors: Number of responses with a status other than 200, plus broken connections.
    """

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


def bodies(new_share: float) -> Iterator[dict[str, object]]:
    """Yield arguments of prediction requests.

    A share ``new_share`` of them is new, so that the server cannot respond from its cache.
    """
    draw = random.Random(0)
    for number in itertools.count(1):
        usual = draw.choice(USUAL)
        yield (
            usual | {"max_num_batched_tokens": 8192 + number}
            if draw.random() < new_share
            else usual
        )


def candidates(number: int) -> dict[str, object]:
    """Return a request with 1,000 configurations, which are unique to ``number``."""
    axes = itertools.product(MODELS, GPUS, (1, 2, 4, 8), range(21))
    rows = [
        {"model": m, "gpu": g, "tensor_parallel_size": tp, "max_num_seqs": 1000 * (n + 1) + number}
        for m, g, tp, n in axes
    ]
    return {"configurations": rows[:CANDIDATES], "batch": "32 decode @ 700", "skip_invalid": True}


class Client:
    """Client with one persistent HTTP connection."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)

    async def __aenter__(self) -> "Client":
        place = self._place
        self._reader, self._writer = await asyncio.open_connection(place.hostname, place.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def status(self, name: str, body: dict[str, object]) -> int:
        """Send a request, read the whole response, and return its HTTP status."""
        content = json.dumps(body).encode()
        head = f"POST /{name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        first, *fields = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = dict(each.lower().split(": ", 1) for each in fields if each)
        await self._reader.readexactly(int(named["content-length"]))
        return int(first.split()[1])


async def ask(url: str, load: Load, asked: Iterator[dict[str, object]], until_s: float) -> None:
    """Send prediction requests one after another until the monotonic clock reaches ``until_s``."""
    async with Client(url) as client:
        while time.perf_counter() < until_s:
            begin = time.perf_counter()
            try:
                load.errors += await client.status("predict", next(asked)) != 200
            except (OSError, asyncio.IncompleteReadError):
                load.errors += 1
                return
            load.seconds.append(time.perf_counter() - begin)


async def ask_at_once(
    url: str, clients: int, seconds: float, asked: Iterator[dict[str, object]]
) -> Load:
    """Send requests from several clients at the same time; return their latencies and errors."""
    load, until_s = Load(), time.perf_counter() + seconds
    await asyncio.gather(*(ask(url, load, asked, until_s) for _ in range(clients)))
    return load


async def ask_alone(url: str, name: str, asked: list[dict[str, object]]) -> list[float]:
    """Return the latency of each request of a single client, in seconds."""
    seconds = []
    async with Client(url) as client:
        for body in asked:
            begin = time.perf_counter()
            assert await client.status(name, body) == 200
            seconds.append(time.perf_counter() - begin)
    return seconds


@contextmanager
def served(workers: int) -> Iterator[tuple[str, int]]:
    """Yield the URL and the process id of a new server."""
    command = [*PINN, "serve", "--port", "0", "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0], process.pid
    finally:
        process.terminate()
        process.wait()


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Return the p50 and p99 of latencies in ms, and the number of latencies."""
    p50, p99 = (float(np.percentile(seconds, q)) * 1e3 for q in (50, 99))
    return {"requests": len(seconds), "p50_ms": p50, "p99_ms": p99}


def main(
    seconds: float = 60.0, clients: int = 100, workers: int = 2, new_share: float = 0.002
) -> None:
    with served(workers) as (url, pid):
        asyncio.run(ask_alone(url, "predict", USUAL))
        asked = bodies(new_share)
        settling = asyncio.run(ask_at_once(url, clients, SETTLING_S, asked))
        before = resident_bytes(pid)
        load = asyncio.run(ask_at_once(url, clients, seconds, asked))
        after = resident_bytes(pid)
        errors, found = settling.errors + load.errors, milliseconds(load.seconds)
        print(f"{clients} clients, {seconds:g} s: {found['requests']:,} requests, {errors} errors")
        print(f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms")
        print(f"memory {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after")
        alone = milliseconds(asyncio.run(ask_alone(url, "predict", USUAL * 250)))
        print(
            f"kept prediction, one client: p50 {alone['p50_ms']:.2f}, p99 {alone['p99_ms']:.2f} ms"
        )
        many = [candidates(number) for number in range(1 + int(seconds))]
        each = milliseconds(asyncio.run(ask_alone(url, "predict_many", many))[1:])
        print(
            f"{CANDIDATES:,} new candidates: p50 {each['p50_ms']:.0f}, p99 {each['p99_ms']:.0f} ms"
        )
        with urllib.request.urlopen(f"{url}/metrics") as page:
            assert 'status="500"' not in page.read().decode()
    facts = {"clients": clients, "seconds": seconds, "workers": workers, "new_share": new_share}
    sizes = {"before_bytes": before, "after_bytes": after}
    print(json.dumps(
        facts | sizes | {"errors": errors, "load": found, "kept": alone, "candidates": each}
    ))  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
