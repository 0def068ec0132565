"""Time vLLM's own sampler on a CUDA GPU, and write the table of times.

    python scripts/time_sampler.py data/kernels/sampler_h100_sxm.csv

The operations follow vLLM 0.15.1 (``vllm/v1/sample``: ``sampler.py``, ``ops/penalties.py``,
``ops/topk_topp_sampler.py``); the repetition kernel of ``csrc/sampler.cu`` is rewritten in Triton.
They run in a CUDA graph, which excludes launches by the host; ``eager_seconds`` includes launches.
The script needs a CUDA build of PyTorch with Triton.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARIES = (32_000, 128_256, 152_064)
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
#: Combinations of sampling settings to time; the empty combination is greedy sampling.
SETTINGS = (
    (),
    ("draw",),
    ("draw", "top-p"),
    ("draw", "top-k"),
    ("draw", "top-k", "top-p"),
    ("draw", "min-p"),
    ("draw", "penalties"),
    ("draw", "penalties", "top-k", "top-p"),
)
TOP_K = 20
PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 512
WARM_UPS, REPEATS = 3, 20
_BLOCK = 1024


@triton.jit
def _repetition_kernel(logits, in_prompt, in_output, penalty, vocabulary, block: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    inside, place = column < vocabulary, row * vocabulary + column
    seen = tl.load(in_prompt + place, inside, other=0) | tl.load(in_output + place, inside, other=0)
    hit = inside & (seen != 0)
    value, factor = tl.load(logits + place, hit, other=0.0), tl.load(penalty + row)
    tl.store(logits + place, tl.where(value > 0, value / factor, value * factor), hit)


def drawn(requests: int, vocabulary: int) -> SimpleNamespace:
    """Return sampling settings and tokens of a step's requests, as vLLM's sampler expects them.

    Tokens are random. The values of the settings do not affect times.
    """

    def every(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((requests,), value, device="cuda", dtype=dtype)

    prompts, outputs = (
        torch.randint(0, vocabulary, (requests, length), device="cuda")
        for length in (PROMPT_TOKENS, OUTPUT_TOKENS)
    )
    return SimpleNamespace(
        prompts=prompts, outputs=outputs, penalty=every(1.05), nothing=every(0.0),
        temperature=every(0.7), top_k=every(TOP_K, torch.int32), top_p=every(0.8),
        min_p=every(0.05),
    )  # fmt: skip


def sample(logits: Tensor, requests: SimpleNamespace, settings: Sequence[str]) -> Tensor:
    """Return tokens sampled from logits in bf16, ``[requests, vocabulary]``."""
    values = logits.to(torch.float32)
    if "penalties" in settings:
        values = _penalized(values, requests)
    if "draw" not in settings:
        return values.argmax(-1)
    values.div_(requests.temperature.unsqueeze(1))
    if "min-p" in settings:
        shares = values.softmax(dim=-1)
        least = shares.amax(dim=-1, keepdim=True) * requests.min_p.unsqueeze(1)
        values.masked_fill_(shares < least, -float("inf"))
    if "top-p" in settings:
        top_k = requests.top_k if "top-k" in settings else None
        values = _limited(values, top_k, requests.top_p)
    elif "top-k" in settings:
        least = values.topk(TOP_K, dim=1).values.gather(1, requests.top_k.long().unsqueeze(1) - 1)
        values.masked_fill_(values < least, -float("inf"))
    shares = values.softmax(dim=-1, dtype=torch.float32)
    noise = torch.empty_like(shares).exponential_()
    return shares.div_(noise).argmax(dim=-1)


def _penalized(values: Tensor, requests: SimpleNamespace) -> Tensor:
    rows, vocabulary = values.shape
    _, in_prompt = _counts(requests.prompts, vocabulary)
    counts, in_output = _counts(requests.outputs, vocabulary)
    grid = (rows, triton.cdiv(vocabulary, _BLOCK))
    _repetition_kernel[grid](
        values, in_prompt.view(torch.uint8), in_output.view(torch.uint8), requests.penalty,
        vocabulary, block=_BLOCK,
    )  # fmt: skip
    values -= requests.nothing.unsqueeze(1) * counts
    values -= requests.nothing.unsqueeze(1) * in_output
    return values


def _counts(tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    counts = torch.zeros((len(tokens), vocabulary + 1), dtype=torch.long, device="cuda")
    counts.scatter_add_(1, tokens, torch.ones_like(tokens))
    counts = counts[:, :vocabulary]
    return counts, (counts > 0).contiguous()


def _limited(values: Tensor, top_k: Tensor | None, top_p: Tensor) -> Tensor:
    ordered, index = values.sort(dim=-1, descending=False)
    if top_k is not None:
        least = ordered.gather(1, (ordered.size(1) - top_k.long()).unsqueeze(1))
        ordered.masked_fill_(ordered < least, -float("inf"))
    shares = ordered.softmax(dim=-1)
    below = torch.cumsum(shares, dim=-1, out=shares) <= 1 - top_p.unsqueeze(1)
    below[:, -1] = False
    ordered.masked_fill_(below, -float("inf"))
    return ordered.scatter(dim=-1, index=index, src=ordered)


def seconds(run: Callable[[], object]) -> float:
    """Return the mean GPU time of a call in seconds, over repeated calls."""
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPEATS):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / REPEATS / 1000


def rows() -> Iterator[dict[str, object]]:
    """Yield a row of times for each combination of settings, vocabulary and requests."""
    for vocabulary, count in product(VOCABULARIES, REQUESTS):
        logits = torch.randn(count, vocabulary, device="cuda", dtype=torch.bfloat16) * 3
        requests = drawn(count, vocabulary)
        for settings in SETTINGS:
            run = partial(sample, logits, requests, settings)
            yield {
                "settings": " ".join(settings) or "greedy",
                "vocabulary": vocabulary,
                "requests": count,
                "seconds": f"{seconds(_captured(run)):.4g}",
                "eager_seconds": f"{seconds(run):.4g}",
            }


def _captured(run: Callable[[], object]) -> Callable[[], None]:
    """Capture a call as a CUDA graph, and return a function that replays the graph."""
    seconds(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: expected the CSV to write: python scripts/time_sampler.py FILE.csv")
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA GPU here: sampling is timed on the GPU that it is for")
    print(torch.cuda.get_device_name(), file=sys.stderr)
    pd.DataFrame(rows()).to_csv(Path(sys.argv[1]), index=False)
