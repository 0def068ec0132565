"""Known calibration factors through files of benchmarks and back, in a few trials.

``python scripts/score_calibration.py round-trips`` runs many trials of every kind.
"""

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from round_trips import round_trip, score

from pinn.calibration.prior import assumed_prior


def prior_of(_):
    found = prior_coefficients(1)
    return assumed_prior(np.concatenate([found.beta[0], found.alpha[0]]))


@pytest.mark.parametrize("kind", ["vllm bench", "sglang", "InferenceX"])
def test_known_scalars_come_back_within_their_intervals(kind):
    """Check intervals; SGLang's lengths begin at one token, InferenceX is of TensorRT-LLM here."""
    (row,) = score(prior_of, 5, [kind]).to_dict("records")
    assert row["off_within"] >= 85
    assert row["others_within"] >= 90
    assert row["error_after"] < row["error_before"]


def test_a_scalar_that_was_off_moves_towards_its_truth():
    """Check that most factors that a benchmark determines end closer to their truth.

    Requests have several lengths. Equal requests of a closed loop come in waves, whose TTFT shrinks
    as often as it grows with the API server's time.
    """
    tables = [round_trip("sglang", prior_of(None), seed) for seed in range(16)]
    nearer = [
        abs(row.found - row.truth) < abs(1 - row.truth)
        for table in tables
        for row in table[table["off"]].itertuples()
    ]
    assert np.mean(nearer) > 0.6
