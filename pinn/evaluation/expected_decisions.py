"""The planner's rule, judged: deployments picked by their expected throughput within a limit.

The law of the errors comes from the rows of other models (or other GPUs), as does the spread that
gives each row its half-width. So what is judged has chosen nothing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.evaluation.decisions import decide
from pinn.trust.chance import ErrorLaw, error_law
from pinn.trust.coverage import left_out_parts
from pinn.trust.half_widths import fit_spreads, half_widths
from pinn.trust.spread_fit import row_weights

#: What the picks are called beside those of the method that predicts.
RULE = "network, expected"


def expected_decisions(
    errors: pd.DataFrame, predictions: pd.DataFrame, observations: pd.DataFrame
) -> pd.DataFrame:
    """Decisions by the network's predictions and the law of its errors elsewhere.

    Args:
        errors: As ``pinn.evaluation.held_out.held_out_errors`` returns them.
        predictions: Those that the errors are of, and others.
        observations: The measured deployments.

    Returns:
        Table as ``pinn.evaluation.decisions.decide`` returns it; the method is ``RULE``.
    """
    of_network = predictions[predictions["method"] == "network"]
    found = []
    for _, rest, test in left_out_parts(errors):
        spreads = fit_spreads(rest)
        law = error_law(
            rest["tpot"].to_numpy(), half_widths(spreads, rest)["tpot"], row_weights(rest)
        )
        half = test[["split", "row_id"]].assign(half=half_widths(spreads, test)["tpot"])
        rows = of_network.assign(method=RULE).merge(half, on=["split", "row_id"])

        def worth(
            rows: pd.DataFrame, limit_s: float, law: ErrorLaw = law
        ) -> Float[np.ndarray, " rows"]:
            excess = rows["tpot_s"].to_numpy() / limit_s
            return law.worth(excess, rows["half"].to_numpy()) * rows["predicted"].to_numpy()

        found.append(decide(rows, observations, worth))
    return pd.concat(found, ignore_index=True)
