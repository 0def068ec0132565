"""How far predicted KV memory lies from what start-ups logged, by kind of deployment."""

from functools import lru_cache

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import engine_rows
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec
from pinn.specs.serving import VLLM

#: Kinds of ``data/engines/memory_errors.csv``; every other has the widest.
DENSE, MIXTURE, LATENT, HYBRID, SEVERAL = "dense", "mixture", "latent", "hybrid", "several GPUs"
OTHER = "other"


def kinds_of(deployment: Deployment) -> tuple[str, ...]:
    """What decides how well a deployment's memory is known: the wider of several holds."""
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
    """Half the width of the interval of KV memory, as a share of what the engine may use.

    Written by ``scripts/score_memory.py --write``: the largest error among start-ups of the kind,
    and never less than what holds for 90 % of all.
    """
    known = _half_shares()
    return max(known.get(kind, known[OTHER]) for kind in kinds_of(deployment))


@lru_cache(maxsize=1)
def _half_shares() -> dict[str, float]:
    rows = engine_rows("memory_errors.csv")
    return {row["kind"]: float(row["half_percent"]) / 100 for row in rows}
