"""Batches and times equal those of SGLang 0.5.9's own scheduler, recorded once.

The command that records them anew is in record_sglang_schedules.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repeated_schedules import check_schedule
from simulator_helpers import deployment

CASES = json.loads(Path(__file__).with_name("sglang_schedules.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_schedule_is_that_of_sglang(case):
    # Without rounding up: the recorded loop has no CUDA graphs.
    check_schedule(case, deployment(engine="sglang", cudagraph_padding=False, **case["serving"]))
