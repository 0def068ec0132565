"""Factors of interval widths by traits: properties of a deployment known before a measurement.

The module ``width_fit`` fits the factors to errors of held-out groups.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pinn.engines.deployment import Deployment
from pinn.specs.serving import VLLM

#: Hidden size above which the launch time of layers hardly affects a step (an assumption).
WIDE_LAYER = 4096.0

#: Functions that return the amount of a trait in a deployment, given the deployment and whether the
#: training data include serving data of its GPU, by name of the trait. Traits were chosen for their
#: meaning, before any fit.
TRAITS: dict[str, Callable[[Deployment, bool], float]] = {
    "an engine other than vLLM": lambda d, _: float(d.serving.engine != VLLM),
    "a GPU without serving data": lambda _, gpu_known: float(not gpu_known),
    "narrow layers": lambda d, _: max(math.log(WIDE_LAYER / d.model.hidden_size), 0.0),
    "experts spread over ranks": lambda d, _: float(d.recipe.expert_parallel_size > 1),
}

#: Definitions of traits whose names do not explain themselves.
_DEFINED = {
    "narrow layers": f"hidden size below {WIDE_LAYER:,.0f}",
    "experts spread over ranks": "expert parallelism",
}

#: Minimum factor of a trait for a sentence to name it as a reason for wider intervals.
_WORTH_SAYING = 1.1


def trait_words(name: str) -> str:
    """Return a trait's name, with its definition if the name is not self-explanatory.

    >>> trait_words("narrow layers")
    'narrow layers (hidden size below 4,096)'
    """
    return f"{name} ({_DEFINED[name]})" if name in _DEFINED else name


@dataclass(frozen=True)
class Widths:
    """Factors of half-widths, by metric and by trait of a deployment.

    Attributes:
        traits: Log of the factor by which one unit of a trait widens intervals, by name in
            ``TRAITS``.
        levels: Factor of the half-widths of all deployments, by metric (``tpot``, ``ttft``); 1
            if missing.
    """

    traits: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)

    def of(self, deployment: Deployment, gpu_known: bool) -> float:
        """Return the factor by which the traits of a deployment widen its intervals."""
        return math.prod(self._factors(deployment, gpu_known).values())

    def reasons(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        """Return the factor of each trait that widens a deployment's intervals, largest first."""
        found = sorted(self._factors(deployment, gpu_known).items(), key=lambda one: -one[1])
        return {name: factor for name, factor in found if factor >= _WORTH_SAYING}

    def _factors(self, deployment: Deployment, gpu_known: bool) -> dict[str, float]:
        return {
            name: math.exp(weight * TRAITS[name](deployment, gpu_known))
            for name, weight in self.traits.items()
        }
