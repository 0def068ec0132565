"""Pages that an engine would have written of a simulated run: counters, steps and spans."""

from __future__ import annotations

import json

from served_load import Served

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout


def metrics_pages(of: Served, before: tuple[float, float] = (77.5, 1000.0)) -> tuple[str, str]:
    """A page before and after the load; sums and counts of what the server had served before."""
    r, n = of.run.requests, of.load.requests
    tokens = of.output_tokens - n
    sums = {
        "time_to_first_token_seconds": (float(r.ttft_s.sum()), n),
        "e2e_request_latency_seconds": (float(r.e2e_s.sum()), n),
        "request_time_per_output_token_seconds": (n * of.figures["tpot_mean_s"], n),
        "inter_token_latency_seconds": (tokens * of.figures["itl_mean_s"], tokens),
        "request_prompt_tokens": (float(of.prompt_tokens), n),
        "request_generation_tokens": (float(of.output_tokens), n),
    }
    blocks = kv_layout(of.deployment, EngineSpec()).blocks + 1
    labels = f'{{engine="0",model_name="{of.model}"}}'

    def page(done: bool) -> str:
        lines = [
            "process_start_time_seconds 1.7713e+09",
            f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching='
            f'"True",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="{blocks}"}} 1.0',
            f"vllm:kv_cache_usage_perc{labels} 0.0",
        ]
        for name, (total, count) in sums.items():
            lines.append(f"vllm:{name}_sum{labels} {before[0] + total * done!r}")
            lines.append(f"vllm:{name}_count{labels} {before[1] + count * done!r}")
            lines.append(f'vllm:{name}_bucket{{le="+Inf",model_name="{of.model}"}} 9e9')
        return "\n".join(lines) + "\n"

    return page(False), page(True)


def iteration_log(of: Served) -> str:
    """vLLM's log of the run, with flags at its top."""
    serving = of.deployment.serving
    cache = kv_layout(of.deployment, EngineSpec())
    lines = [
        "INFO 02-17 16:25:01 [utils.py:233] non-default args: "
        f"{{'model': '{of.model}', 'tensor_parallel_size': {serving.tensor_parallel_size}, "
        "'enable_logging_iteration_details': True}",
        "INFO 02-17 16:25:02 [core.py:77] Initializing a V1 LLM engine (v0.15.1) with config: "
        f"model='{of.model}', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, "
        f"tensor_parallel_size={serving.tensor_parallel_size}, pipeline_parallel_size=1, "
        "data_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto",
        "INFO 02-17 16:25:40 [kv_cache_utils.py:1305] GPU KV cache size: "
        f"{cache.blocks * of.deployment.recipe.block_tokens:,} tokens",
    ]
    now = 0.0
    steps = of.run.steps
    for i in range(len(steps)):
        now += float(steps["duration_s"][i])
        prefills = int(steps["prefill_requests"][i])
        decodes = int(steps["requests"][i]) - prefills
        minute, second = divmod(int(now), 60)
        tokens = int(steps["tokens"][i]) - decodes
        lines.append(
            f"(EngineCore_DP0 pid=7) INFO 02-17 16:{30 + minute}:{second:02d} [core.py:357] "
            f"Iteration({i}): {prefills} context requests, {tokens} context tokens, {decodes} "
            f"generation requests, {decodes} generation tokens, iteration elapsed time: "
            f"{1e3 * float(steps['duration_s'][i]):.2f} ms"
        )
    return "\n".join(lines) + "\n"


def request_spans(of: Served) -> str:
    """OTLP-JSON lines of stock vLLM."""
    r, lines = of.run.requests, []
    for i in range(len(r)):
        start = 1_771_343_000_000_000_000 + int(1e9 * r.arrival_s[i])
        numbers = {
            "gen_ai.latency.time_to_first_token": float(r.ttft_s[i]),
            "gen_ai.latency.e2e": float(r.e2e_s[i]),
        }
        counts = {
            "gen_ai.usage.prompt_tokens": int(r.prompt_tokens[i]),
            "gen_ai.usage.completion_tokens": int(r.output_tokens[i]),
        }
        attributes = [
            {"key": "gen_ai.response.model", "value": {"stringValue": of.model}},
            *({"key": k, "value": {"doubleValue": v}} for k, v in numbers.items()),
            *({"key": k, "value": {"intValue": str(v)}} for k, v in counts.items()),
        ]
        span = {"name": "llm_request", "spanId": f"{i:016x}", "startTimeUnixNano": str(start),
                "attributes": attributes}  # fmt: skip
        scope = {"scope": {"name": "vllm.llm_engine"}, "spans": [span]}
        lines.append(json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}))
    return "\n".join(lines) + "\n"
