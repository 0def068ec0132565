"""Acceptance by the counters of a metrics page."""

import pytest

from pinn.api.flag_values import checked_flag
from pinn.errors import PinnError
from pinn.measurements.benchmarks.metrics_page import measured_acceptance
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

PAGE = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 1000.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1600.0
"""
POSITIONS = "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{at}"}} {count}\n'
    for at, count in enumerate((800.0, 520.0, 260.0))
)


def test_positions_are_shares_of_those_before():
    assert measured_acceptance(PAGE + POSITIONS, "page") == pytest.approx((0.8, 0.65, 0.5))


def test_without_positions_one_rate_holds_for_all():
    assert measured_acceptance(PAGE, "page") == pytest.approx((1600 / 3000,))


def test_a_page_without_drafts_is_refused():
    with pytest.raises(PinnError, match="no vllm:spec_decode counter"):
        measured_acceptance("vllm:num_requests_running 3", "page")


def test_the_flag_takes_a_page(tmp_path):
    page = tmp_path / "metrics.txt"
    page.write_text(PAGE + POSITIONS)
    (flag,) = (f for f in flags_of(ServingSpec) if f.name == "speculative_acceptance")
    assert checked_flag(flag, str(page)) == "0.8000,0.6500,0.5000"
    assert checked_flag(flag, "0.7") == "0.7"
