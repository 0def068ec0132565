"""Features of a step of data-parallel ranks that share their experts.

Every rank attends to requests of its own, and in every layer of experts all ranks exchange tokens:
none begins that layer's experts before the slowest has ended its attention. A step takes

    the longest of the ranks' own parts + the part that all share

where a rank's own part is what it does to its own tokens (attention, projections, dense and shared
layers, sampling, launches), and the shared part is the routed experts' work on the tokens of all
ranks and, where tokens are gathered, their exchange. Ranks whose batches are alike step like one
that is asked about alone, which is what every other prediction of a step assumes.

Not modeled: that padded rows pass a rank's own layers, too, where another rank is the slowest; that
ranks are the slowest in some layers each.
"""

import numpy as np
from jaxtyping import Bool, Float

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import GATHER
from pinn.physics.batch_sums import BatchSums
from pinn.specs.serving import VLLM
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES

#: Features of the experts' work. The fixed time of expert layers belongs to each rank.
_OF_EXPERTS = np.array(
    [f.part == "experts" and f.resource != "host" for f in STEP_FEATURES.values()]
)
_OF_EXCHANGE = np.array([name == "expert_exchange" for name in STEP_FEATURES])


def shares_experts(deployment: Deployment) -> bool:
    """Return whether data-parallel ranks share the routed experts."""
    return deployment.model.moe is not None and deployment.recipe.data_parallel_size > 1


def shared_features(deployment: Deployment) -> Bool[np.ndarray, " features"]:
    """Return which features are of the part of a step that ranks share; none where they do not.

    Where tokens go to the ranks that need them alone, the exchange is as long as the fullest rank's
    sending, which is a part of its own.
    """
    if not shares_experts(deployment):
        return np.zeros(len(STEP_FEATURES), bool)
    return _OF_EXPERTS | _OF_EXCHANGE if _gathers(deployment) else _OF_EXPERTS


def _gathers(deployment: Deployment) -> bool:
    """Return whether every rank gets the tokens of all ranks.

    vLLM's default is an all-gather and a reduce-scatter from 0.11 on (``vllm/config/parallel.py:
    all2all_backend``), and broadcasts before (0.10.2 ``vllm/envs.py: VLLM_ALL2ALL_BACKEND``).
    """
    model, recipe = deployment.model, deployment.recipe
    assert model.moe is not None
    ranks = recipe.tensor_parallel_size * recipe.data_parallel_size
    needed_by_all = recipe.expert_parallel_size < ranks or model.moe.top_k >= ranks
    return deployment.serving.engine == VLLM or recipe.expert_exchange == GATHER or needed_by_all


def group_features(
    deployment: Deployment, own: BatchSums, shared: BatchSums
) -> Float[np.ndarray, "... features"]:
    """Return the features of steps of a group of ranks.

    Args:
        deployment: Deployment of the ranks.
        own: Batches of the slowest rank.
        shared: Batches of the shared experts, per rank; ignored if ranks share none.
    """
    found = deployment_features(deployment, own)
    mask = shared_features(deployment)
    if mask.any():
        found[..., mask] = deployment_features(deployment, shared)[..., mask]
    return found
