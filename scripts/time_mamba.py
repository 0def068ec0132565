"""Time vLLM's Mamba-2 kernels on a CUDA GPU, and write the table of times.

    python scripts/time_mamba.py data/kernels/mamba2_h100_sxm.csv [--kernels FOLDER]

The kernels come from an installed vLLM, or from its wheel unpacked into ``FOLDER`` (0.15.1:
``vllm/model_executor/layers/mamba/ops``). They are written in Triton, so nothing is built. They run
as ``mamba_mixer2.py`` calls them, in a CUDA graph, which excludes launches by the host. Each call
of a graph uses the states of another layer, as in a model, so that states are not in the GPU's
cache. A row has the median time over the graph's replays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pandas as pd
import torch
import triton
import triton.language as tl
import typer
from torch import Tensor

DEVICE = "cuda"
REPLAYS, MOST_CALLS = 10, 32
#: Minimum total size, in bytes, of the states used by one CUDA graph: four times an H100's L2 cache
#: of 50 MB, so that states are not read from the cache.
STATE_POOL_BYTES = 200e6
#: Number of requests for which convolution states are allocated and kernels are compiled.
TAIL_LINES = 1024
#: Numbers of prompt tokens and decodes for compiling every variant of the kernels with little
#: memory.
WARM_TOKENS, WARM_DECODES = 4096, 16
CONV_WIDTH = 4
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Batches of prompts to time, as (number of sequences, tokens per sequence).
PROMPTS = (
    *((1, tokens) for tokens in (32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
    *((4, tokens) for tokens in (128, 512, 2048)),
    *((16, tokens) for tokens in (64, 256, 1024)),
    (64, 128),
)
TENSOR_PARALLEL = (1, 2, 4, 8)
BF16, FP32 = torch.bfloat16, torch.float32

Calls = list[Callable[[], object]]


class Shape(NamedTuple):
    """Sizes of a Mamba-2 layer on one GPU.

    ``state`` is the number format of the recurrent states in the scan.
    """

    nheads: int
    n_groups: int
    head_dim: int
    d_state: int
    chunk_size: int
    state: torch.dtype = BF16

    def on(self, tensor_parallel_size: int) -> Shape:
        """Return the shape of the layer's part on one of several tensor-parallel GPUs.

        Groups that cannot be divided are replicated.
        """
        heads, groups = self.nheads // tensor_parallel_size, self.n_groups // tensor_parallel_size
        return self._replace(nheads=heads, n_groups=max(groups, 1))


#: Layer shapes without tensor parallelism, from config.json, by model.
MODELS = {
    "Nemotron-H-8B, Nemotron-3-Super": Shape(128, 8, 64, 128, 128, FP32),
    "Nemotron-H-56B": Shape(256, 8, 64, 256, 128),
    "Nemotron-3-Nano": Shape(64, 8, 64, 128, 128, FP32),
    "Falcon-H1-34B": Shape(32, 2, 128, 256, 128),
    "Falcon-H1-7B": Shape(24, 1, 128, 256, 128),
    "Granite-4.0-H-Small, Bamba-9B": Shape(128, 1, 64, 128, 256),
    "Granite-4.0-H-Tiny": Shape(48, 1, 64, 128, 256),
    "Zamba2-7B": Shape(112, 2, 64, 64, 256),
    "Mamba-Codestral-7B": Shape(128, 8, 64, 128, 256),
}


def shapes() -> list[Shape]:
    """Return the distinct layer shapes of all models, at all tensor-parallel sizes."""
    cut = (model.on(tp) for model, tp in product(MODELS.values(), TENSOR_PARALLEL))
    return list(dict.fromkeys(cut))


def operators(folder: Path | None) -> SimpleNamespace:
    """Return the kernels of an installed vLLM, or of a folder with its Python files."""
    if folder is not None:
        _stand_in("vllm.triton_utils", triton=triton, tl=tl, HAS_TRITON=True)
        _stand_in("vllm._custom_ops")
        _stand_in("vllm.v1.attention.backends.utils", PAD_SLOT_ID=-1)
        layers = "vllm/model_executor/layers"
        for name in ("vllm", "vllm/model_executor", layers, f"{layers}/mamba"):
            _stand_in(name.replace("/", "."), __path__=[str(folder / name)])
    from vllm.model_executor.layers.mamba.ops import causal_conv1d, mamba_ssm, ssd_combined

    return SimpleNamespace(
        convolve=causal_conv1d.causal_conv1d_fn,
        convolve_decode=causal_conv1d.causal_conv1d_update,
        update=mamba_ssm.selective_state_update,
        scan=ssd_combined.mamba_chunk_scan_combined_varlen,
    )


def _stand_in(name: str, **members: object) -> None:
    """Install an empty module under the name of a package.

    The package's own ``__init__`` would import all of vLLM.
    """
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members)


class Layer:
    """Weights of a Mamba-2 layer of one shape, with its kernels."""

    def __init__(self, shape: Shape, ops: SimpleNamespace) -> None:
        self.shape, self.ops, s = shape, ops, shape
        self.state = (s.nheads, s.head_dim, s.d_state)
        # Number of channels of the values, and of the keys and queries (B and C) in all groups.
        self.channels = s.nheads * s.head_dim + 2 * s.n_groups * s.d_state
        self.decay = -torch.rand(s.nheads, device=DEVICE) - 0.1
        self.skip, self.step_bias = (torch.rand(s.nheads, device=DEVICE) for _ in range(2))
        self.taps = torch.rand(self.channels, CONV_WIDTH, device=DEVICE, dtype=BF16)
        self.bias = torch.rand(self.channels, device=DEVICE, dtype=BF16)

    def decode(self, batch: int, state: torch.dtype) -> dict[str, Calls]:
        """Return kernel calls of state update and convolution for one token of ``batch`` requests.

        Each call uses the states of another layer.
        """
        s = self.shape
        per_layer = batch * s.nheads * s.head_dim * s.d_state * state.itemsize
        layers = min(max(int(STATE_POOL_BYTES / per_layer), 1), MOST_CALLS)
        states = torch.zeros((layers * batch, *self.state), device=DEVICE, dtype=state)
        mixed, values, step, keys, queries = self._inputs(batch)
        out, tails = torch.empty_like(values), self._tails()
        update = partial(
            self.ops.update, states, values, step[:, :, None].expand(-1, -1, s.head_dim),
            self.decay[:, None, None].expand(*self.state), keys, queries,
            self.skip[:, None].expand(-1, s.head_dim), z=None,
            dt_bias=self.step_bias[:, None].expand(-1, s.head_dim), dt_softplus=True, out=out,
        )  # fmt: skip
        convolve = partial(self.ops.convolve_decode, mixed, tails, self.taps, self.bias, "silu")
        places = _scattered(layers * batch, batch)
        of_tails = _scattered(TAIL_LINES, batch)[:MOST_CALLS]
        return {
            "update": [
                partial(update, state_batch_indices=place, dst_state_batch_indices=place)
                for place in places
            ],
            "convolution, decode": [partial(convolve, conv_state_indices=p) for p in of_tails],
        }

    def prefill(self, sequences: int, tokens: int) -> dict[str, Calls]:
        """Return kernel calls of scan and convolution for prompts of ``tokens`` tokens each."""
        s, total = self.shape, sequences * tokens
        mixed, values, step, keys, queries = self._inputs(total)
        states = torch.zeros((sequences, *self.state), device=DEVICE, dtype=s.state)
        chunks, last, owner = chunked(sequences, tokens, s.chunk_size)
        starts = torch.arange(0, total + 1, tokens, device=DEVICE, dtype=torch.int32)
        place = torch.arange(sequences, device=DEVICE, dtype=torch.int32)
        out, tails = torch.empty_like(values), self._tails()

        def scan() -> None:
            states[place] = self.ops.scan(
                values, step, self.decay, keys, queries, chunk_size=s.chunk_size, D=self.skip,
                z=None, dt_bias=self.step_bias, seq_idx=owner, cu_seqlens=starts,
                cu_chunk_seqlens=chunks, last_chunk_indices=last, initial_states=None,
                return_intermediate_states=False, dt_softplus=True, dt_limit=(0.0, float("inf")),
                out=out, state_dtype=s.state,
            )  # fmt: skip

        convolution = partial(
            self.ops.convolve, mixed.transpose(0, 1), self.taps, self.bias, conv_states=tails,
            query_start_loc=starts, cache_indices=place, activation="silu",
            has_initial_state=torch.zeros(sequences, device=DEVICE, dtype=torch.bool),
            metadata=_convolution_blocks(sequences, tokens),
        )  # fmt: skip
        return {"scan": [scan], "convolution": [convolution]}

    def _inputs(self, tokens: int) -> tuple[Tensor, ...]:
        """Return random outputs of the input projection, split as the kernels expect them."""
        s = self.shape
        inner, key = s.nheads * s.head_dim, s.n_groups * s.d_state
        whole = torch.randn(tokens, inner + self.channels + s.nheads, device=DEVICE, dtype=BF16)
        mixed = whole[:, inner : inner + self.channels]
        # The convolution's output is contiguous, separate from gate and time step.
        values, keys, queries = mixed.clone().split([inner, key, key], dim=-1)
        return (
            mixed,
            values.view(tokens, s.nheads, s.head_dim),
            whole[:, inner + self.channels :],
            keys.view(tokens, s.n_groups, s.d_state),
            queries.view(tokens, s.n_groups, s.d_state),
        )

    def _tails(self) -> Tensor:
        tails = torch.zeros((TAIL_LINES, CONV_WIDTH - 1, self.channels), device=DEVICE, dtype=BF16)
        return tails.transpose(-1, -2)


def _scattered(lines: int, batch: int) -> tuple[Tensor, ...]:
    """Return random slots in a pool of ``lines`` states, as tensors of ``batch`` slots each."""
    return torch.randperm(lines, device=DEVICE).int().split(batch)


def chunked(sequences: int, tokens: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each chunk's first token, each sequence's last chunk, and each chunk's sequence.

    Sequences of ``tokens`` tokens are cut into chunks of ``chunk`` tokens.
    """
    owner, number = _cut(sequences, tokens, chunk)
    starts, each = owner * tokens + number * chunk, len(owner) // sequences
    last = torch.arange(1, sequences + 1) * each - 1
    ends = torch.tensor([sequences * tokens])
    return tuple(x.to(DEVICE, torch.int32) for x in (torch.cat([starts, ends]), last, owner))


def _cut(sequences: int, tokens: int, size: int) -> tuple[Tensor, Tensor]:
    """Cut sequences into parts of ``size`` tokens; return each part's sequence and index in it."""
    each = -(-tokens // size)
    numbers = torch.arange(each).repeat(sequences)
    return torch.arange(sequences).repeat_interleave(each), numbers


def _convolution_blocks(sequences: int, tokens: int) -> SimpleNamespace:
    """Return the block table of the convolution: one Triton program computes eight tokens.

    It has the form of vllm/v1/attention/backends/utils.py.
    """
    owner, number = _cut(sequences, tokens, 8)
    blocks = {"tot": len(owner), "mlist": owner, "mlist_len": len(owner), "offsetlist": None}
    names = ("batch_ptr", "token_chunk_offset_ptr")
    pointers = {n: x.to(DEVICE, torch.int32) for n, x in zip(names, (owner, number), strict=True)}
    return SimpleNamespace(nums_dict={8: blocks | pointers}, **pointers)


def seconds(calls: Calls) -> float:
    """Return the median GPU time of a call in seconds.

    A CUDA graph of all calls is replayed several times.
    """
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
    for start, end in pairs:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in pairs)
    return times[REPLAYS // 2] / len(calls) / 1000


def points(layer: Layer, warm: bool = False) -> Iterator[tuple[dict[str, object], Calls]]:
    """Yield the columns that describe a row of the table, and the kernel calls to time for it."""
    shape = {**layer.shape._asdict(), "state": layer.shape.state.itemsize}
    # Triton tunes the kernels for the first prompt length, so start with a prompt of medium length.
    for sequences, tokens in sorted(PROMPTS, key=lambda prompt: prompt != (1, 2048)):
        if warm and sequences * tokens > WARM_TOKENS:
            continue
        for name, calls in layer.prefill(sequences, tokens).items():
            yield {"operator": name, "batch_size": sequences, "seq_len": tokens, **shape}, calls
    for batch, state in product(DECODES, (BF16, FP32)):
        if warm and batch > WARM_DECODES:
            continue
        for name, calls in layer.decode(batch, state).items():
            if name == "update" or state == BF16:
                row = {"operator": name, "batch_size": batch, "seq_len": 1, **shape}
                yield row | {"state": state.itemsize}, calls


def main(file: Path, kernels: Path | None = None, part: str = "0/1", warm: bool = False) -> None:
    """Time every shape; ``--part 3/16 --warm`` only compiles every 16th shape, from the fourth."""
    if not torch.cuda.is_available():
        sys.exit("error: no CUDA GPU here: kernels are timed on the GPU that they are for")
    first, step = map(int, part.split("/"))
    ops, rows = operators(kernels), []
    for shape in shapes()[first::step]:
        for row, calls in points(Layer(shape, ops), warm):
            if warm:
                calls[0]()
            else:
                rows.append(row | {"seconds": f"{seconds(calls):.4g}"})
        pd.DataFrame(rows).to_csv(file, index=False)
    print(torch.cuda.get_device_name(), torch.__version__, triton.__version__, file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
