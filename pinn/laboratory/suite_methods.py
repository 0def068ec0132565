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
    formula,
    hierarchical_basis,
    learn_linear,
    learn_per_deployment,
    phase_floors,
    published,
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
    """Methods that fit nothing: BLIS's trained-physics formula has its own coefficients."""
    before, _, per_token = (us * MICROSECOND for us in BLIS_ALPHA)
    basis, given = row_bases(observations, blis_basis), (np.array(BLIS_BETA), before, per_token)
    blis = formula("BLIS, published", published, basis, *given)
    return [roofline(), blis, peer("aiconfigurator", released_predictions())]


def formulas(observations: pd.DataFrame) -> list[Method]:
    """Formulas whose few coefficients are fitted."""
    counts, floors = (row_bases(observations, basis) for basis in (token_counts, phase_floors))
    return [
        formula("roofline, constant efficiencies", learn_linear, floors),
        formula("blackbox", learn_linear, counts),
        formula("blackbox, per configuration", learn_per_deployment, counts),
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
