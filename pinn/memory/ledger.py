"""GPU memory of a server, entry by entry, except the KV cache.

vLLM measures most of it at start (``vllm/v1/worker/gpu_worker.py: determine_available_memory``).
Sizes that follow from its source are computed; the others are from logged start-ups.
``scripts/score_memory.py`` compares both with logs.
"""

from dataclasses import dataclass
from functools import lru_cache

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.recipe import FREE, NOTHING, STATIC, engine_rows
from pinn.memory.lora import lora_bytes
from pinn.memory.weights import gpu_weight_bytes
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerGroup, MoeFfnSpec
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.specs.serving import VLLM
from pinn.units import GIB

#: Memory of a board that CUDA reserves: bytes and a share. Within 0.15 GiB of the totals that 15
#: kinds of card report, except A100-80GB (0.27).
KEPT_BYTES, KEPT_SHARE = 0.45 * GIB, 0.0016
#: CUDA modules and workspaces; with more than one GPU, buffers of NCCL and custom all-reduces are
#: added. From "non-torch" of vLLM 0.11.0 on one H100 (0.13 to 0.14), on two (0.54 to 0.55), and on
#: L40S without NVLink (0.21).
CONTEXT_BYTES = 0.13 * GIB
COMMUNICATION_BYTES = 0.41 * GIB
PCIE_COMMUNICATION_BYTES = 0.08 * GIB
#: Memory that SGLang uses before it loads weights, as a part of CUDA's total. Start-ups on one
#: H100 log 0.3 to 0.6 GiB less than CUDA offers (0.4.1, 0.4.4, 0.5.19), one on eight H200 logs 1.8
#: GiB less (0.5.12).
SGLANG_CONTEXT_BYTES = 0.5 * GIB
SGLANG_COMMUNICATION_BYTES = 1.3 * GIB
#: Widths at a dense layer's widest point: the residual stream twice, both halves of the gated
#: activation, its result and a copy. Peaks of 8,192 and 16,384 tokens (vLLM 0.11.0 and 0.10.2) are
#: 3.92 widths.
FFN_VALUES = 4.0
#: Values per token of expert layers, in widths, and copies: a mixture has two buffers of its
#: grouped products at once (vLLM model_executor/layers/fused_moe: workspace13, workspace2), so
#: twice a layer of three widths.
EXPERT_VALUES, EXPERT_COPIES = 3.0, 2.0
#: CUDA graphs of one layer with experts, and of one with latent attention, as vLLM estimates them
#: at start: 0.028 to 0.029 GiB for gpt-oss-120b whatever the GPUs and sizes, 0.044 to 0.067 for
#: DeepSeek. For dense layers, only a start-up of 0.31.0 has an estimate (1.1 GiB for 32 layers).
GRAPH_BYTES, LATENT_GRAPH_BYTES = 0.029 * GIB, 0.055 * GIB
#: Value of ``counted_graphs`` for releases that estimate the graphs of every layer.
ALL_LAYERS = "all"
#: Kinds of ``data/engines/memory_errors.csv``; any other kind has the widest interval.
DENSE, MIXTURE, LATENT, HYBRID, SEVERAL = "dense", "mixture", "latent", "hybrid", "several GPUs"
OTHER = "other"


@dataclass(frozen=True)
class Reserve:
    """Memory beside weights and KV cache, in bytes on one GPU.

    Attributes:
        context: CUDA modules and workspaces of libraries.
        communication: Buffers of collectives.
        forward: Peak of activations of a step of ``max_num_batched_tokens``.
        sampler: Peak of sampling for ``max_num_seqs`` requests. Only the larger of this and
            ``forward`` counts.
        graphs: CUDA graphs, where the release subtracts its estimate.
        given: Total given by the user, in place of the other fields.
    """

    context: float = 0.0
    communication: float = 0.0
    forward: float = 0.0
    sampler: float = 0.0
    graphs: float = 0.0
    given: float = 0.0

    @property
    def total(self) -> float:
        """Return the total."""
        return self.given + self.context + self.communication + self.peak + self.graphs

    @property
    def peak(self) -> float:
        """Return the activation peak: sampling starts when the layers' activations are freed."""
        return max(self.forward, self.sampler)


@dataclass(frozen=True)
class MemoryLedger:
    """Memory of one GPU, in bytes.

    Attributes:
        board: Total memory of the GPU, as nvidia-smi reports it.
        visible: Total memory that CUDA reports.
        share: Fraction of memory that the engine may use.
        share_of: Base of ``share``: visible memory (``TOTAL``, vLLM), memory free before loading
            (``STATIC``, SGLang) or after loading (``FREE``, TensorRT-LLM).
        weights: Weights, with a draft model's, less those offloaded to the host.
        lora: Slots for LoRA adapters.
        reserve: Everything else except the KV cache.
    """

    board: float
    visible: float
    share: float
    share_of: str
    weights: float
    lora: float
    reserve: Reserve

    @property
    def reserved_bytes(self) -> float:
        """Return the bytes that are subtracted from usable memory beside weights.

        SGLang's static share does not cover activations and graphs. It is a share of the memory
        that was free before the weights were loaded (``model_runner.py: profile_max_num_token`` of
        0.4.9, later ``kv_cache_configurator.py: _profile_available_bytes``).
        """
        return 0.0 if self.share_of == STATIC else self.reserve.total

    @property
    def usable_bytes(self) -> float:
        """Return the memory that the engine may use; all visible memory for ``FREE``."""
        if self.share_of == STATIC:
            held = self.reserve.context + self.reserve.communication
            return (self.visible - held) * self.share
        return self.visible * (1.0 if self.share_of == FREE else self.share)

    @property
    def left_bytes(self) -> float:
        """Return memory for KV cache and recurrent states; negative if weights do not fit."""
        left = self.usable_bytes - self.weights - self.lora - self.reserved_bytes
        return left * self.share if self.share_of == FREE else left

    def sizes(self) -> dict[str, float]:
        """Return the bytes of every entry except the KV cache, by name."""
        held = self.reserve
        return {
            "board": self.board,
            "visible": self.visible,
            "usable": self.usable_bytes,
            "weights": self.weights,
            "lora": self.lora,
            "context": held.context,
            "communication": held.communication,
            "activations": held.peak + held.given,
            "graphs": held.graphs,
        }


def memory_ledger(deployment: Deployment, engine: EngineSpec | None = None) -> MemoryLedger:
    """Return the parts of each GPU's memory in one replica, in bytes.

    Args:
        deployment: Deployment of the replica.
        engine: Engine settings, which may state the bytes reserved for activations.
    """
    recipe, given = deployment.recipe, engine.activation_reserve_bytes if engine else None
    return MemoryLedger(
        deployment.gpu.memory_bytes,
        visible_bytes(deployment.gpu),
        recipe.memory_share,
        recipe.memory_share_of,
        gpu_weight_bytes(deployment),
        lora_bytes(deployment),
        reserve(deployment) if given is None else Reserve(given=given),
    )


def visible_bytes(gpu: GpuSpec) -> float:
    """Return the total that CUDA reports for a GPU, in bytes (H100: 79.1 of 79.65 GiB)."""
    return gpu.memory_bytes * (1 - KEPT_SHARE) - KEPT_BYTES


def reserve(deployment: Deployment) -> Reserve:
    """Return the memory beside weights and KV cache on one GPU."""
    model, recipe = deployment.model, deployment.recipe
    context, buffers = _libraries(deployment)
    values = max(_values(group, deployment) for group in model.layer_groups)
    logits = min(recipe.max_requests, recipe.token_budget) * model.vocab_size
    return Reserve(
        context,
        buffers,
        recipe.token_budget * values * ACTIVATION_BYTES,
        logits * recipe.sampler_bytes,
        _graph_bytes(deployment),
    )


def _libraries(deployment: Deployment) -> tuple[float, float]:
    """Return bytes of CUDA's context, and of collectives' buffers if there are several GPUs."""
    recipe = deployment.recipe
    several = recipe.tensor_parallel_size * recipe.pipeline_parallel_size > 1
    if recipe.memory_share_of == STATIC:
        return SGLANG_CONTEXT_BYTES, several * SGLANG_COMMUNICATION_BYTES
    buffers = COMMUNICATION_BYTES if deployment.gpu.has_nvlink else PCIE_COMMUNICATION_BYTES
    return CONTEXT_BYTES, several * buffers


def _values(group: LayerGroup, deployment: Deployment) -> float:
    """Return the values of one token at a layer's widest point."""
    recipe, ffn, stream = deployment.recipe, group.ffn, 2.0 * deployment.model.hidden_size
    if ffn is None:
        return stream
    if isinstance(ffn, MoeFfnSpec):
        copies = ffn.top_k / recipe.expert_parallel_size
        width = copies * ffn.width / recipe.expert_tensor_parallel_size
        return EXPERT_COPIES * (stream + EXPERT_VALUES * width)
    return stream + FFN_VALUES * ffn.width / recipe.tensor_parallel_size


def _graph_bytes(deployment: Deployment) -> float:
    recipe = deployment.recipe
    if NOTHING in (recipe.decode_graphs, recipe.counted_graphs):
        return 0.0
    found = 0.0
    for group in deployment.model.layer_groups:
        if isinstance(group.attention, LatentAttentionSpec):
            found += group.count * LATENT_GRAPH_BYTES
        elif isinstance(group.ffn, MoeFfnSpec) or recipe.counted_graphs == ALL_LAYERS:
            found += group.count * GRAPH_BYTES
    return found / recipe.pipeline_parallel_size


def kinds_of(deployment: Deployment) -> tuple[str, ...]:
    """Return the kinds of a deployment in ``memory_errors.csv``; the widest one applies."""
    if deployment.serving.engine != VLLM:
        return (deployment.serving.engine,)
    model, mixers = deployment.model, [g.attention for g in deployment.model.layer_groups]
    kind = DENSE if model.moe is None else MIXTURE
    if any(isinstance(mixer, LatentAttentionSpec) for mixer in mixers):
        kind = LATENT
    if any(isinstance(mixer, LinearMixerSpec) for mixer in mixers):
        kind = HYBRID
    recipe = deployment.recipe
    several = recipe.tensor_parallel_size * recipe.pipeline_parallel_size > 1
    return (kind, SEVERAL) if several else (kind,)


def half_share(deployment: Deployment) -> float:
    """Return the half-width of the interval of KV memory, as a share of visible memory.

    It is the largest error on logged start-ups of the kind. It is at least the P90 of all errors on
    vLLM's start-ups (``scripts/score_memory.py --write``).
    """
    known = _half_shares()
    return max(known.get(kind, known[OTHER]) for kind in kinds_of(deployment))


@lru_cache(maxsize=1)
def _half_shares() -> dict[str, float]:
    rows = engine_rows("memory_errors.csv")
    return {row["kind"]: float(row["half_percent"]) / 100 for row in rows}
