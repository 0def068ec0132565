"""Recurrent states and indexers in a composed step, at datasheet rates.

Mamba-1 has no measured kernels anywhere, and a recurrent mixer's or indexer's bytes are known: what
its kernels miss of the rates, the betas of the attention features say.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts, model_costs
from pinn.physics.step_values import decode_attention, prefill_attention
from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.deployment import Deployment
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerGroup, ModelSpec

Seconds = Float[np.ndarray, " n"]


def decode_seconds(deployment: Deployment, batches: UniformBatches) -> Seconds:
    """States read and written, or keys scored, by the decodes of ``n`` steps.

    What an indexer picks is attended to by kernels of latent attention, which were measured.
    """
    costs, sums = _others(deployment, batches)
    scored = np.maximum(costs.kv_read_s, costs.decode_pair_s) * sums.decode_context
    if _has_indexer(deployment.model):
        return scored
    return decode_attention(costs, sums)


def prefill_seconds(deployment: Deployment, batches: UniformBatches) -> Seconds:
    """Scans, or scores, sparse attention and what it reads, of prompts in ``n`` steps."""
    costs, sums = _others(deployment, batches)
    return prefill_attention(costs, sums) + costs.prefill_token_s * sums.prefill_tokens


def has_other_mixers(deployment: Deployment) -> bool:
    """Whether a layer's mixer has no surrogate."""
    return any(_is_other(group) for group in deployment.model.layer_groups)


def _others(deployment: Deployment, batches: UniformBatches) -> tuple[StepCosts, BatchSums]:
    """Costs of the other mixers alone."""
    model = deployment.model
    groups = tuple(g if _is_other(g) else replace(g, attention=None) for g in model.layer_groups)
    alone = replace(deployment, model=replace(model, layer_groups=groups))
    return model_costs([alone]), batches.sums(model.window_tokens)


def _is_other(group: LayerGroup) -> bool:
    return isinstance(group.attention, LinearMixerSpec) or _indexes(group)


def _has_indexer(model: ModelSpec) -> bool:
    return any(_indexes(group) for group in model.layer_groups)


def _indexes(group: LayerGroup) -> bool:
    mixer = group.attention
    return isinstance(mixer, LatentAttentionSpec) and mixer.indexer is not None
