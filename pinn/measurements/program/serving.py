"""Measurement of a vLLM server, including its API server, with loads from ``vllm bench serve``."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pinn.measurements.program.table import MeasuringError

#: Settings of the loads. ``CLOSED``: maximum number of requests of each closed loop, by number of
#: clients, which is reduced to what fits in the KV cache. ``OPEN_REQUESTS``: maximum number of
#: requests of the open loop. ``OPEN_SHARE``: request rate of the open loop relative to the
#: throughput of the larger closed loop.
CLOSED, OPEN_REQUESTS, OPEN_SHARE = {4: 24, 32: 96}, 60, 0.6

#: Prompt and output lengths in tokens, reduced if the model's context is shorter than four times
#: their sum.
PROMPT, OUTPUT = 1000, 200

#: Maximum duration, in seconds, of the server's start and of the first load.
_START = 900.0

_ADDRESS, _FOLDER, _LOG, _COLD = "127.0.0.1", "serving", "server.log", "cold.json"

#: Command line of vLLM by module name, because ``vllm`` may not be in the PATH.
VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")

Say = Callable[[str], None]
IsAsked = Callable[[], bool]


def serve_and_load(
    model: str,
    arguments: list[str],
    out: str,
    seconds: float,
    say: Say,
    port: int = 0,
    program: tuple[str, ...] = VLLM,
    is_asked: IsAsked = lambda: False,
) -> list[str]:
    """Start a vLLM server, send loads, and return the load generator's result files.

    Args:
        model: Model name or folder, as for ``vllm serve``.
        arguments: Other flags of ``vllm serve``.
        out: Folder of the measurement.
        seconds: Maximum duration of the three loads together, in seconds.
        say: Function that prints a line about progress.
        port: Port on the loopback address; 0 for any free port.
        program: Command of vLLM.
        is_asked: Function that returns whether the user asked to stop.

    Returns:
        Paths of the result files of the loads that finished in time.

    Raises:
        MeasuringError: If the port is in use or the server does not start.
    """
    port = _free_port(port)
    folder = os.path.join(out, _FOLDER)
    os.makedirs(folder, exist_ok=True)
    address = f"http://{_ADDRESS}:{port}"
    log = os.path.join(folder, _LOG)
    command = [*program, "serve", model, "--host", _ADDRESS, "--port", str(port), *arguments]
    with open(log, "wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    bench = [*program, "bench", "serve", "--backend", "vllm", "--base-url", address, "--endpoint",
             "/v1/completions", "--model", model, "--dataset-name", "random"]  # fmt: skip
    try:
        _wait(server, address, log, is_asked)
        return _loads(bench, address, folder, seconds, say, is_asked)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _loads(
    bench: list[str], address: str, folder: str, seconds: float, say: Say, is_asked: IsAsked
) -> list[str]:
    longest = int(_get(address + "/v1/models")["data"][0].get("max_model_len") or 4 * PROMPT)
    prompt, output = min(PROMPT, longest // 4), min(OUTPUT, longest // 8)
    most = _held(_text(address + "/metrics"), prompt + output)
    files: list[str] = []
    # One-time work such as compilation happens during the first load, so its measurement is
    # discarded.
    throughput, end = 1.0, time.monotonic() + _START
    closed = {min(n, most): count for n, count in CLOSED.items()}
    loads = [(_COLD, 4, 8), *((f"closed_{n}.json", n, count) for n, count in closed.items())]
    for seed, (name, clients, asked) in enumerate([*loads, ("open.json", 0, OPEN_REQUESTS)]):
        rate = max(OPEN_SHARE * throughput, 0.01)
        # Each of the three loads may take a quarter of the time, which limits its number of
        # requests. The server's throughput is assumed to be that of the previous load. The last
        # quarter is for starting clients.
        in_time = int((throughput if clients else rate) * seconds / 4)
        count = max(min(asked, in_time), 2 * clients, 8)
        how = ["--max-concurrency", str(clients)] if clients else ["--request-rate", f"{rate:.4g}"]
        path = os.path.join(folder, name)
        command = [*bench, "--random-input-len", str(prompt), "--random-output-len", str(output),
                   "--seed", str(seed), "--num-prompts", str(count), "--ignore-eos",
                   "--save-result", "--save-detailed", "--result-dir", folder,
                   "--result-filename", name, *how]  # fmt: skip
        error = _run(command, path, end, is_asked)
        if error:
            say(f"{name}: {error}")
            break
        with open(path, encoding="utf-8") as file:
            throughput = float(json.load(file).get("request_throughput") or throughput)
        if name == _COLD:
            os.remove(path)
            end = time.monotonic() + seconds
            continue
        files.append(path)
        say(f"{name}: {throughput:.3g} requests/s")
    return files


def _run(command: list[str], path: str, end: float, is_asked: IsAsked) -> str:
    """Run the load generator until it exits, times out or is stopped; return any error."""
    with tempfile.TemporaryFile() as output:
        client = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while client.poll() is None and time.monotonic() < end and not is_asked():
                with suppress(subprocess.TimeoutExpired):
                    client.wait(0.5)
            if client.poll() is None:
                return "skipped, because the load did not finish within its time limit"
        finally:
            client.kill()
            client.wait()
        output.seek(0)
        last = output.read().decode(errors="replace").strip().splitlines()[-1:]
    if client.returncode or not os.path.isfile(path):
        return f"the load generator failed: {''.join(last)[:300]}"
    return ""


def _free_port(port: int) -> int:
    """Return the given port, or a free port if it is 0.

    Raises:
        MeasuringError: If the port is in use.
    """
    with socket.socket() as probe:
        try:
            probe.bind((_ADDRESS, port))
        except OSError as error:
            taken = f"port {port} of {_ADDRESS} is taken ({error.strerror})"
            raise MeasuringError(f"{taken}: give another --port, or 0 for any free port") from error
        return int(probe.getsockname()[1])


def _wait(server: Any, address: str, log: str, is_asked: IsAsked) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        if is_asked():
            raise MeasuringError("the program was stopped while the server started")
        if server.poll() is not None:
            with open(log, encoding="utf-8", errors="replace") as file:
                last = [line.strip() for line in file if line.strip()][-1:]
            raise MeasuringError(f"the server did not start ({''.join(last)[:300]}): see {log}")
        try:
            _get(address + "/v1/models")
            return
        except (OSError, ValueError):
            time.sleep(1.0)
    raise MeasuringError(f"the server was not ready after {_START:.0f} s: see {log}")


def _held(page: str, tokens: int) -> int:
    """Return the number of requests of ``tokens`` tokens that fit in a server's KV cache.

    The size of the cache is read from the server's metrics page.
    """
    info = next((line for line in page.splitlines() if "cache_config_info{" in line), "")
    sizes = [re.search(rf'\b{name}="(\d+)"', info) for name in ("num_gpu_blocks", "block_size")]
    if not all(sizes):
        return max(CLOSED)
    blocks, size = (int(found[1]) for found in sizes if found)
    return max(blocks * size // tokens, 1)


def _get(address: str) -> Any:
    return json.loads(_text(address))


def _text(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=5) as answer:
        return str(answer.read().decode())
