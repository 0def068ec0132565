"""Files that the pages take for granted, made small when a command names them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from assumed_priors import prior_coefficients
from benchmark_files import vllm_bench
from engine_pages import metrics_pages
from evaluations import write_evaluation
from finished_plans import plan
from served_load import served
from synthetic_engine import Arrival, EngineLimits, run_engine
from trace_writer import WriterOptions, write_traces

import pinn
from pinn.planning.plan_files import write_files
from pinn.simulator.linear_latency import LinearLatency
from pinn.training.data.silicon import read_silicon

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8,
    "intermediate_size": 1024, "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip
FEW_CANDIDATES = {
    "gpus_per_machine": 8,
    "grid": {
        "tensor_parallel_size": [1, 2], "pipeline_parallel_size": [1, 2],
        "max_num_batched_tokens": [8192], "max_num_seqs": [128],
    },
    "pools": {"prefill": ["2x tp=1"], "decode": ["1x tp=2"]},
}  # fmt: skip
FEW_PREDICTED = "gpu == 'b200_sxm' and output_tokens == 8192 and concurrency in (4, 32)"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{i:02}.5,{374 + i},{9 + i}\n" for i in range(40)
)
TEXTS = [{"conversations": [{"from": f, "value": f * 90} for f in ("human", "gpt") * 3]}] * 50
LOAD = "{prompt_tokens: 256, output_tokens: 16, stages: [{rate: 4, duration: 20}]}"


def _latency(deployment):
    found = prior_coefficients(1)
    return LinearLatency(deployment, found.beta[0] * 1.3, found.alpha[0])


def _traces(path: Path) -> None:
    arrivals = [Arrival(0.05 * i, 60 + 7 * (i % 40), 10 + i % 50) for i in range(150)]
    limits = EngineLimits(blocks=28_138)  # what fits Llama-3.1-8B on an H100
    run = run_engine(arrivals, lambda batch: 8e-3 + 3e-5 * len(batch), limits)
    write_traces(run, path, WriterOptions(step_sampling=0.5))


def _results(folder: Path) -> None:
    folder.mkdir()
    for clients in (4, 16):
        of = served(_latency, clients, requests=40)
        (folder / f"c{clients}.json").write_text(json.dumps(vllm_bench(of)))


def _pages(path: Path) -> None:
    of = served(_latency, requests=32)
    for name, text in zip(("before.txt", "after.txt"), metrics_pages(of), strict=True):
        (path.parent / name).write_text(text)


def _adapter(folder: Path) -> None:
    folder.mkdir()
    base = {"base_model_name_or_path": "Qwen/Qwen3-8B", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(base))


def _checkpoint(path: Path) -> None:
    shutil.copy(os.environ["PINN_CHECKPOINT"], path)


def _coefficients(path: Path) -> None:
    pinn.predict("meta-llama/Llama-3.1-8B", "H100").save(path)


def _predictions(path: Path) -> None:
    """The shipped folds' predictions of one kind of load on one GPU."""
    observations, _ = read_silicon()
    kept = observations.query(FEW_PREDICTED)["row_id"]
    shipped = pd.read_csv(Path(__file__).parents[2] / "checkpoints" / "pinn.predictions.csv")
    shipped[shipped["row_id"].isin(kept)].to_csv(path, index=False)


#: Name -> what writes it, in the order in which they need each other.
FILES: dict[str, Callable[[Path], object]] = {
    "config.json": lambda path: path.write_text(json.dumps(CONFIG | {"head_dim": 0})),
    "load.yaml": lambda path: path.write_text(LOAD),
    "azure.csv": lambda path: path.write_text(AZURE),
    "sharegpt.json": lambda path: path.write_text(json.dumps(TEXTS)),
    "few.yaml": lambda path: path.write_text(json.dumps(FEW_CANDIDATES)),
    "few.csv": _predictions,
    "candidates.csv": lambda path: path.write_text("model,gpu\nLlama-3.1-8B,H100\n"),
    "my-adapter": _adapter,
    "traces.json": _traces,
    "checkpoints/pinn.safetensors": _checkpoint,
    "results/moe_ep": write_evaluation,
    "results/mine": write_evaluation,
    "results/mine/checkpoint.safetensors": _checkpoint,
    "results/": _results,
    "before.txt": _pages,
    "before.json": _coefficients,
    "after.json": _coefficients,
    "server.json": _coefficients,
    "plan/plan.json": lambda path: write_files(plan(), path.parent),
}


def make_files(text: str, folder: Path) -> None:
    """Make the files that a text names and that are not there yet."""
    for name, write in FILES.items():
        path = folder / name
        if name in text and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
