"""What SGLang leaves out of its memory share, by release."""

from __future__ import annotations

#: MiB for a draft model and its graphs, by ``--speculative-algorithm`` and the first release that
#: reserves as much (``server_args.py: _handle_gpu_memory_settings``); from 0.5.14 on nothing.
_DRAFTS: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((0, 5, 14), 0, 0),
    ((0, 5, 10), 4096, 6144),
    ((0,), 2048, 6144),
)


def prompt_graph_sizes(most: int) -> tuple[int, ...]:
    """Numbers of prompt tokens that graphs are captured for.

    SGLang 0.5.23 arg_groups/cuda_graph_hook.py: ``generate_prefill_cuda_graph_batch_sizes``, alike
    since 0.5.9 ``server_args.py: _generate_piecewise_cuda_graph_tokens``.

    >>> len(prompt_graph_sizes(8192)), prompt_graph_sizes(64)[-3:]
    (58, (32, 48, 64))
    """
    sizes = (
        *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64),
        *range(1280, 4097, 256), *range(4608, most + 1, 512),
    )  # fmt: skip
    return tuple(size for size in sizes if size <= most)


def reserve_mib(
    release: tuple[int, ...],
    memory_mib: float,
    chunk: int,
    graphs: int,
    gpus: int,
    replicas: int,
    prompt_graph_tokens: int,
    latent: bool,
    algorithm: str,
    deepep: bool,
) -> float:
    """Memory in MiB that weights and KV cache leave to everything else.

    0.5.3.post1 to 0.5.18 ``server_args.py: _handle_gpu_memory_settings``, later
    ``arg_groups/memory_hook.py: handle_gpu_memory_settings`` and ``reserve_for_graph_mb``. Models
    that see images get less; left out.

    Args:
        release: Numbers of the release.
        memory_mib: Memory of the GPU.
        chunk: Prompt tokens of a step, before attention replicas divide them.
        graphs: Decodes of the largest graph.
        gpus: GPUs of the server.
        replicas: Attention replicas; 0 without attention data parallelism.
        prompt_graph_tokens: Prompt tokens of the largest graph with prompts; 0 without.
        latent: Whether the model has multi-head latent attention.
        algorithm: ``--speculative-algorithm`` in capitals; empty without.
        deepep: Whether experts exchange tokens by DeepEP.
    """
    reserve = 512 + max(chunk, 2048) * 1.5 + graphs * 2 + gpus / 8 * 1024
    reserve += graphs * replicas * (4.5 if graphs > 300 else 3)
    if prompt_graph_tokens:
        reserve += 1536 if latent else len(prompt_graph_sizes(prompt_graph_tokens)) * 8
        if deepep and release >= (0, 5, 17):
            reserve += 1024
    if memory_mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    if algorithm and algorithm != "NGRAM":
        _, eagle, standalone = next(row for row in _DRAFTS if release >= row[0])
        reserve += standalone if algorithm == "STANDALONE" else eagle
    return reserve + (2048 if deepep and release >= (0, 5, 15) else 0)
