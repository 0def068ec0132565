"""What the Go simulator BLIS reads of a model, a GPU and a configuration.

Read at its August 2026 state; its simplifications are kept, because its step time has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs.deployment import Deployment
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixer_names import mixer_names
from pinn.specs.model import Attention, AttentionSpec, DenseFfnSpec, ModelSpec
from pinn.specs.precision import ACTIVATION_BYTES

#: Bytes per weight as BLIS counts them: the element alone, no scales.
_NOMINAL_BYTES = {
    "int4_wo": 0.5, "mxfp4": 0.5, "mxfp4_mxfp8": 0.5, "nvfp4": 0.5, "fp8_block": 1.0,
    "int8_wo": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class BlisModel:
    """The numbers that BLIS's basis functions are made of.

    Attributes:
        layers: L.
        hidden_size: d.
        heads: h.
        kv_heads: At least one per GPU, since BLIS panics where TP does not divide them and vLLM
            replicates what is fewer; as many as heads for MLA, whose configs say so.
        expert_width: f_m, of one routed expert; 0 for a dense model.
        dense_width: f_d.
        shared_width: f_s, of all shared experts together.
        experts: N; 0 for a dense model.
        top_k: k.
        interleave: s: dense layers between two of routed experts.
        weight_bytes: w.
        activation_bytes: a.
        tensor_parallel: tp.
        data_parallel: dp.
        peak_tflops: Dense, of the format that BLIS picks.
        bandwidth_tb_s: Of the device memory.
    """

    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    expert_width: int
    dense_width: int
    shared_width: int
    experts: int
    top_k: int
    interleave: int
    weight_bytes: float
    activation_bytes: float
    tensor_parallel: int
    data_parallel: int
    peak_tflops: float
    bandwidth_tb_s: float

    @property
    def head_dim(self) -> int:
        """Width of a head: d div h; an explicit head_dim is ignored."""
        return self.hidden_size // self.heads

    @property
    def moe_layers(self) -> int:
        """L_m: every layer of a mixture of experts, or one in s + 1."""
        if not self.experts:
            return 0
        return self.layers // (self.interleave + 1) if self.interleave else self.layers

    @property
    def dense_layers(self) -> int:
        """L_d."""
        return self.layers - self.moe_layers


def check_expressible(deployment: Deployment) -> None:
    """Refuse what BLIS refuses, or has no words for.

    Raises:
        PinnError: With BLIS's reason and what to do.
    """
    model, recipe = deployment.model, deployment.recipe
    if not model.is_plain:
        raise PinnError(
            f"BLIS's step time knows attention over keys and values alone, and {model.name} has "
            f"other layers ({mixer_names(model)}): export a table for the Go adapter with 'pinn "
            "export table'"
        )
    if recipe.data_parallel_size > 1 and model.moe is None:
        raise PinnError(
            f"BLIS refuses --dp {recipe.data_parallel_size} for {model.name}: dp > 1 needs routed "
            "experts. Replicas of a dense model are servers of their own: export "
            "data_parallel_size 1 and send each simulated server its share of the requests"
        )
    if recipe.pipeline_parallel_size > 1:
        raise PinnError(
            f"BLIS has no pipeline stages, and would run the {recipe.pipeline_parallel_size} of "
            f"{model.name} one after another: export tensor_parallel_size in place of "
            "pipeline_parallel_size, or take the Go adapter"
        )
    if recipe.speculation is not None:
        raise PinnError(
            f"BLIS decodes one token of a request in a step, and {recipe.speculation.method} "
            "verifies several: leave speculative_config out, or take 'pinn simulate', or the Go "
            "package and 'pinn export table'"
        )


def blis_model(deployment: Deployment) -> BlisModel:
    """What BLIS reads of the files of a deployment, see ``pinn.export.blis_config``."""
    model, recipe = deployment.model, deployment.recipe
    moe, attention = model.moe, model.layer_groups[0].attention
    assert isinstance(attention, Attention)
    weights = model.precisions.experts if moe else model.precisions.dense_ffn
    weight_bytes = _NOMINAL_BYTES.get(weights.name, weights.bytes_per_weight)
    grouped = isinstance(attention, AttentionSpec)
    return BlisModel(
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=attention.heads,
        kv_heads=max(
            attention.kv_heads if grouped else attention.heads, recipe.tensor_parallel_size
        ),
        expert_width=moe.width if moe else 0,
        dense_width=_dense_width(model),
        shared_width=moe.shared_width if moe else 0,
        experts=moe.experts if moe else 0,
        top_k=max(moe.top_k, 1) if moe else 1,
        # The first few dense layers of DeepSeek-like models are no pattern: BLIS counts none.
        interleave=model.layers // model.moe_layers - 1 if moe else 0,
        weight_bytes=weight_bytes,
        activation_bytes=ACTIVATION_BYTES,
        tensor_parallel=recipe.tensor_parallel_size,
        data_parallel=recipe.data_parallel_size,
        peak_tflops=_peak_tflops(deployment.gpu, weight_bytes),
        bandwidth_tb_s=deployment.gpu.memory_bandwidth_bytes_per_s / 1e12,
    )


def _peak_tflops(gpu: GpuSpec, weight_bytes: float) -> float:
    """The FP8 rate only where a weight takes one byte and the GPU has one."""
    fp8 = gpu.peak_flop_per_s.get("fp8") if weight_bytes == 1 else None
    return (fp8 or gpu.peak_flop_per_s["bf16"]) / 1e12


def _dense_width(model: ModelSpec) -> int:
    dense = [g.ffn.width for g in model.layer_groups if isinstance(g.ffn, DenseFfnSpec)]
    return dense[0] if dense else 0
