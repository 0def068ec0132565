"""How much wider or narrower intervals are by what is known of a deployment before it is measured.

``width_fit`` fits it to errors of held-out groups.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pinn.engines.deployment import Deployment
from pinn.specs.serving import VLLM

#: Width of a layer from which launching hardly shows in a step. An assumption.
WIDE_LAYER = 4096.0

#: What is known beforehand, in words -> how much of it a deployment has, on a GPU whose serving
#: data were learned from or not. Chosen for what they mean before they were fitted.
TRAITS: dict[str, Callable[[Deployment, bool], float]] = {
    "an engine other than vLLM": lambda d, _: float(d.serving.engine != VLLM),
    "a GPU without serving data": lambda _, gpu_known: float(not gpu_known),
    "narrow layers": lambda d, _: max(math.log(WIDE_LAYER / d.model.hidden_size), 0.0),
    "experts spread over ranks": lambda d, _: float(d.recipe.expert_parallel_size > 1),
}

#: A trait that widens intervals by less goes without saying.
_WORTH_SAYING = 1.1


@dataclass(frozen=True)
class Widths:
    """What half-widths are multiplied by; nothing for a deployment without traits.

    Attributes:
        traits: Name in ``TRAITS`` -> logarithm of the factor of one unit of it.
    """

    traits: Mapping[str, float] = field(default_factory=dict)

    def of(self, deployment: Deployment, gpu_known: bool) -> float:
        """What a deployment's half-widths are multiplied by."""
        return math.prod(self._factors(deployment, gpu_known).values())

    def reasons(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        """Traits that widen a deployment's intervals, each with its factor, the largest first."""
        found = sorted(self._factors(deployment, gpu_known).items(), key=lambda one: -one[1])
        return {name: factor for name, factor in found if factor >= _WORTH_SAYING}

    def _factors(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        return {
            name: math.exp(weight * TRAITS[name](deployment, gpu_known))
            for name, weight in self.traits.items()
        }
