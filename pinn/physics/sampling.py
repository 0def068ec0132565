"""What a sampler takes: bytes moved by the kernels of vLLM's own, and how long those took.

vLLM 0.15.1 samples with PyTorch's operators, one kernel each, every one of which reads and writes
all logits of all requests of the step; FlashInfer's sampler has to be asked for
(``VLLM_USE_FLASHINFER_SAMPLER``). A kernel's bytes are those of its operands and results per
logit: 4 in fp32, 8 in int64, 1 for a mask; a row that a softmax reads again comes from the cache.

How far the kernels are from the datasheet's bandwidth, and what they take whatever the batch, was
timed on an H100 (``python scripts/time_sampler.py``, ``data/kernels/sampler_h100_sxm.csv``) and
fitted with non-negative terms (``python scripts/fit_sampler.py``, 11 % off in the mean over 240
points). Other GPUs are assumed to be as far from their bandwidth. Not counted is what the host
prepares beside a running step: the ids of all output tokens for penalties.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pinn.specs.sampling import Sampling

#: bf16 logits become fp32 (``vllm/v1/sample/sampler.py: forward``).
_COPY = 2 + 4
#: The largest one (``greedy_sample``, and the end of ``random_sample``).
_LARGEST = 4
_SOFTMAX = 4 + 4
#: Division by the temperature, softmax, exponential noise, division by it (``random_sample``).
_DRAW = (4 + 4) + _SOFTMAX + 4 + (4 + 4 + 4)
#: Comparison to a mask, then ``masked_fill_``.
_MASK = (4 + 1) + (4 + 1 + 4)
#: ``apply_top_k_only``: ``topk`` reads all logits once per 8 bits of the key and once to gather.
_COUNT = 5 * 4 + _MASK
#: A radix sort of fp32 keys with (row, index) pairs of 8 bytes: numbering, a histogram, four
#: passes over keys and pairs, a histogram and one pass over the pairs by row, then values and int64
#: indices (PyTorch, ``aten/src/ATen/native/cuda/SortStable.cu: segmented_sort_pairs_by_full_sort``,
#: for fewer than 128 rows, on CUB's radix sort of 8 bits at a time).
_SORT = 8 + 4 + 4 * 2 * (4 + 8) + (8 + 2 * 8) + (8 + 4 + 4 + 8)
#: ``apply_top_k_top_p``: sort, softmax, running sum, mask, and a copy scattered back by index.
_MASS = _SORT + _SOFTMAX + (4 + 4) + _MASK + (4 + 4) + (4 + 8 + 4)
#: ``MinPLogitsProcessor``: softmax, its largest, mask.
_RATIO = _SOFTMAX + 4 + _MASK
#: ``apply_penalties``: counts in int64 cleared and compared, of the prompt and of the output; the
#: repetition kernel, which reads both masks and few logits; presence and frequency penalties, which
#: are computed with it in any case.
_PENALTIES = 2 * (8 + 8 + 1) + (1 + 1) + (8 + 4 + 4 + 4 + 4) + (1 + 4 + 4 + 4 + 4)


@dataclass(frozen=True)
class SamplerKernels:
    """Kernels that a setting of the sampler asks for.

    Attributes:
        logit_bytes: Bytes read and written per logit.
        slowdown: Their time over that of the bytes at the datasheet's bandwidth.
        launch_s: What they take whatever the batch and the vocabulary.
        logit_s: What a block takes for a logit of its row; rows are worked on side by side.
    """

    logit_bytes: float
    slowdown: float
    launch_s: float
    logit_s: float


#: Two digits of ``scripts/fit_sampler.py``: what takes the likeliest token, and what drawing, a
#: top-p, a top-k beside it or alone, a min-p and penalties add.
TAKEN = SamplerKernels(_COPY + _LARGEST, 1.4, 1.1e-5, 2.5e-11)
DRAWN = SamplerKernels(_DRAW, 1.2, 1.1e-5, 2.7e-10)
MASS = SamplerKernels(_MASS, 2.1, 7.5e-5, 7.8e-10)
COUNT_BESIDE_MASS = SamplerKernels(_MASK, 0.81, 1.2e-5, 1.7e-10)
COUNT = SamplerKernels(_COUNT, 1.8, 5.3e-5, 2.6e-10)
RATIO = SamplerKernels(_RATIO, 1.2, 7.9e-6, 4.7e-10)
PENALIZED = SamplerKernels(_PENALTIES, 1.3, 2.5e-5, 0.0)


def sampler_kernels(sampling: Sampling) -> tuple[SamplerKernels, ...]:
    """The kernels that settings ask for."""
    limits: tuple[SamplerKernels, ...] = (MASS,) if sampling.limits_mass else ()
    if sampling.limits_count:
        limits = (MASS, COUNT_BESIDE_MASS) if sampling.limits_mass else (COUNT,)
    return (
        TAKEN,
        *((PENALIZED,) if sampling.is_penalized else ()),
        *(() if sampling.is_greedy else (DRAWN,)),
        *((RATIO,) if sampling.limits_ratio else ()),
        *limits,
    )


@dataclass(frozen=True)
class SamplerTime:
    """Sampling takes launch + vocabulary x (logit + requests x bytes / bandwidth) seconds.

    Attributes:
        timed_bytes: Of a logit: as many as take that long at the datasheet's bandwidth.
        launch_s: Of a step.
        logit_s: Of a step, for each logit of the vocabulary.
    """

    timed_bytes: float
    launch_s: float
    logit_s: float


@lru_cache(maxsize=1024)
def sampler_time(sampling: Sampling) -> SamplerTime:
    """How long the kernels that settings ask for take."""
    asked = sampler_kernels(sampling)
    return SamplerTime(
        sum(kernels.logit_bytes * kernels.slowdown for kernels in asked),
        sum(kernels.launch_s for kernels in asked),
        sum(kernels.logit_s for kernels in asked),
    )
