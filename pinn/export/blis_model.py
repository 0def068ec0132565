"""What the Go simulator BLIS knows of a model, a GPU and a configuration.

Read at its August 2026 state; its simplifications are kept, because its step time has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.specs.config_fields import ConfigFields, read_fields
from pinn.specs.data_folder import read_json
from pinn.specs.deployment import Deployment
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import AttentionSpec, DenseFfnSpec, ModelSpec
from pinn.specs.model_names import find_in_catalog
from pinn.specs.precision import Precision

#: Bytes per weight as BLIS counts them: the element alone, no scales.
_NOMINAL_BYTES = {
    "int4_wo": 0.5, "mxfp4": 0.5, "mxfp4_mxfp8": 0.5, "nvfp4": 0.5, "fp8_block": 1.0,
    "int8_wo": 1.0,
}  # fmt: skip
_ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class BlisModel:
    """The numbers that BLIS's basis functions are made of.

    Attributes:
        layers: L.
        hidden_size: d.
        heads: h.
        kv_heads: Of the config; as many as heads for MLA, whose configs say so.
        expert_width: f_m, of one routed expert; 0 for a dense model.
        dense_width: f_d.
        shared_width: f_s, of all shared experts together.
        experts: N; 0 for a dense model.
        top_k: k.
        interleave: s, ``interleave_moe_layer_step``; 0 without it.
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


def blis_model(deployment: Deployment, source: str | None = None) -> BlisModel:
    """BLIS's view of a deployment.

    Args:
        deployment: What is served.
        source: Name or path that the model was loaded by; by default its own name. Two fields of
            interleaved models come from that config.json alone.
    """
    model, recipe = deployment.model, deployment.recipe
    fields = _config(source or model.name)
    moe, attention = model.moe, model.layer_groups[0].attention
    formats = model.precisions
    weights = formats.experts if moe else formats.dense_ffn
    weight_bytes = _NOMINAL_BYTES.get(weights.name, weights.bytes_per_weight)
    return BlisModel(
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=attention.heads,
        kv_heads=attention.kv_heads if isinstance(attention, AttentionSpec) else attention.heads,
        expert_width=moe.width if moe else 0,
        dense_width=_dense_width(model, fields),
        shared_width=moe.shared_width if moe else 0,
        experts=moe.experts if moe else 0,
        top_k=max(moe.top_k, 1) if moe else 1,
        interleave=int((fields and fields.get("interleave_moe_layer_step")) or 0),
        weight_bytes=weight_bytes,
        activation_bytes=_ACTIVATION_BYTES,
        tensor_parallel=recipe.tensor_parallel_size,
        data_parallel=recipe.data_parallel_size,
        peak_tflops=_peak_tflops(deployment.gpu, weights),
        bandwidth_tb_s=deployment.gpu.memory_bandwidth_bytes_per_s / 1e12,
    )


def _peak_tflops(gpu: GpuSpec, weights: Precision) -> float:
    """The FP8 rate only where a weight takes one byte and the GPU has one."""
    one_byte = _NOMINAL_BYTES.get(weights.name, weights.bytes_per_weight) == 1
    fp8 = gpu.peak_flop_per_s.get("fp8") if one_byte else None
    return (fp8 or gpu.peak_flop_per_s["bf16"]) / 1e12


def _config(source: str) -> ConfigFields | None:
    path = Path(source).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        known = find_in_catalog(source)
        if known is None:
            return None
        path = known[1]
    return read_fields(read_json(path), str(path))


def _dense_width(model: ModelSpec, fields: ConfigFields | None) -> int:
    mlp = fields.get("intermediate_size_mlp") if fields else None
    if mlp is not None:
        return int(mlp)
    dense = [g.ffn.width for g in model.layer_groups if isinstance(g.ffn, DenseFfnSpec)]
    return dense[0] if dense else 0


def hardware_entry(gpu: GpuSpec) -> Mapping[str, Any]:
    """A GPU's entry in the file of ``--hardware-config``; step times do not use the two mfu."""
    tflops = {kind: rate / 1e12 for kind, rate in gpu.peak_flop_per_s.items()}
    return {
        "TFlopsPeak": tflops["bf16"],
        "TFlopsFP8": tflops.get("fp8", 0.0),
        "BwPeakTBs": gpu.memory_bandwidth_bytes_per_s / 1e12,
        "mfuPrefill": 0.5,
        "mfuDecode": 0.5,
        "MemoryGiB": gpu.memory_bytes / 2**30,
    }
