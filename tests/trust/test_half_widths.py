"""From two learned spreads to three metrics: gains magnify, TTFT and decodes add up to E2E."""

import numpy as np
import pytest
from calibrations import sizes
from left_out_errors import left_out_errors

from pinn.trust.half_widths import fit_spreads, half_widths
from pinn.trust.spread import Spread

SPREADS = {"tpot": Spread(sizes(base=0.1), 0.1), "ttft": Spread(sizes(base=0.4), 0.1)}


def rows(**columns):
    return left_out_errors(1, {"base": 0.1}, gpus=1, rows=1).assign(**columns)


def test_without_gains_e2e_lies_between_step_time_and_ttft():
    for share in (0.0, 0.3, 1.0):
        half = half_widths(SPREADS, rows(ttft_share=share))
        assert half["tpot"][0] == pytest.approx(0.1)
        assert half["ttft"][0] == pytest.approx(0.4)
        end = share * np.exp(0.4) + (1 - share) * np.exp(0.1)
        assert half["e2e"][0] == pytest.approx(np.log(end))


def test_queues_magnify_the_step_time_in_every_figure():
    half = half_widths(SPREADS, rows(tpot_gain=2.0, ttft_gain=9.0, e2e_gain=3.0, ttft_share=0.2))
    assert half["tpot"][0] == pytest.approx(0.2)
    assert half["ttft"][0] == pytest.approx(0.9)
    assert half["e2e"][0] == pytest.approx(0.3)


def test_errors_that_queues_magnified_teach_the_step_time_behind_them():
    errors = left_out_errors(8, {"base": 0.05})
    magnified = errors.assign(tpot=3 * errors["tpot"], tpot_gain=3.0)
    before, after = (fit_spreads(table)["tpot"].sizes["base"] for table in (errors, magnified))
    assert after == pytest.approx(before, rel=1e-3)
