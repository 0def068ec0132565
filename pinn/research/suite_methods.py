"""The methods of the evaluation suite: everything that is compared on the same rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.data.peers.aiconfigurator import released_predictions
from pinn.evaluation.methods import Method, Peer, Roofline
from pinn.export.blis_features import BlisSums, blis_features
from pinn.export.blis_model import blis_model
from pinn.physics.batch_sums import BatchSums
from pinn.research.donors import hierarchical_basis
from pinn.research.formulas import LinearFormula, PerDeployment, PublishedFormula
from pinn.research.load_bases import Bases, phase_floors, row_bases, token_counts
from pinn.research.regressions import (
    Everything,
    Regression,
    linear_settings,
    mlp_settings,
    on_bases,
    tree_settings,
)
from pinn.specs.deployment import Deployment
from pinn.units import MICROSECOND

#: Global coefficients that come with BLIS (its ``defaults.yaml``, ``trained_physics_coefficients``,
#: August 2026): alpha us before the queue, us at completion, us per output token; beta.
BLIS_ALPHA = (15563.2, 777.3, 45.9)
BLIS_BETA = (0.152, 0.0, 1.363, 0.752, 32.1, 4.42, 126.0, 482.0, 0.0, 1.947, 0.752)

#: Methods that saw what they predict, or kernels of the very models: no choice for an unseen pair.
NOT_FOR_UNSEEN = ("blackbox, per configuration", "aiconfigurator")

#: Columns of a load.
LOAD = ["concurrency", "prompt_tokens", "output_tokens"]


def instant_methods(observations: pd.DataFrame) -> list[Method]:
    """Methods whose fit takes less than a second."""
    counts = row_bases(observations, token_counts)
    return [
        Roofline(),
        LinearFormula("roofline, constant efficiencies", row_bases(observations, phase_floors)),
        LinearFormula("blackbox", counts),
        PerDeployment("blackbox, per configuration", counts),
        published_blis(observations),
        Peer("aiconfigurator", released_predictions()),
    ]


def regressions(observations: pd.DataFrame, seed: int) -> list[Method]:
    """Ridge and lasso on the hierarchical decomposition; trees and an MLP on everything."""
    decomposed = on_bases(hierarchical_bases(observations))
    everything = Everything(observations.set_index("row_id")[LOAD])
    return [
        Regression("HFD-TL, ridge", "ridge", decomposed, linear_settings(), seed),
        Regression("HFD-TL, lasso", "lasso", decomposed, linear_settings(), seed),
        Regression("gradient-boosted trees", "trees", everything, tree_settings(), seed),
        Regression("plain MLP", "mlp", everything, mlp_settings(), seed),
    ]


def published_blis(observations: pd.DataFrame) -> Method:
    """BLIS's trained-physics formula with the coefficients that come with it."""
    before, _, per_token = (us * MICROSECOND for us in BLIS_ALPHA)
    bases = row_bases(observations, blis_basis)
    return PublishedFormula("BLIS, published", bases, np.array(BLIS_BETA), before, per_token)


def blis_basis(
    deployment: Deployment, sums: BatchSums, prompt_tokens: float
) -> Float[np.ndarray, "batches basis"]:
    """BLIS's basis functions of closed-loop batches, seconds.

    Its prefill attention needs sum t (S + t / 2) over chunks of t tokens of prompts of S. The
    second part is taken from the pairs that chunks attend to, which count cached tokens too; whole
    prompts have none.
    """
    blis = BlisSums(
        sums.prefill_tokens,
        sums.decode_requests,
        sums.decode_context - sums.decode_requests,
        sums.requests,
        sums.prefill_tokens * prompt_tokens + sums.prefill_pairs,
    )
    return blis_features(blis_model(deployment), blis) * MICROSECOND


def hierarchical_bases(observations: pd.DataFrame) -> Bases:
    """F_base and F_config of the hierarchical decomposition.

    An unseen pair has no observations to fit its residual to: what transfers is this part.
    """
    return row_bases(observations, hierarchical_basis)
