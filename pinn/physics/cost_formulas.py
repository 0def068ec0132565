"""The longer formulas of ``StepCosts``, each of a deployment's numbers."""

from __future__ import annotations

import numpy as np

from pinn.physics.cost_facts import CostFacts, Values
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.units import GIB

#: Share of a parallel layer's latency that lies around its all-reduces: the overhead of the feature
#: ``parallel_layer``, 3 us, in its prior of 10.
AROUND_ALL_REDUCE = 0.3


def token_bytes(w: CostFacts) -> Values:
    """The residual stream of one token."""
    return w.hidden_size * ACTIVATION_BYTES


def weights_s(w: CostFacts) -> Values:
    """Reading all weights but the routed experts' once."""
    return w.dense_weight_bytes / w.memory_bytes_per_s


def launched_layers(w: CostFacts) -> Values:
    """Kernels of all layers, in those of a dense layer of 16 bits without tensor parallelism.

    Assumptions, by counting launches in vLLM's modules (about ten in a dense layer): routing,
    sorting and two grouped multiplications of experts add eight, the down and up projections of
    latent attention with their norms, concatenation and copies eight, quantizing activations three.
    What an engine launches more of latent attention is measured (``pinn/specs/own_kernels.py``).
    """
    latent = (0.8 + w.latent_launches) * w.latent_layers
    return w.layers + 0.8 * w.moe_layers + latent + 0.3 * w.layers * w.quantized


def activation_token_s(w: CostFacts) -> Values:
    """What the kernels between the multiplications move of one token."""
    return w.small_kernel_elements * ACTIVATION_BYTES / w.memory_bytes_per_s


def experts(w: CostFacts) -> Values:
    """Routed experts on this GPU."""
    return w.routed_experts / w.expert_spread


def expert_read_s(w: CostFacts) -> Values:
    """Reading one of them in every MoE layer."""
    return w.expert_weights * w.expert_weight_bytes / w.memory_bytes_per_s


def expert_copies(w: CostFacts) -> Values:
    """Copies of a token per GPU: top-k expert slices, or the share of them that live there."""
    return w.top_k / w.expert_spread


def expert_activation_token_s(w: CostFacts) -> Values:
    """Gathering the hidden states of one token for its experts, and scattering their results."""
    width = 2 * w.hidden_size + 3 * w.expert_width / w.expert_cut
    passes = expert_copies(w) * width * w.moe_layers
    return passes * ACTIVATION_BYTES / w.memory_bytes_per_s


def parallel_layers(w: CostFacts) -> Values:
    """A faster kernel saves its share, a fused one what surrounds a layer's all-reduces."""
    layers = w.layers * (w.tensor_parallel_size > 1)
    return layers * (1 - w.faster_all_reduce) * (1 - AROUND_ALL_REDUCE * w.fused_all_reduce)


def all_reduce_token_s(w: CostFacts) -> Values:
    """A ring moves 2 (p - 1) / p of the message over each link (Patarasuk and Yuan 2009)."""
    tp = w.tensor_parallel_size
    return w.all_reduces * token_bytes(w) * 2 * (tp - 1) / tp / w.link_bytes_per_s


def exchange_token_s(w: CostFacts) -> Values:
    """Dispatch and combine between data-parallel ranks."""
    ranks = w.tensor_parallel_size * w.data_parallel_size
    remote = (ranks - 1) / ranks
    return w.moe_layers * 2 * w.exchange_copies * remote * token_bytes(w) / w.link_bytes_per_s


def offload_s(w: CostFacts) -> Values:
    """Parameters are offloaded until vLLM's flag or the model is used up.

    The flag counts GiB per GPU (vllm/config/cache.py: cpu_offload_gb), and a GPU of a pipeline
    holds its stage alone.
    """
    read_s = weights_s(w) + experts(w) * expert_read_s(w)
    held_bytes = read_s * w.memory_bytes_per_s / w.pipeline_parallel_size
    return np.minimum(w.cpu_offload_gb * GIB, held_bytes) / w.pcie_bytes_per_s
