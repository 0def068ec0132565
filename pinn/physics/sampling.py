"""What a sampler moves per logit: bytes read and written by the kernels of vLLM's own sampler.

vLLM 0.15.1 samples with PyTorch's operators, one kernel each, every one of which reads and writes
all logits of all requests of the step; FlashInfer's sampler has to be asked for
(``VLLM_USE_FLASHINFER_SAMPLER``). A kernel's bytes are those of its operands and results per
logit: 4 in fp32, 8 in int64, 1 for a mask; a row that a softmax reads again comes from the cache.
Launches are not counted, nor what the host prepares beside a running step: the ids of all output
tokens for penalties, copied in every step.
"""

from __future__ import annotations

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


@lru_cache(maxsize=1024)
def logit_bytes(sampling: Sampling) -> float:
    """Bytes that sampling one token reads and writes per entry of the vocabulary.

    >>> [logit_bytes(Sampling(temperature=t, top_p=p)) for t, p in ((0, 1), (1, 1), (1, 0.9))]
    [10.0, 42.0, 252.0]
    """
    total = _COPY + _LARGEST
    if sampling.is_penalized:
        total += _PENALTIES
    if not sampling.is_greedy:
        total += _DRAW
    if sampling.limits_ratio:
        total += _RATIO
    if sampling.limits_mass:
        total += _MASS + (_MASK if sampling.limits_count else 0)
    elif sampling.limits_count:
        total += _COUNT
    return float(total)
