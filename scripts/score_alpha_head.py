"""Score the alpha head by its prior spread, on models that neither it nor the network has seen.

python scripts/score_alpha_head.py

Each network in ``checkpoints/left_out`` held a measured model out. For each spread, the head of the
network is fitted again to the other models' deployments and serving runs (``PINN_SERVING_RUNS``),
and predicts TTFT below saturation of the held-out model's deployments. A spread of 0 gives all
deployments the same alpha. Prints the median / mean absolute percentage error in %. No network is
trained.
"""

from dataclasses import dataclass

import numpy as np

from pinn.common.screen import Grid
from pinn.evaluation.config import compose_config, typed
from pinn.evaluation.engines import networks
from pinn.evaluation.measured import Measured, read_measured
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.specs.model import ModelSpec
from pinn.surrogate.architecture import NetworkWeights
from pinn.training.alpha_head import (
    AlphaHeadSettings,
    Latencies,
    deployment_latencies,
    most_probable_head,
    run_latencies,
)
from pinn.training.folds import fold_of, without_model

SPREADS = (0.0, 0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class HeldOutModel:
    """Latencies of a held-out model's deployments, and those to which its head is fitted."""

    own: Latencies
    others: tuple[Latencies, ...]

    def error(self, spread: float) -> str:
        """Return the median / mean absolute percentage error of the model's TTFT."""
        head = most_probable_head(self.others, AlphaHeadSettings(spread))
        ape = 100 * np.abs(np.expm1(self.own.errors(head)[0]))
        return f"{np.median(ape):.1f} / {np.mean(ape):.1f}"


def held_out_model(model: ModelSpec, network: NetworkWeights, measured: Measured) -> HeldOutModel:
    """Simulate all measurements with a network that held a model out, without its alpha head."""
    arrays = dict(network.arrays)
    plain = NetworkWeights(network.settings, arrays | {"alpha_head": 0 * arrays["alpha_head"]})
    others = without_model(measured.rows, model)
    mine = np.array([is_near_copy(d.model, model) for d in measured.rows.deployments])
    own = measured.rows.take(mine[measured.rows.deployment])
    runs = fold_of(others, measured.runs, Exclusion(models=(model,))).runs
    fitted = deployment_latencies(plain, others), run_latencies(plain, runs)
    return HeldOutModel(deployment_latencies(plain, own), fitted)


def main() -> None:
    """Print a row per spread, with a column per held-out model."""
    measured = read_measured(typed(compose_config([])))
    models = {d.model.name: d.model for d in measured.rows.deployments}
    found = {
        name: held_out_model(models[name], network, measured)
        for name, network in networks().left_out.items()
    }
    grid = Grid.of("spread", *found)
    for spread in SPREADS:
        grid.add(f"{spread:g}", *(of_model.error(spread) for of_model in found.values()))
    print(grid.markdown())


if __name__ == "__main__":
    main()
