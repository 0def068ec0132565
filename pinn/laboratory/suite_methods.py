"""Methods of the evaluation suite."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.interface.exports.blis_features import BlisSums, blis_features
from pinn.interface.exports.blis_model import blis_model
from pinn.laboratory.aiconfigurator import released_predictions
from pinn.laboratory.formulas import (
    formula_per_deployment,
    hierarchical_basis,
    linear_formula,
    phase_floors,
    published_formula,
    row_bases,
    token_counts,
)
from pinn.laboratory.methods import Method, peer, roofline
from pinn.laboratory.regressions import (
    everything,
    linear_settings,
    mlp_settings,
    on_bases,
    regression,
    tree_settings,
)
from pinn.physics.batch_sums import BatchSums
from pinn.units import MICROSECOND

# The methods of the evaluation suite: everything that is compared on the same rows.

#: Global coefficients that come with BLIS (its ``defaults.yaml``, ``trained_physics_coefficients``,
#: August 2026): alpha us before the queue, us at completion, us per output token; beta.
BLIS_ALPHA = (15563.2, 777.3, 45.9)
BLIS_BETA = (0.152, 0.0, 1.363, 0.752, 32.1, 4.42, 126.0, 482.0, 0.0, 1.947, 0.752)

#: Methods that saw what they predict, or kernels of the very models: no choice for an unseen pair.
NOT_FOR_UNSEEN = ("blackbox, per configuration", "aiconfigurator")

#: Columns of a load.
LOAD = ["concurrency", "prompt_tokens", "output_tokens"]


def published_methods(observations: pd.DataFrame) -> list[Method]:
    """Methods that fit nothing."""
    peers = peer("aiconfigurator", released_predictions())
    return [roofline(), published_blis(observations), peers]


def formulas(observations: pd.DataFrame) -> list[Method]:
    """Formulas whose few coefficients are fitted."""
    counts = row_bases(observations, token_counts)
    return [
        linear_formula("roofline, constant efficiencies", row_bases(observations, phase_floors)),
        linear_formula("blackbox", counts),
        formula_per_deployment("blackbox, per configuration", counts),
    ]


def regressions(observations: pd.DataFrame, seed: int) -> list[Method]:
    """Ridge and lasso on the hierarchical decomposition; trees and an MLP on everything."""
    decomposed = partial(on_bases, row_bases(observations, hierarchical_basis))
    inputs = partial(everything, observations.set_index("row_id")[LOAD])
    return [
        regression("HFD-TL, ridge", "ridge", decomposed, linear_settings(), seed),
        regression("HFD-TL, lasso", "lasso", decomposed, linear_settings(), seed),
        regression("gradient-boosted trees", "trees", inputs, tree_settings(), seed),
        regression("plain MLP", "mlp", inputs, mlp_settings(), seed),
    ]


def published_blis(observations: pd.DataFrame) -> Method:
    """BLIS's trained-physics formula with the coefficients that come with it."""
    before, _, per_token = (us * MICROSECOND for us in BLIS_ALPHA)
    bases = row_bases(observations, blis_basis)
    return published_formula("BLIS, published", bases, np.array(BLIS_BETA), before, per_token)


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
