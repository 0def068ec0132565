"""The kernels that a batch calls in recurrent and sparse layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.kernels.hardware import Coded
from pinn.kernels.mixer_fits import INDEXED_SIZES, RECURRENT, RECURRENT_SIZES, SPARSE
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import BatchSums, UniformBatches
from pinn.physics.costs import StepCosts, model_costs
from pinn.physics.step_values import decode_attention, prefill_attention
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import GATED_DELTA, KDA, MAMBA2, LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerGroup
from pinn.specs.serving import ServingSpec

# What a composed step is made of: kernels, and the calls of them.


@dataclass(frozen=True)
class Call:
    """One kernel in the steps of a deployment.

    Attributes:
        form: Number format; of recurrent and sparse mixers the operator.
        count: How often a step runs it, a number or one per batch.
        sizes: Arguments of the surrogate, each a number or one per batch.
    """

    form: str
    count: float | Float[np.ndarray, " n"]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Kernels:
    """Kernels of one kind in a part of a step.

    Attributes:
        calls: Those of a deployment's steps, from itself and its batches.
        seconds: What they take, from surrogates, chips, formats and a call's sizes.
        sizes: What the first sizes of a call are called; none where nothing timed is behind them.
        operator: The operator that was fitted to measured ones; empty where there is none.
    """

    calls: Callable[[Deployment, UniformBatches], Iterator[Call]]
    seconds: Callable[..., Float[np.ndarray, "..."]]
    sizes: tuple[str, ...] = ()
    operator: str = ""


def call_by_call(
    seconds: Callable[..., Float[np.ndarray, " n"]], gpu: Coded, form: Coded, *sizes
) -> Float[np.ndarray, "calls n"]:
    """What ``seconds`` gives of one chip, format and call's sizes at a time."""
    calls = zip(gpu.ids[:, 0], form.ids[:, 0], *sizes, strict=True)
    return np.stack([seconds(gpu.options[g], form.options[f], *call) for g, f, *call in calls])


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


@dataclass(frozen=True)
class Phase:
    """Decodes or prompts.

    Attributes:
        rows: Of batches: requests, new tokens of each, and tokens before these.
        operators: Of a mixer's kind.
        datasheet: What mixers take at the datasheet's rates.
    """

    rows: Callable[[UniformBatches], tuple[Any, Any, Any]]
    operators: Mapping[str, tuple[str, ...]]
    datasheet: Datasheet


def _prompting(costs: StepCosts, sums: BatchSums) -> Seconds:
    return prefill_attention(costs, sums) + costs.prefill_token_s * sums.prefill_tokens


#: KDA's decode convolves by itself; its prompts run the gated delta net's kernel three times, and
#: were timed with 0.4 ms of the host's work in between.
DECODES = Phase(
    lambda batches: (batches.decode_requests, 1.0, batches.decode_context),
    {
        GATED_DELTA: ("gated delta decode", "gated delta convolution"),
        KDA: ("KDA decode",),
        MAMBA2: ("Mamba-2 update", "Mamba-2 convolution, decode"),
    },
    decode_attention,
)
PROMPTS = Phase(
    lambda batches: (batches.prefill_requests, batches.prefill_tokens, batches.prefill_cached),
    {
        GATED_DELTA: ("gated delta scan", "gated delta convolution"),
        KDA: ("KDA scan", "gated delta convolution"),
        MAMBA2: ("Mamba-2 scan", "Mamba-2 convolution"),
    },
    _prompting,
)
#: Of an indexer and what it picks. Real scores are neither all equal nor in order; a selection of
#: scores that rise takes longer.
_CHOOSING = ("indexer scores", "indexer choice, best last")
_CHOSEN = "sparse attention"
#: Its kernel pads fewer heads (vLLM's flashmla_sparse.py: prefill_padding).
_LEAST_HEADS = 64


def _state_calls(phase: Phase, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """States read and written by decodes, or scans of prompts."""
    requests, tokens, _ = phase.rows(batches)
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LinearMixerSpec):
            widths = mixer.local_widths(deployment.recipe.tensor_parallel_size)
            kept = (mixer.chunk_tokens, mixer.state_bytes_per_element)
            names = phase.operators.get(mixer.kind, (mixer.kind,))
            seconds = _datasheet_seconds(phase, deployment, group, batches)
            yield from _calls(group, names, (requests, tokens, *widths, *kept), seconds)


def _indexed_calls(phase: Phase, deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Scores of all keys, the choice of the best and attention to these."""
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LatentAttentionSpec) and mixer.indexer is not None:
            heads = max(mixer.heads // deployment.recipe.tensor_parallel_size, _LEAST_HEADS)
            sizes = (*phase.rows(batches), mixer.indexer.heads, heads, mixer.indexer.top_k)
            names = (*_CHOOSING, _CHOSEN) if mixer.indexer.heads else (_CHOSEN,)
            seconds = _datasheet_seconds(phase, deployment, group, batches)
            yield from _calls(group, names, sizes, seconds)


def _calls(
    group: LayerGroup, operators: Sequence[str], sizes: tuple[Any, ...], seconds: Seconds
) -> Iterator[Call]:
    """One per operator; the first brings the mixer's time at datasheet rates along."""
    for operator in operators:
        yield Call(operator, group.count, (*sizes, seconds))
        seconds = 0.0 * seconds


def _datasheet_seconds(
    phase: Phase, deployment: Deployment, group: LayerGroup, batches: UniformBatches
) -> Seconds:
    """Of one mixer of a group, in plain steps: without the other mixers none can draft."""
    model = deployment.model
    groups = tuple(g if g is group else replace(g, attention=None) for g in model.layer_groups)
    serving = replace(deployment.serving, **_NO_DRAFTS)
    alone = replace(deployment, model=replace(model, layer_groups=groups), serving=serving)
    return phase.datasheet(model_costs([alone]), batches.sums(model.window_tokens)) / group.count


def mixer_kernels(phase: Phase) -> tuple[Kernels, ...]:
    """Those of recurrent mixers, and of indexers with what they pick."""
    kinds = (
        (_state_calls, RECURRENT_SIZES, RECURRENT),
        (_indexed_calls, INDEXED_SIZES, SPARSE),
    )
    return tuple(
        Kernels(partial(calls, phase), partial(_fitted_seconds, sizes), sizes, operator)
        for calls, sizes, operator in kinds
    )


def _fitted_seconds(
    names: Sequence[str], kernels: KernelSurrogates, gpu: Coded, operator: Coded, *sizes
) -> Float[np.ndarray, "calls n"]:
    """Seconds of mixers' calls: ``sizes`` are those of ``names``, then seconds if not fitted."""

    def seconds(chip: GpuSpec, name: str, *call) -> Seconds:
        *known, datasheet = call
        found = kernels.mixers.seconds(name, chip, dict(zip(names, known, strict=True)))
        return datasheet if found is None else found

    return call_by_call(seconds, gpu, operator, *sizes)
