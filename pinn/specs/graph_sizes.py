"""Numbers of decodes that engines capture CUDA graphs for."""

from __future__ import annotations

from itertools import takewhile


def contiguous_sizes(most: int) -> tuple[int, ...]:
    """Every number, so that nothing is rounded."""
    return tuple(range(1, most + 1))


def vllm_largest(most: int) -> int:
    """The largest size that vLLM captures up to a limit (``VllmConfig._set_cudagraph_sizes``).

    >>> [vllm_largest(most) for most in (3, 100, 300, 512)]
    [2, 96, 288, 512]
    """
    if most >= 8:
        return most - most % (8 if most < 256 else 16)
    return next(size for size in (4, 2, 1) if size <= most)


def sglang_sizes(most: int) -> tuple[int, ...]:
    """SGLang 0.5.9 server_args.py: ``_generate_cuda_graph_batch_sizes``.

    >>> sglang_sizes(30)
    (1, 2, 4, 8, 12, 16, 24)
    """
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32)]
    return tuple(size for size in sizes if size <= most)


def trtllm_sizes(most: int, padded: bool) -> tuple[int, ...]:
    """TensorRT-LLM llm_args.py: ``CudaGraphConfig._generate_cuda_graph_batch_sizes``.

    Without padding a step runs as a graph only where its size was captured; beyond the sizes that
    follow each other those are few, and are left out here.

    >>> trtllm_sizes(20, padded=True), trtllm_sizes(128, padded=False)[-1]
    ((1, 2, 4, 8, 16, 20), 32)
    """
    if not padded:
        return contiguous_sizes(min(most, 32))
    multiples = [1, 2, 4, *range(8, 129, 8)]
    powers = takewhile(lambda size: size < most, (2**i for i in range(8, 32)))
    sizes = [size for size in (*multiples, *powers) if size <= most]
    return tuple(sizes if sizes[-1] == most else [*sizes, most])
