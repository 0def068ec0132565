"""What the size of a KV cache and the speed of a server say about its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import kv_layout
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import list_gpus, load_gpu
from pinn.specs.precision_override import with_precision
from pinn.training.calibration.checks import Finding

#: Flag -> values that are tried as an explanation.
_VALUES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16),
    "pipeline_parallel_size": (1, 2, 4),
    "kv_cache_dtype": ("auto", "fp8"),
    "block_size": (8, 16, 32, 64, 128),
    "gpu_memory_utilization": (0.7, 0.75, 0.8, 0.85, 0.88, 0.92, 0.95, 0.97),
}
_PRECISIONS = ("bf16", "fp8", "nvfp4", "int4")

#: Share by which a count of KV blocks may differ, and share of the GPU's memory on top: what
#: vLLM measures at start (activations, CUDA graphs of some versions) is estimated here.
_KV_SHARE, _MEMORY_SHARE = 0.08, 0.03

#: Measured over predicted times beyond this factor are a mistake whatever the cause, since no
#: left-out model was off by half as much; from the smaller one on if a single flag explains it.
FAR, OFF = 2.0, 1.5

#: A flag explains a time if it brings the prediction this near.
_EXPLAINED = 1.2


def alternatives(
    deployment: Deployment, flags: tuple[str, ...]
) -> Iterator[tuple[str, Deployment]]:
    """The deployment with one flag changed, and the flag as typed.

    Args:
        deployment: As the user gave it.
        flags: Fields of ``ServingSpec``, ``precision`` or ``gpu``.
    """
    for name in flags:
        for value in {"precision": _PRECISIONS, "gpu": list_gpus()}.get(
            name, _VALUES.get(name, ())
        ):
            try:
                changed = _changed(deployment, name, value)
            except PinnError:
                continue
            if changed != deployment:
                option = "--quantization" if name == "precision" else f"--{name.replace('_', '-')}"
                yield f"{option} {value}", changed


def _changed(deployment: Deployment, name: str, value: Any) -> Deployment:
    if name == "precision":
        return replace(deployment, model=with_precision(deployment.model, str(value)))
    if name == "gpu":
        return replace(deployment, gpu=load_gpu(str(value)))
    return replace(deployment, serving=replace(deployment.serving, **dict[str, Any]({name: value})))


def check_kv_blocks(blocks: int, deployment: Deployment) -> Finding | None:
    """A server's KV blocks against the memory model.

    Args:
        blocks: As the server tells them.
        deployment: As the user gave it.
    """
    expected = _blocks(deployment)
    if expected is not None and _fits(blocks, deployment):
        return None
    flags = (*_VALUES, "precision", "gpu")
    near = [
        (abs(np.log(found / blocks)), option)
        for option, changed in alternatives(deployment, flags)
        if (found := _blocks(changed)) and _fits(blocks, changed)
    ]
    typed = f"--tensor-parallel-size {deployment.serving.tensor_parallel_size}"
    fits = "the model does not fit" if expected is None else f"{expected:,} fit {typed}"
    text = f"{blocks:,} KV blocks on each GPU, but {fits} on {deployment.gpu.name}"
    if not near:
        return Finding(text, "no single flag explains it: is --model the one that was served?")
    # The number of GPUs goes first: that is what people mistake.
    shown = [option for _, option in sorted(near, key=lambda pair: pair[0])[:2]]
    parallel = [o for _, o in near if o.startswith("--tensor-parallel-size")]
    shown = list(dict.fromkeys(parallel[:1] + shown))
    return Finding(text, f"they fit {' or '.join(shown)}")


def _blocks(deployment: Deployment) -> int | None:
    try:
        # The longest request that the cache must hold is no matter here.
        serving = replace(deployment.serving, max_model_len=1)
        return kv_layout(replace(deployment, serving=serving), EngineSpec()).blocks or None
    except PinnError:
        return None


def _fits(blocks: int, deployment: Deployment) -> bool:
    expected = _blocks(deployment)
    if expected is None:
        return False
    block_bytes = kv_layout(
        replace(deployment, serving=replace(deployment.serving, max_model_len=1)), EngineSpec()
    ).block_bytes
    room = _KV_SHARE * expected + _MEMORY_SHARE * deployment.gpu.memory_bytes / block_bytes
    return abs(blocks - expected) <= room


def check_speed(
    ratio: Callable[[Deployment], float], deployment: Deployment, what: str
) -> Finding | None:
    """Measured over predicted times: a factor that no model was ever off by is a mistake.

    Args:
        ratio: Median of measured over predicted times, as served by a deployment.
        deployment: As the user gave it.
        what: What was measured, for the text.
    """
    got = ratio(deployment)
    if not np.isfinite(got) or max(got, 1 / got) < OFF:
        return None
    text = f"{what} {_times(got)} as predicted"
    scale = next((s for s in (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9) if 1 / 3 < got / s < 3), None)
    if scale is not None:
        return Finding(text, f"are its times in a unit {_unit(scale)} what it should be?")
    near = []
    for each, changed in alternatives(deployment, ("tensor_parallel_size", "precision", "gpu")):
        try:
            found = ratio(changed)
        except PinnError:
            continue
        if np.isfinite(found) and max(found, 1 / found) < _EXPLAINED:
            near.append((abs(np.log(found)), each))
    if near:
        return Finding(text, f"{' or '.join(o for _, o in sorted(near)[:3])} would explain it")
    if max(got, 1 / got) < FAR:
        return None
    return Finding(text, "check --model, --gpu, --tensor-parallel-size and --quantization")


def _times(ratio: float) -> str:
    size = max(ratio, 1 / ratio)
    shown = f"{size:.2g}" if size < 100 else f"{size:.0f}"
    return f"{shown} times as {'long' if ratio > 1 else 'short'}"


def _unit(scale: float) -> str:
    return f"{1 / scale:,.0f} times" if scale < 1 else f"1/{scale:,.0f} of"
