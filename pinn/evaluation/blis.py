"""BLIS's trained-physics formula with the coefficients that come with it."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.evaluation.formulas import formula, published, row_bases
from pinn.evaluation.methods import Method
from pinn.export.blis_features import BlisSums, blis_features
from pinn.export.blis_model import blis_model
from pinn.physics.batch_sums import BatchSums
from pinn.units import MICROSECOND

#: Global coefficients that come with BLIS (its ``defaults.yaml``, ``trained_physics_coefficients``,
#: August 2026): alpha us before the queue, us at completion, us per output token; beta.
BLIS_ALPHA = (15563.2, 777.3, 45.9)
BLIS_BETA = (0.152, 0.0, 1.363, 0.752, 32.1, 4.42, 126.0, 482.0, 0.0, 1.947, 0.752)


def blis(observations: pd.DataFrame) -> Method:
    """BLIS's formula with its own coefficients: it fits nothing."""
    before, _, per_token = (us * MICROSECOND for us in BLIS_ALPHA)
    bases = row_bases(observations, blis_basis)
    return formula("BLIS, published", published, bases, np.array(BLIS_BETA), before, per_token)


def blis_basis(
    deployment: Deployment, sums: BatchSums, prompt_tokens: float
) -> Float[np.ndarray, "batches basis"]:
    """BLIS's basis functions of closed-loop batches, seconds.

    Its prefill attention needs sum t (S + t / 2) over chunks of t tokens of prompts of S. The
    second part is taken from the pairs that chunks attend to, which count cached tokens too; whole
    prompts have none.
    """
    totals = BlisSums(
        sums.prefill_tokens,
        sums.decode_requests,
        sums.decode_context - sums.decode_requests,
        sums.requests,
        sums.prefill_tokens * prompt_tokens + sums.prefill_pairs,
    )
    return blis_features(blis_model(deployment), totals) * MICROSECOND
