"""Other tools' files of a simulated run: printed tables, sweeps, llmperf and LPG."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from served_load import Served

#: Latency of a result file -> what is printed for it.
_PRINTED = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


def printed_table(values: dict[str, Any]) -> str:
    """Return the console output of ``vllm bench serve`` for a result file."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    labels = {
        "Successful requests:": values["completed"],
        "Failed requests:": values["failed"],
        "Maximum request concurrency:": values["max_concurrency"],
        "Request rate configured (RPS):": values["request_rate"],
        "Benchmark duration (s):": f"{values['duration']:.2f}",
        "Total input tokens:": values["total_input_tokens"],
        "Total generated tokens:": values["total_output_tokens"],
        "Request throughput (req/s):": f"{values['request_throughput']:.2f}",
        "Peak concurrent requests:": "32.00",
    }
    lines += [f"{k:<40} {v:<10}" for k, v in labels.items() if v not in (None, "inf")]
    for latency, name in _PRINTED.items():
        for statistic in ("mean", "median", "p99"):
            if (value := values.get(f"{statistic}_{latency}_ms")) is not None:
                label = f"{statistic.capitalize()} {name} (ms):"
                lines.append(f"{label:<40} {value:<10.2f}")
    return "\n".join([*lines, "=" * 50, ""])


def sweep_table(runs: list[dict[str, Any]]) -> str:
    """The ``summary.csv`` of a sweep, whose first column is the number of the row."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["", *runs[0]])
    writer.writeheader()
    writer.writerows({"": number, **run} for number, run in enumerate(runs))
    return out.getvalue()


def llmperf(of: Served) -> str:
    """A summary of ``token_benchmark_ray.py``."""
    values: dict[str, Any] = {
        "version": "2023-08-31", "name": "summary", "model": of.model,
        "mean_input_tokens": 1, "stddev_input_tokens": 0, "mean_output_tokens": 1,
        "stddev_output_tokens": 0, "num_concurrent_requests": of.load.concurrency,
        "results_number_input_tokens_mean": str(of.load.prompt.mean),
        "results_number_output_tokens_mean": of.load.output.mean,
        "results_num_requests_started": of.load.requests, "results_number_errors": 0,
        "results_num_completed_requests": of.load.requests,
        "results_num_completed_requests_per_min": 60 * of.figures["requests_per_s"],
        "results_mean_output_throughput_token_per_s": of.figures["output_tokens_per_s"],
        "results_inter_token_latency_s_mean": of.figures["e2e_mean_s"] / of.load.output.mean,
    }  # fmt: skip
    for latency, spelled in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s")):
        values[f"results_{spelled}_mean"] = of.figures[f"{latency}_mean_s"]
        for p in ("p50", "p90", "p95", "p99"):
            values[f"results_{spelled}_quantiles_{p}"] = of.figures[f"{latency}_{p}_s"]
    return json.dumps(values)


def latency_profile(of: Served) -> str:
    """A report of the latency profile generator."""
    metrics: dict[str, Any] = {
        "benchmark_time": of.duration_s, "throughput_rps": of.figures["requests_per_s"],
        "throughput": of.figures["output_tokens_per_s"],
        "total_output_token": of.output_tokens, "total_input_tokens": of.prompt_tokens,
        "num_prompts_attempted": of.load.requests, "num_prompts_succeeded": of.load.requests,
    }  # fmt: skip
    for latency, spelled in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "latency")):
        for theirs, ours in (("avg", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99")):
            metrics[f"{theirs}_{spelled}_ms"] = of.milliseconds(latency, ours)
    server = {"model": of.model, "num_models": 1, "model_server": "vllm"}
    dimensions = {"model_id": of.model, "backend": "vllm"}
    return json.dumps({"metrics": metrics, "dimensions": dimensions, "config": server})
