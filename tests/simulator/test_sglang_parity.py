"""Batches and times equal those of SGLang's own scheduler of two releases, recorded once.

The commands that record them anew are in record_sglang_schedules.py (0.5.9) and
record_newer_sglang_schedules.py (0.5.23).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from repeated_schedules import check_schedule
from simulator_helpers import deployment

FILES = {"0.5.9": "sglang_schedules.json", "0.5.23": "newer_sglang_schedules.json"}
CASES = [
    (release, case)
    for release, name in FILES.items()
    for case in json.loads(Path(__file__).with_name(name).read_text())
]


@pytest.mark.parametrize(("release", "case"), CASES, ids=range(len(CASES)))
def test_schedule_is_that_of_sglang(release, case):
    flags = case["serving"] | {"engine_version": release}
    # Without rounding up: the recorded loop has no CUDA graphs.
    check_schedule(case, deployment(engine="sglang", cudagraph_padding=False, **flags))
