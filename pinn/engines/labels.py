"""Short names of deployments for tables and headings."""

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import served_release
from pinn.specs.flags import flags_of
from pinn.specs.serving import VLLM, ServingSpec


def hardware_label(deployment: Deployment) -> str:
    """Return a short description of a deployment's hardware, such as ``H100-SXM TP 8 bf16``.

    The description has the GPU, the parallel sizes and the number formats, and the engine unless it
    is vLLM.
    """
    recipe, engine = deployment.recipe, deployment.serving.engine
    ranks = {"PP": recipe.pipeline_parallel_size, "DP": recipe.data_parallel_size}
    parts = [deployment.gpu.name, f"TP {recipe.tensor_parallel_size}"]
    parts += [f"{name} {size}" for name, size in ranks.items() if size > 1]
    parts += ["EP"] if recipe.expert_parallel_size > 1 else []
    parts += [format_label(deployment)]
    return " ".join(parts if engine == VLLM else [*parts, engine])


def format_label(deployment: Deployment) -> str:
    """Return the number formats of attention and feed-forward weights, joined by a slash.

    Identical formats are written once. The format of the KV cache is appended if it differs.
    """
    formats = deployment.model.precisions
    ffn = formats.dense_ffn if deployment.model.moe is None else formats.experts
    names = dict.fromkeys([formats.attention.name, ffn.name])
    cache = deployment.kv_cache_precision.name
    return "/".join(names) + (f" with {cache} cache" if cache not in names else "")


def step_limits(deployment: Deployment) -> str:
    """Return the maximum tokens and requests per step as text."""
    recipe = deployment.recipe
    return f"up to {recipe.token_budget:,} tokens and {recipe.max_requests:,} requests per step"


def server_label(deployment: Deployment) -> str:
    """Return model, GPU, formats, engine release and all non-default flags, as text.

    The release is marked as assumed if the user gave none.
    """
    serving = deployment.serving
    release = f"{serving.engine} {served_release(serving.engine, serving.engine_version)}"
    if not serving.engine_version:
        release += " (assumed; set it with --engine-version)"
    flags = [flag for flag in flags_of(ServingSpec) if flag.name not in _IN_RELEASE]
    values = ((flag, getattr(serving, flag.name)) for flag in flags)
    given = [flag.written(value) for flag, value in values if value != flag.default]
    where = f"{deployment.model.title} on {deployment.gpu.name}"
    return ", ".join([where, format_label(deployment), release, *given])


#: Flags that form the engine release in a server's label.
_IN_RELEASE = ("engine", "engine_version")
