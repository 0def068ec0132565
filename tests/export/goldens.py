"""Golden vectors: cases with results of this program, for programs in other languages.

``make goldens`` writes them from the checkpoint in the repository; nothing is typed by hand.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinn.common.files import file_sha256
from pinn.engines.configurations import expand_grid, make_deployments
from pinn.export.configured import Configured, from_checkpoint, with_coefficient_files
from pinn.export.table import export_table, table_json, write_table_file
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import COST_NAMES
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch
from pinn.specs.model import GREEDY
from pinn.specs.serving import SGLANG, TRTLLM
from pinn.surrogate.checkpoint import registry
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import STEP_FEATURES, step_time

#: Dense, mixture-of-experts, latent-attention and windowed models.
MODELS = (
    "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.3-70B-Instruct", "codellama/CodeLlama-34b-hf",
    "Qwen/Qwen3-30B-A3B", "mistralai/Mixtral-8x7B-v0.1", "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V2-Lite", "moonshotai/Kimi-K2.5", "MiniMaxAI/MiniMax-M2.5",
    "google/gemma-2-9b", "google/gemma-3-12b-it", "mistralai/Mistral-7B-v0.1",
)  # fmt: skip
#: Recurrent, sparse and cross attention.
OTHER_MIXERS = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3.2", "tiiuae/Falcon-H1-7B-Instruct", "ai21labs/Jamba-v0.1",
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
)  # fmt: skip
#: Two stages without CUDA graphs, and weights partly in host memory.
EAGER: dict[str, Any] = {
    "gpu": "L40S", "tensor_parallel_size": 4, "enforce_eager": True, "pipeline_parallel_size": 2,
    "cpu_offload_gb": 3.5, "max_model_len": 2048, "enable_prefix_caching": False,
}  # fmt: skip
GRIDS: tuple[dict[str, Any], ...] = (
    {"model": list(MODELS), "gpu": "H100", "tensor_parallel_size": [1, 2, 4, 8]},
    {
        "model": list(MODELS), "gpu": "H200", "tensor_parallel_size": [1, 4],
        "data_parallel_size": [1, 4], "enable_expert_parallel": True, "kv_cache_dtype": "fp8",
    },
    {"model": list(MODELS[:5]), "precision": "fp8", **EAGER},
    {"model": MODELS[5], **EAGER},  # mxfp4 is gpt-oss's only format
    {"model": list(MODELS[6:]), "precision": "fp8", **EAGER},
    {"model": list(OTHER_MIXERS), "gpu": "H200", "tensor_parallel_size": [4, 8]},
    {
        "model": list(MODELS[:4]), "gpu": "H100", "tensor_parallel_size": 4,
        "async_scheduling": False,
    },
    # Decode attention and experts by the engines' own kernels.
    {
        "model": ["meta-llama/Llama-3.1-8B", "openai/gpt-oss-120b"], "gpu": "H200",
        "engine": [SGLANG, TRTLLM], "kv_cache_dtype": ["auto", "fp8"],
    },
)  # fmt: skip
#: Every method of drafting; a tree; trees and chains of three engines; windows; a draft with one.
SPECULATING: tuple[dict[str, Any], ...] = (
    {
        "model": "meta-llama/Llama-3.3-70B-Instruct", "gpu": "H100", "tensor_parallel_size": 4,
        "speculative_config": '{"method": "eagle3", "num_speculative_tokens": 3}',
    },
    {
        "model": "meta-llama/Llama-3.3-70B-Instruct", "gpu": "H200", "tensor_parallel_size": 4,
        "speculative_config": '{"model": "meta-llama/Meta-Llama-3.1-8B", '
        '"num_speculative_tokens": 5}',
    },
    {
        "model": "deepseek-ai/DeepSeek-V3", "gpu": "H200", "tensor_parallel_size": 8,
        "speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}',
        "speculative_acceptance": "0.9,0.7",
    },
    {
        "model": "codellama/CodeLlama-34b-hf", "gpu": "H100", "tensor_parallel_size": 2,
        "enforce_eager": True,
        "speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}',
        "speculative_acceptance": "0.45",
    },
    {
        "model": "google/gemma-3-12b-it", "gpu": "L40S",
        "speculative_config": '{"method": "eagle", "num_speculative_tokens": 1}',
        "speculative_acceptance": "0.75",
    },
    {
        "model": "Qwen/Qwen3-30B-A3B", "gpu": "H100", "engine": SGLANG,
        "speculative_config": "EAGLE",
        "speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8,
        "speculative_draft_model_path": "somewhere/eagle", "speculative_acceptance": "0.75",
    },
    {
        "model": "MiniMaxAI/MiniMax-M2.5", "gpu": "B200", "tensor_parallel_size": 4,
        "engine": TRTLLM, "override_generation_config": GREEDY,
        "speculative_config": '{"decoding_type": "MTP", "num_nextn_predict_layers": 3}',
    },
)  # fmt: skip
#: Rows of the table for the BLIS adapter's tests: without and with a window, experts, drafts.
BLIS_ROWS: tuple[dict[str, Any], ...] = (
    *expand_grid(
        {"model": [MODELS[2], MODELS[3], MODELS[10]], "gpu": "H100", "tensor_parallel_size": 2}
    ),
    SPECULATING[2],
)
CASES = 10_000
SPECULATING_CASES = 700
_SEED = 20260821
_WHOLE_FEATURES = 200
_LONGEST = 131_072

MANIFEST, TABLE, CSV_TABLE = "manifest.json", "table.json", "table.csv"
SPECULATING_TABLE, SPECULATING_STEPS = "speculating.json", "speculating_steps.json.gz"
STEPS, PHASES = "steps.json.gz", "phases.json.gz"


def whole_microseconds(seconds: np.ndarray) -> np.ndarray:
    """Return seconds as whole microseconds, rounded half to even as Go's ``math.RoundToEven``.

    >>> whole_microseconds(np.array([1.5e-6, 2.5e-6])).tolist()
    [2, 2]
    """
    return np.asarray(np.rint(seconds * 1e6), dtype=np.int64)


def golden_rows(checkpoint: Path, coefficient_files: Sequence[Path] = ()) -> Configured:
    """Return the configurations of the step and phase cases.

    Args:
        checkpoint: Checkpoint whose network gives the coefficients.
        coefficient_files: Files, such as calibrated ones, that replace the network's coefficients.
    """
    grid = [point for axes in GRIDS for point in expand_grid(axes)]
    kept, deployments, _ = make_deployments(grid, skip_invalid=True)
    configured = from_checkpoint(checkpoint, kept, deployments)
    return with_coefficient_files(configured, coefficient_files)


def speculating_rows(checkpoint: Path) -> Configured:
    """Return configurations whose steps draft and verify."""
    return _configured(checkpoint, SPECULATING)


def _configured(checkpoint: Path, configurations: Sequence[dict[str, Any]]) -> Configured:
    kept, deployments, _ = make_deployments(configurations)
    return from_checkpoint(checkpoint, kept, deployments)


def write_blis_table(checkpoint: Path, folder: Path) -> None:
    """Write the table of the BLIS adapter's tests."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = _configured(checkpoint, BLIS_ROWS)
    (folder / TABLE).write_text(table_json(export_table(rows), rows.provenance))


def random_batch(rng: np.random.Generator) -> tuple[Batch, tuple[int, ...]]:
    """Return a batch and the prompt length of each of its requests.

    It is empty, decodes, prefills, both, or one huge prompt, with up to 128 requests.
    """
    kind = rng.choice(
        ["empty", "decode", "prefill", "mixed", "huge"], p=[0.01, 0.4, 0.2, 0.34, 0.05]
    )
    if kind == "empty":
        return Batch(), ()
    if kind == "huge":
        new = int(np.exp(rng.uniform(np.log(8192), np.log(2**20))))
        return Batch.prefill(1, new), (new,)
    decodes = int(np.exp(rng.uniform(0, np.log(129)))) if kind != "prefill" else 0
    chunks = int(rng.integers(1, 5)) if kind != "decode" else 0
    longest = int(np.exp(rng.uniform(np.log(8), np.log(_LONGEST))))
    rows = []  # new and cached tokens, whether it is a prefill, prompt
    for _ in range(decodes):
        context = int(rng.integers(longest // 2, longest + 1))
        rows.append((1, context, False, int(context * rng.random())))
    for _ in range(chunks):
        new = int(np.exp(rng.uniform(0, np.log(8192))))
        cached = int(rng.choice([0, 16 * int(rng.integers(0, longest // 8 + 1))]))
        rest = int(rng.choice([0, int(rng.integers(1, 5000))]))
        rows.append((new, cached, True, cached + new + rest))
    new_tokens, cached_tokens, is_prefill, prompts = zip(*rows, strict=True)
    return Batch(new_tokens, cached_tokens, is_prefill), prompts


def step_cases(configured: Configured, count: int = CASES, seed: int = _SEED) -> list[dict]:
    """Return batches with their step times and features by this program.

    A case has ``row`` of the table; ``batch``, three numbers per request (ProgressIndex,
    NumNewTokens, InputLen); ``seconds`` and ``us`` of the step; and ``terms``, every feature as a
    whole number (microseconds, or its count). The first cases also have the ``features``.
    """
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(configured), count)
    drawn = [random_batch(rng) for _ in range(count)]
    features = np.empty((count, len(STEP_FEATURES)))
    for row, deployment in enumerate(configured.deployments):
        mine = np.flatnonzero(rows == row)
        if len(mine):
            sums = sum_batches([drawn[i][0] for i in mine], deployment.model.window_tokens)
            features[mine] = padded_features(deployment, sums)
    seconds = step_time(features, configured.coefficients.beta[rows])
    scale = np.array([1e6 if f.unit == "1" else 1.0 for f in STEP_FEATURES.values()])
    terms = np.rint(features * scale).astype(np.int64)
    steps = np.maximum(whole_microseconds(seconds), 1)
    return [
        {
            "row": int(rows[i]),
            "batch": _requests(*drawn[i]),
            "seconds": float(seconds[i]),
            "us": int(steps[i]),
            "terms": terms[i].tolist(),
            **({"features": features[i].tolist()} if i < _WHOLE_FEATURES else {}),
        }
        for i in range(count)
    ]


def _requests(batch: Batch, prompts: Sequence[int]) -> list[int]:
    rows = zip(batch.cached_tokens, batch.new_tokens, prompts, strict=True)
    return [number for row in rows for number in row]


def phase_cases(configured: Configured, per_row: int = 4) -> list[dict]:
    """Return requests with the microseconds of every method by this program."""
    rng = np.random.default_rng(_SEED)
    found = []
    for row, deployment in enumerate(configured.deployments):
        beta, alpha = configured.coefficients.beta[row], configured.coefficients.alpha[row]
        latency = LinearLatency(deployment, beta, alpha)
        prompts = rng.integers(1, _LONGEST, per_row).tolist()
        found += [_phase_case(row, latency, prompt) for prompt in prompts]
    return found


def _phase_case(row: int, latency: LinearLatency, prompt: int) -> dict[str, Any]:
    seconds = {
        "queueing": latency.queueing_time(prompt),
        "scheduling": latency.scheduling_processing_time(prompt),
        "output_token": latency.output_token_processing_time(),
        "completion": latency.post_decode_fixed_overhead(),
        "preemption": latency.preemption_processing_time(prompt),
    }
    times = {name: int(whole_microseconds(np.array(value))) for name, value in seconds.items()}
    return {"row": row, "prompt": prompt, "us": times}


def manifest(checkpoint: Path) -> dict[str, Any]:
    """Return the inputs of the golden vectors, which a test compares with today's."""
    return {
        "command": "make goldens",
        "checkpoint_sha256": file_sha256(checkpoint),
        "registry": registry() | {"costs": list(COST_NAMES)},
        "cases": {"steps": CASES, "seed": _SEED},
    }


def write_goldens(checkpoint: Path, folder: Path, coefficient_files: Sequence[Path] = ()) -> None:
    """Write all golden files.

    Args:
        checkpoint: Checkpoint whose network gives the coefficients.
        folder: Folder of the files.
        coefficient_files: Files that replace the network's coefficients where they belong.

    Raises:
        PinnError: If the checkpoint or a file cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configured = golden_rows(checkpoint, coefficient_files)
    table = export_table(configured)
    (folder / TABLE).write_text(table_json(table, configured.provenance))
    write_table_file(table, configured.provenance, folder / CSV_TABLE)
    _write_lines(folder / STEPS, step_cases(configured))
    speculating = speculating_rows(checkpoint)
    text = table_json(export_table(speculating), speculating.provenance)
    (folder / SPECULATING_TABLE).write_text(text)
    _write_lines(folder / SPECULATING_STEPS, step_cases(speculating, SPECULATING_CASES))
    _write_lines(folder / PHASES, phase_cases(configured))
    (folder / MANIFEST).write_text(json.dumps(manifest(checkpoint), indent=1) + "\n")


def _write_lines(path: Path, cases: Sequence[dict[str, Any]]) -> None:
    text = "\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
