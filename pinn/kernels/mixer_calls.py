"""The kernels that a batch calls in recurrent and sparse layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.kernels.hardware import Coded
from pinn.kernels.mixer_fits import INDEXED_SIZES, RECURRENT_SIZES
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import BatchSums, UniformBatches
from pinn.physics.costs import StepCosts, model_costs
from pinn.physics.step_values import decode_attention, prefill_attention
from pinn.specs.mixers import GATED_DELTA, KDA, MAMBA2, LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerGroup
from pinn.specs.serving import ServingSpec

# What a composed step is made of: kernels, and the calls of them.


@dataclass(frozen=True)
class Call:
    """One kernel in the steps of one deployment.

    Attributes:
        deployment: Index of the deployment.
        form: Number format; of recurrent and sparse mixers the operator.
        count: How often a step runs it, a number or one per batch.
        sizes: Arguments of the surrogate, each a number or one per batch.
    """

    deployment: int
    form: str
    count: float | Float[np.ndarray, " n"]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Kernels:
    """Kernels of one kind in a part of a step.

    Attributes:
        calls: Those of a deployment's steps, from its index, itself and its batches.
        seconds: What they take, from surrogates, chips, formats and a call's sizes.
        sizes: What the first sizes of a call are called; none where nothing timed is behind them.
        operator: The operator that was fitted to measured ones; empty where there is none.
    """

    calls: Callable[[int, Deployment, UniformBatches], Iterator[Call]]
    seconds: Callable[..., Float[np.ndarray, "..."]]
    sizes: tuple[str, ...] = ()
    operator: str = ""


# Recurrent states and indexers in a composed step.
#
# Kernels that were timed take what their fits say. Lightning Attention and Mamba-1 were timed
# nowhere, nor what an exclusion takes away: these take the datasheet's rates (a mixer's bytes
# and arithmetic are known), and what kernels miss of those the betas of the attention features
# say.

Seconds = Float[np.ndarray, " n"]
Datasheet = Callable[[StepCosts, BatchSums], Seconds]

#: Flags that ask for no drafted tokens.
_NO_DRAFTS: dict[str, Any] = {
    f.name: f.default for f in fields(ServingSpec) if f.name.startswith("speculative_")
}
#: Operators of a mixer's decodes and prompts. KDA's decode convolves by itself; its prompts run the
#: gated delta net's kernel three times, and were timed with 0.4 ms of the host's work in between.
_DECODES = {
    GATED_DELTA: ("gated delta decode", "gated delta convolution"),
    KDA: ("KDA decode",),
    MAMBA2: ("Mamba-2 update", "Mamba-2 convolution, decode"),
}
_PROMPTS = {
    GATED_DELTA: ("gated delta scan", "gated delta convolution"),
    KDA: ("KDA scan", "gated delta convolution"),
    MAMBA2: ("Mamba-2 scan", "Mamba-2 convolution"),
}
#: Of an indexer and what it picks. Real scores are neither all equal nor in order; a selection of
#: scores that rise takes longer.
_CHOOSING = ("indexer scores", "indexer choice, best last")
_CHOSEN = "sparse attention"
#: Its kernel pads fewer heads (vLLM's flashmla_sparse.py: prefill_padding).
_LEAST_HEADS = 64


def state_decodes(i: int, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """States read and written by decodes."""
    yield from _states(i, deployment, batches, batches.decode_requests, 1.0, _DECODES, _decoding)


def state_prompts(i: int, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Scans of prompts."""
    tokens = batches.prefill_tokens
    yield from _states(
        i, deployment, batches, batches.prefill_requests, tokens, _PROMPTS, _prompting
    )


def indexed_decodes(i: int, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Scores of all keys, the choice of the best and attention to these, by decodes."""
    sizes = (batches.decode_requests, 1.0, batches.decode_context)
    yield from _indexed(i, deployment, batches, sizes, _decoding)


def indexed_prompts(i: int, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Scores of all keys, the choice of the best and attention to these, by prompts."""
    sizes = (batches.prefill_requests, batches.prefill_tokens, batches.prefill_cached)
    yield from _indexed(i, deployment, batches, sizes, _prompting)


def recurrent_seconds(
    kernels: KernelSurrogates, gpu: Coded, operator: Coded, *sizes
) -> Float[np.ndarray, "calls n"]:
    """Seconds of calls on states: ``sizes`` are RECURRENT_SIZES, then seconds if not fitted."""
    return _fitted(kernels, gpu, operator, RECURRENT_SIZES, sizes)


def indexed_seconds(
    kernels: KernelSurrogates, gpu: Coded, operator: Coded, *sizes
) -> Float[np.ndarray, "calls n"]:
    """Seconds of calls of indexers: ``sizes`` are INDEXED_SIZES, then seconds if not fitted."""
    return _fitted(kernels, gpu, operator, INDEXED_SIZES, sizes)


def _states(
    i: int,
    deployment: Deployment,
    batches: UniformBatches,
    requests: Any,
    tokens: Any,
    operators: Mapping[str, tuple[str, ...]],
    datasheet: Datasheet,
) -> Iterator[Call]:
    tp = deployment.recipe.tensor_parallel_size
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LinearMixerSpec):
            kept = (mixer.chunk_tokens, mixer.state_bytes_per_element)
            sizes = (requests, tokens, *mixer.local_widths(tp), *kept)
            names = operators.get(mixer.kind, (mixer.kind,))
            yield from _calls(i, deployment, batches, group, names, sizes, datasheet)


def _indexed(
    i: int,
    deployment: Deployment,
    batches: UniformBatches,
    rows: tuple[Any, Any, Any],
    datasheet: Datasheet,
) -> Iterator[Call]:
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LatentAttentionSpec) and mixer.indexer is not None:
            heads = max(mixer.heads // deployment.recipe.tensor_parallel_size, _LEAST_HEADS)
            sizes = (*rows, mixer.indexer.heads, heads, mixer.indexer.top_k)
            names = (*_CHOOSING, _CHOSEN) if mixer.indexer.heads else (_CHOSEN,)
            yield from _calls(i, deployment, batches, group, names, sizes, datasheet)


def _calls(
    i: int,
    deployment: Deployment,
    batches: UniformBatches,
    group: LayerGroup,
    operators: tuple[str, ...],
    sizes: tuple[Any, ...],
    datasheet: Datasheet,
) -> Iterator[Call]:
    """One per operator; the first brings the group's time at datasheet rates along."""
    seconds = datasheet(*_alone(deployment, group, batches)) / group.count
    for operator in operators:
        yield Call(i, operator, group.count, (*sizes, seconds))
        seconds = 0.0 * seconds


def _alone(
    deployment: Deployment, group: LayerGroup, batches: UniformBatches
) -> tuple[StepCosts, BatchSums]:
    """Costs of the mixers of one group alone, of plain steps: without the others none can draft."""
    model = deployment.model
    groups = tuple(g if g is group else replace(g, attention=None) for g in model.layer_groups)
    serving = replace(deployment.serving, **_NO_DRAFTS)
    alone = replace(deployment, model=replace(model, layer_groups=groups), serving=serving)
    return model_costs([alone]), batches.sums(model.window_tokens)


def _decoding(costs: StepCosts, sums: BatchSums) -> Seconds:
    return decode_attention(costs, sums)


def _prompting(costs: StepCosts, sums: BatchSums) -> Seconds:
    return prefill_attention(costs, sums) + costs.prefill_token_s * sums.prefill_tokens


def _fitted(
    kernels: KernelSurrogates, gpu: Coded, operator: Coded, names: tuple[str, ...], sizes: Any
) -> Float[np.ndarray, "calls n"]:
    *known, datasheet = sizes
    found = []
    for row, (g, o) in enumerate(zip(gpu.ids[:, 0], operator.ids[:, 0], strict=True)):
        arguments = {name: size[row] for name, size in zip(names, known, strict=True)}
        fitted = kernels.mixers.seconds(operator.options[o], gpu.options[g], arguments)
        found.append(datasheet[row] if fitted is None else fitted)
    return np.stack(found)
