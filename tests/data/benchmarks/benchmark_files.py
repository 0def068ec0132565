"""Files that benchmark tools would have written of a simulated run: one writer per kind."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from engine_pages import iteration_log, metrics_pages, request_spans
from other_files import latency_profile, llmperf, printed_table, sweep_table
from served_load import Served


def vllm_bench(of: Served, detailed: bool = False) -> dict[str, Any]:
    values = {
        "date": "20260217-162547", "endpoint_type": "openai", "backend": "vllm", "label": None,
        "model_id": of.model, "tokenizer_id": of.model, "num_prompts": of.load.requests,
        "request_rate": of.load.rate_per_s or "inf", "burstiness": 1.0,
        "max_concurrency": of.load.concurrency, "duration": of.duration_s,
        "completed": of.load.requests, "failed": 0, "total_input_tokens": of.prompt_tokens,
        "total_output_tokens": of.output_tokens,
        "request_throughput": of.figures["requests_per_s"],
        "output_throughput": of.figures["output_tokens_per_s"],
    }  # fmt: skip
    for latency in ("ttft", "tpot", "itl"):
        for theirs, ours in (("mean", "mean"), ("median", "p50"), ("p99", "p99")):
            values[f"{theirs}_{latency}_ms"] = of.milliseconds(latency, ours)
        values[f"std_{latency}_ms"] = 0.1
    if detailed:
        r = of.run.requests
        gaps = (r.e2e_s - r.ttft_s) / np.maximum(r.output_tokens - 1, 1)
        values |= {
            "input_lens": r.prompt_tokens.tolist(), "output_lens": r.output_tokens.tolist(),
            "ttfts": r.ttft_s.tolist(), "errors": [""] * len(r),
            "itls": [[float(g)] * int(n - 1) for g, n in zip(gaps, r.output_tokens, strict=True)],
            "start_times": (8e3 + r.arrival_s).tolist(),
        }  # fmt: skip
    return values


def sglang_bench(of: Served) -> dict[str, Any]:
    serving, recipe = of.deployment.serving, of.deployment.recipe
    values = {
        "tag": None, "backend": "sglang", "dataset_name": "random", "max_concurrency":
        of.load.concurrency, "request_rate": of.load.rate_per_s or float("inf"),
        "sharegpt_output_len": None, "random_input_len": round(2 * of.load.prompt.mean),
        "random_output_len": round(2 * of.load.output.mean), "random_range_ratio": 0.0,
        "duration": of.duration_s, "completed": of.load.requests,
        "total_input_tokens": of.prompt_tokens, "total_output_tokens": of.output_tokens,
        "total_output_tokens_retokenized": of.output_tokens - 3,
        "request_throughput": of.figures["requests_per_s"],
        "output_throughput": of.figures["output_tokens_per_s"], "accept_length": None,
        "concurrency": 1.0, "server_info": {
            "model_path": of.model, "tp_size": serving.tensor_parallel_size, "dp_size": 1,
            "pp_size": 1, "ep_size": 1, "chunked_prefill_size": recipe.token_budget,
            "max_running_requests": recipe.max_requests, "disable_radix_cache": False,
            "version": "0.5.9", "internal_states": [{"memory_usage": {"token_capacity": 400_000}}],
        },
    }  # fmt: skip
    for latency, spelled in (("e2e", "e2e_latency"), ("ttft", "ttft"), ("tpot", "tpot")):
        for theirs, ours in (("mean", "mean"), ("median", "p50"), ("p99", "p99")):
            values[f"{theirs}_{spelled}_ms"] = of.milliseconds(latency, ours)
    return values


def aiperf(of: Served) -> dict[str, Any]:
    tags = {"ttft": "time_to_first_token", "tpot": "inter_token_latency",
            "itl": "inter_chunk_latency", "e2e": "request_latency"}  # fmt: skip
    names = {"avg": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    values: dict[str, Any] = {
        tag: {"unit": "ms"} | {k: of.milliseconds(latency, v) for k, v in names.items()}
        for latency, tag in tags.items()
    }
    for tag, column in (("input", "prompt_tokens"), ("output", "output_tokens")):
        lengths = getattr(of.run.requests, column)
        values[f"{tag}_sequence_length"] = {
            "unit": "tokens", "avg": float(lengths.mean()), "min": float(lengths.min()),
            "max": float(lengths.max()), "std": float(lengths.std()),
        }  # fmt: skip
    values |= {
        "request_count": {"unit": "requests", "avg": float(of.load.requests)},
        "request_throughput": {"unit": "requests/sec", "avg": of.figures["requests_per_s"]},
        "output_token_throughput": {
            "unit": "tokens/sec",
            "avg": of.figures["output_tokens_per_s"],
        },
    }
    loadgen = {"concurrency": of.load.concurrency, "request_rate": of.load.rate_per_s,
               "request_rate_mode": "poisson", "request_count": of.load.requests}  # fmt: skip
    return values | {
        "input_config": {"endpoint": {"model_names": [of.model]}, "loadgen": loadgen},
        "was_cancelled": False,
        "telemetry_data": {"endpoints": {"node": {"gpus": {"0": {
            "gpu_name": "NVIDIA H100 80GB HBM3"}}}}},
    }  # fmt: skip


def aiperf_csv(of: Served) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    labels = {"time_to_first_token": "Time to First Token", "inter_token_latency":
              "Inter Token Latency", "request_latency": "Request Latency",
              "input_sequence_length": "Input Sequence Length",
              "output_sequence_length": "Output Sequence Length"}  # fmt: skip
    values = aiperf(of)
    columns = ("avg", "min", "max", "p50", "p99", "std")
    writer.writerow(["Metric", *columns])
    for tag, label in labels.items():
        cells = [values[tag].get(c, "") for c in columns]
        writer.writerow([f"{label} ({values[tag]['unit']})", *cells])
    writer.writerow([])
    writer.writerow(["Metric", "Value"])
    writer.writerow(["Request Count", of.load.requests])
    return out.getvalue()


def guidellm(*points: Served) -> dict[str, Any]:
    def metric(mean: float, percentiles: dict[str, float], **more: float) -> dict[str, Any]:
        count = {"count": points[0].load.requests}
        return {"successful": {"mean": mean, "percentiles": percentiles, **count, **more},
                "errored": {"count": 0}, "incomplete": {"count": 0}}  # fmt: skip

    def benchmark(of: Served) -> dict[str, Any]:
        def latency(name: str, scale: float) -> dict[str, Any]:
            shares = {p: scale * of.figures[f"{name}_{p}_s"] for p in ("p50", "p90", "p95", "p99")}
            return metric(scale * of.figures[f"{name}_mean_s"], shares)

        def lengths(column: str) -> dict[str, Any]:
            each = getattr(of.run.requests, column)
            return metric(float(each.mean()), {}, std_dev=float(each.std()),
                          min=float(each.min()), max=float(each.max()))  # fmt: skip

        if of.load.rate_per_s:
            strategy = {"type_": "poisson", "rate": of.load.rate_per_s}
        else:
            strategy = {"type_": "concurrent", "streams": of.load.concurrency}
        return {
            "type_": "generative_benchmark",
            "config": {"strategy": strategy, "backend": {"model": of.model}},
            "metrics": {
                "request_latency": latency("e2e", 1.0),
                "time_to_first_token_ms": latency("ttft", 1e3),
                "inter_token_latency_ms": latency("tpot", 1e3),
                "time_per_output_token_ms": latency("e2e", 1e3 / of.load.output.mean),
                "prompt_token_count": lengths("prompt_tokens"),
                "output_token_count": lengths("output_tokens"),
                "requests_per_second": metric(of.figures["requests_per_s"], {}),
                "output_tokens_per_second": metric(of.figures["output_tokens_per_s"], {}),
            },
        }

    return {"metadata": {"version": 2}, "benchmarks": [benchmark(of) for of in points]}


def inference_perf(of: Served, folder: Path, halved: bool = True) -> Path:
    """A folder as the tool leaves it."""
    results = folder / "results"
    results.mkdir(parents=True)

    def spread(latency: str, scale: float = 1.0) -> dict[str, float]:
        return {
            "mean": scale * of.figures[f"{latency}_mean_s"],
            "median": scale * of.figures[f"{latency}_p50_s"],
            "p90": scale * of.figures[f"{latency}_p90_s"],
            "p99": scale * of.figures[f"{latency}_p99_s"],
        }

    report = {
        "load_summary": {"count": of.load.requests, "requested_rate": of.load.rate_per_s,
                         "concurrency": of.load.concurrency},
        "successes": {
            "count": of.load.requests,
            "latency": {"request_latency": spread("e2e"), "time_to_first_token": spread("ttft"),
                        "time_per_output_token": spread("tpot", 0.5 if halved else 1.0)},
            "throughput": {"requests_per_sec": of.figures["requests_per_s"]},
            "prompt_tokens": {"total": of.prompt_tokens,
                              "mean": of.prompt_tokens / of.load.requests},
            "output_len": {"mean": 0.9 * of.load.output.mean},
        },
        "failures": {"count": 0},
    }  # fmt: skip
    (results / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    (results / "config.yaml").write_text(yaml.safe_dump({
        "data": {"type": "shared_prefix", "shared_prefix": {
            "num_groups": 10, "num_prompts_per_group": of.load.requests // 10,
            "system_prompt_len": 0, "output_len": round(of.load.output.mean)}},
        "server": {"ignore_eos": True, "model_name": of.model},
        "load": {"stages": [{"rate": of.load.rate_per_s, "duration": 60}]},
    }))  # fmt: skip
    return folder


def inferencex(of: Served) -> dict[str, Any]:
    engine, image = {
        "vllm": ("vllm", "vllm/vllm-openai:v0.15.1"),
        "sglang": ("sglang", "lmsysorg/sglang:v0.5.9-cu129"),
        "trtllm": ("trt", "nvcr.io#nvidia/tensorrt-llm/release:1.2.0rc4"),
    }[of.deployment.serving.engine]
    values = {
        "hw": "h100", "conc": of.load.concurrency, "image": image,
        "model": of.model, "framework": engine, "precision": "bf16", "spec_decoding": "none",
        "disagg": False, "isl": round(of.load.prompt.mean / 0.9),
        "osl": round(of.load.output.mean / 0.9),
        "tp": of.deployment.serving.tensor_parallel_size, "ep": 1, "dp_attention": "false",
        "output_tput_per_gpu": of.figures["output_tokens_per_s"]
        / of.deployment.serving.tensor_parallel_size,
    }  # fmt: skip
    for latency, spelled in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el")):
        for theirs, ours in (("mean", "mean"), ("median", "p50"), ("p99", "p99")):
            values[f"{theirs}_{spelled}"] = of.figures[f"{latency}_{ours}_s"]
    return values


def llm_d(of: Served, tool: str = "vllm-benchmark") -> dict[str, Any]:
    unit = "ms" if tool in ("vllm-benchmark", "guidellm") else "s"
    scale = 1e3 if unit == "ms" else 1.0

    def latency(name: str) -> dict[str, Any]:
        return {"units": unit if name != "tpot" else f"{unit}/token"} | {
            each: scale * of.figures[f"{name}_{each}_s"] for each in ("mean", "p50", "p90", "p99")
        }

    places = {"time_to_first_token": latency("ttft"), "request_latency": latency("e2e"),
              "inter_token_latency": latency("tpot")}  # fmt: skip
    odd = latency("tpot") | {"mean": scale * of.figures["e2e_mean_s"] / of.load.output.mean}
    places["time_per_output_token"] = odd if tool == "guidellm" else latency("tpot")
    size = of.deployment.serving.tensor_parallel_size
    return {
        "version": "0.2",
        "results": {"request_performance": {"aggregate": {
            "latency": places,
            "requests": {"total": of.load.requests, "failures": 0,
                         "input_length": {"mean": of.load.prompt.mean, "units": "count"},
                         "output_length": {"mean": of.load.output.mean, "units": "count"}},
            "throughput": {"request_rate": {"mean": of.figures["requests_per_s"]},
                           "output_token_rate": {"mean": of.figures["output_tokens_per_s"]}},
        }}},
        "scenario": {
            "load": {"standardized": {"tool": tool, "concurrency": of.load.concurrency,
                                      "rate_qps": of.load.rate_per_s}},
            "stack": [{
                "native": {"args": {"--tensor-parallel-size": size, "--enforce-eager": None}
                           if of.deployment.serving.enforce_eager
                           else {"--tensor-parallel-size": size}},
                "standardized": {
                    "kind": "inference_engine", "replicas": 1, "model": {"name": of.model},
                    "tool": "vllm", "tool_version": "0.15.1",
                    "accelerator": {"model": "NVIDIA-H100-80GB-HBM3", "count": size,
                                    "parallelism": {"tp": size, "dp": 1, "pp": 1, "ep": 1}}},
            }],
        },
    }  # fmt: skip


def write(of: Served, kind: str, folder: Path) -> list[Path]:
    """Write a run as a kind of file; what to read."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, Callable[[], str]] = {
        "vllm bench": lambda: json.dumps(vllm_bench(of)),
        "vllm bench, detailed": lambda: json.dumps(vllm_bench(of, detailed=True)),
        "sglang": lambda: json.dumps(sglang_bench(of)) + "\n",
        "aiperf": lambda: json.dumps(aiperf(of), indent=2),
        "aiperf csv": lambda: aiperf_csv(of),
        "guidellm": lambda: json.dumps(guidellm(of)),
        "InferenceX": lambda: json.dumps(inferencex(of)),
        "llm-d": lambda: json.dumps(llm_d(of)),
        "printed table": lambda: printed_table(vllm_bench(of)),
        "sweep table": lambda: sweep_table([vllm_bench(of)]),
        "llmperf": lambda: llmperf(of),
        "latency profile": lambda: latency_profile(of),
        "log": lambda: iteration_log(of),
        "spans": lambda: request_spans(of),
    }
    if kind == "inference-perf":
        return [inference_perf(of, folder)]
    if kind == "metrics pages":
        paths = [folder / "before.txt", folder / "after.txt"]
        for path, text in zip(paths, metrics_pages(of), strict=True):
            path.write_text(text)
        return paths
    path = folder / "file"
    path.write_text(texts[kind]())
    return [path]


KINDS = (
    "vllm bench", "vllm bench, detailed", "sglang", "aiperf", "aiperf csv", "guidellm",
    "inference-perf", "InferenceX", "llm-d", "printed table", "sweep table", "llmperf",
    "latency profile", "metrics pages", "log", "spans",
)  # fmt: skip

#: Options that a kind needs beside a closed loop's file.
ASKED = {
    "aiperf csv": {"concurrency": 16},
    "latency profile": {"concurrency": 16},
    "metrics pages": {"concurrency": 16},
    "spans": {"concurrency": 16},
}
