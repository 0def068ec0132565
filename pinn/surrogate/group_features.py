"""Features of steps of data-parallel ranks that share their experts.

Every rank has its own requests in attention. In every layer with experts, all ranks exchange
tokens, so no rank begins the experts before the slowest rank has finished its attention. A step
takes

    max over ranks of (time of the rank's own part) + time of the shared part

where a rank's own part is the work on its own tokens: attention, projections, dense and shared
layers, sampling, launches. The shared part is the routed experts' work on the tokens of all ranks
and, if tokens are gathered, their exchange. If all ranks have identical batches, each step takes as
long as the predicted step of a single rank. All other step predictions assume this case.

Two effects are not modeled: padded rows in a rank's own layers if another rank is the slowest, and
that different ranks may be the slowest in different layers.
"""

import numpy as np
from jaxtyping import Bool, Float

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import GATHER
from pinn.physics.batch_sums import BatchSums
from pinn.specs.serving import VLLM
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES

#: Mask of the features of the experts' work on tokens. The fixed host time of expert layers is
#: excluded, because it is part of each rank's own time.
_OF_EXPERTS = np.array(
    [f.part == "experts" and f.resource != "host" for f in STEP_FEATURES.values()]
)
_OF_EXCHANGE = np.array([name == "expert_exchange" for name in STEP_FEATURES])


def shares_experts(deployment: Deployment) -> bool:
    """Return whether a deployment has data-parallel ranks that share the routed experts."""
    return deployment.model.moe is not None and deployment.recipe.data_parallel_size > 1


def shared_features(deployment: Deployment) -> Bool[np.ndarray, " features"]:
    """Return which features belong to the shared part of a step; none if experts are not shared.

    If tokens are sent only to the ranks that need them, the exchange takes as long as that of the
    busiest rank, and is part of this rank's own time.
    """
    if not shares_experts(deployment):
        return np.zeros(len(STEP_FEATURES), bool)
    return _OF_EXPERTS | _OF_EXCHANGE if _gathers(deployment) else _OF_EXPERTS


def _gathers(deployment: Deployment) -> bool:
    """Return whether every rank receives the tokens of all ranks before the experts.

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
    """Return the features of the steps of a group of data-parallel ranks.

    Args:
        deployment: Deployment of the ranks.
        own: Sums of the slowest rank's batches.
        shared: Sums of all ranks' batches / number of ranks, for the shared experts; ignored if
            ranks share no experts.
    """
    found = deployment_features(deployment, own)
    mask = shared_features(deployment)
    if mask.any():
        found[..., mask] = deployment_features(deployment, shared)[..., mask]
    return found
