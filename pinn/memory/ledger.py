"""Memory of a GPU by use, in bytes, excluding the KV cache.

vLLM measures most entries at start (``vllm/v1/worker/gpu_worker.py: determine_available_memory``).
Here, entries that follow from vLLM's source code are computed, and all others are fitted to logged
start-ups. ``scripts/score_memory.py`` compares predictions with logs.
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

#: GPU memory that CUDA does not report: constant bytes, plus a share of the total. The memory
#: computed from these values is within 0.15 GiB of what CUDA reports for 15 GPU models, except
#: A100-80GB (0.27 GiB).
KEPT_BYTES, KEPT_SHARE = 0.45 * GIB, 0.0016
#: Bytes of CUDA modules and workspaces; and bytes of NCCL's and custom all-reduces' buffers, which
#: exist only with several GPUs. vLLM 0.11.0 logs their sum as "non-torch" memory: 0.13 to 0.14 GiB
#: on one H100, 0.54 to 0.55 GiB on two, and 0.21 GiB on two L40S without NVLink.
CONTEXT_BYTES = 0.13 * GIB
COMMUNICATION_BYTES = 0.41 * GIB
PCIE_COMMUNICATION_BYTES = 0.08 * GIB
#: Bytes per GPU that SGLang uses before it loads weights: on any GPU, and in addition with several
#: GPUs. Compared with CUDA's total, SGLang logs 0.3 to 0.6 GiB less free memory on one H100 (0.4.1,
#: 0.4.4, 0.5.19) and 1.8 GiB less on eight H200 (0.5.12).
SGLANG_CONTEXT_BYTES = 0.5 * GIB
SGLANG_COMMUNICATION_BYTES = 1.3 * GIB
#: Peak activation elements per token of a dense layer, as a multiple of its inner width: both
#: halves of the gated activation, its result and a copy. Twice the residual stream is added.
#: Measured peaks of steps of 8,192 and 16,384 tokens (vLLM 0.11.0 and 0.10.2) are 3.92 widths.
FFN_VALUES = 4.0
#: ``EXPERT_VALUES``: peak activation elements per token of an expert layer, as a multiple of its
#: experts' inner width. ``EXPERT_COPIES``: number of buffers. Grouped products need two buffers at
#: once (vLLM model_executor/layers/fused_moe: workspace13, workspace2), each with the residual
#: stream and three widths.
EXPERT_VALUES, EXPERT_COPIES = 3.0, 2.0
#: Bytes of CUDA graphs per layer with experts, and per layer with latent attention, as vLLM
#: estimates them at start. Logged estimates are 0.028 to 0.029 GiB for gpt-oss-120b with any number
#: of GPUs and captured sizes, and 0.044 to 0.067 GiB for DeepSeek. For dense layers, only one
#: logged estimate is known (vLLM 0.31.0: 1.1 GiB for 32 layers).
GRAPH_BYTES, LATENT_GRAPH_BYTES = 0.029 * GIB, 0.055 * GIB
#: Value of the setting ``counted_graphs`` for releases that subtract the CUDA graphs of all layers.
ALL_LAYERS = "all"
#: Types of deployments in ``data/engines/memory_errors.csv``. All other types have the widest
#: interval.
DENSE, MIXTURE, LATENT, HYBRID, SEVERAL = "dense", "mixture", "latent", "hybrid", "several GPUs"
OTHER = "other"


@dataclass(frozen=True)
class Reserve:
    """Bytes on one GPU used by neither weights nor the KV cache.

    Attributes:
        context: CUDA modules and library workspaces.
        communication: Buffers of collective communication.
        forward: Peak memory of activations in a step of ``max_num_batched_tokens`` tokens.
        sampler: Peak memory of sampling for ``max_num_seqs`` requests. Only the maximum of
            ``sampler`` and ``forward`` counts.
        graphs: CUDA graphs, if the release subtracts an estimate of their size.
        given: Total specified by the user, which replaces all other fields.
    """

    context: float = 0.0
    communication: float = 0.0
    forward: float = 0.0
    sampler: float = 0.0
    graphs: float = 0.0
    given: float = 0.0

    @property
    def total(self) -> float:
        """Return the total bytes of all reserved memory."""
        return self.given + self.context + self.communication + self.peak + self.graphs

    @property
    def peak(self) -> float:
        """Return the peak bytes of activations; layers free theirs before sampling starts."""
        return max(self.forward, self.sampler)


@dataclass(frozen=True)
class MemoryLedger:
    """Bytes of one GPU's memory, by use, excluding the KV cache.

    Attributes:
        board: Total memory of the GPU, as nvidia-smi reports it.
        visible: Total memory that CUDA reports.
        share: Share of memory that the engine may use, 0 to 1.
        share_of: Memory to which ``share`` refers: visible memory (``TOTAL``, vLLM), memory that is
            free before weights are loaded (``STATIC``, SGLang) or after (``FREE``, TensorRT-LLM).
        weights: Weights of the model and its draft model, except weights offloaded to host memory.
        lora: Slots that are allocated for LoRA adapters.
        reserve: All other memory, except the KV cache.
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
        """Return the bytes that are subtracted from the engine's share, except weights and LoRA.

        For SGLang they are 0: activations and graphs use memory outside its static share. The share
        refers to the memory that was free before the weights were loaded (``model_runner.py:
        profile_max_num_token`` of 0.4.9, later ``kv_cache_configurator.py:
        _profile_available_bytes``).
        """
        return 0.0 if self.share_of == STATIC else self.reserve.total

    @property
    def usable_bytes(self) -> float:
        """Return the bytes in the engine's memory share; for ``FREE``, all visible memory."""
        if self.share_of == STATIC:
            held = self.reserve.context + self.reserve.communication
            return (self.visible - held) * self.share
        return self.visible * (1.0 if self.share_of == FREE else self.share)

    @property
    def left_bytes(self) -> float:
        """Return the bytes left for KV cache and recurrent states; may be negative."""
        left = self.usable_bytes - self.weights - self.lora - self.reserved_bytes
        return left * self.share if self.share_of == FREE else left

    def sizes(self) -> dict[str, float]:
        """Return the bytes on one GPU of each use except the KV cache, by name."""
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
    """Return the memory by use on each GPU of one replica.

    Args:
        deployment: Deployment of the replica.
        engine: Engine settings, which may specify the bytes reserved for activations.
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
    """Return the total bytes that CUDA reports for a GPU (H100: 79.1 of 79.65 GiB)."""
    return gpu.memory_bytes * (1 - KEPT_SHARE) - KEPT_BYTES


def reserve(deployment: Deployment) -> Reserve:
    """Return the memory on one GPU used by neither weights nor the KV cache."""
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
    """Return the bytes of the CUDA context, and of communication buffers (0 for one GPU)."""
    recipe = deployment.recipe
    several = recipe.tensor_parallel_size * recipe.pipeline_parallel_size > 1
    if recipe.memory_share_of == STATIC:
        return SGLANG_CONTEXT_BYTES, several * SGLANG_COMMUNICATION_BYTES
    buffers = COMMUNICATION_BYTES if deployment.gpu.has_nvlink else PCIE_COMMUNICATION_BYTES
    return CONTEXT_BYTES, several * buffers


def _values(group: LayerGroup, deployment: Deployment) -> float:
    """Return the peak number of activation elements per token in a layer of this group."""
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
    """Return a deployment's classes in ``memory_errors.csv``; the widest bounds apply."""
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
    """Return the half-width of the KV memory interval, as a share of visible memory.

    The half-width is the maximum error of predictions for logged start-ups of the deployment's
    type, but at least the P90 of all errors for vLLM's start-ups (``scripts/score_memory.py
    --write``).
    """
    known = _half_shares()
    return max(known.get(kind, known[OTHER]) for kind in kinds_of(deployment))


@lru_cache(maxsize=1)
def _half_shares() -> dict[str, float]:
    rows = engine_rows("memory_errors.csv")
    return {row["kind"]: float(row["half_percent"]) / 100 for row in rows}
