"""The static share of SGLang's servers equals that of its own function, recorded once.

record_sglang_reserves.py has the command to record it again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinn.engines.recipe import release
from pinn.engines.vllm_sglang_trtllm import MemoryUsers, reserve_mib

RECORDED = json.loads(Path(__file__).with_name("sglang_reserves.json").read_text())


@pytest.mark.parametrize("version", RECORDED)
def test_the_share_is_that_of_the_release(version):
    wrong = []
    for row in RECORDED[version]:
        total = row["gib"] * 1024.0
        reserve = reserve_mib(release(version), total, MemoryUsers(**row["users"]))
        if round((total - reserve) / total, 3) != row["share"]:
            wrong.append(row)
    assert wrong == []


def test_releases_and_servers_differ():
    assert len(RECORDED) >= 3
    shares = [[row["share"] for row in rows] for rows in RECORDED.values()]
    assert all(len(set(each)) > 5 for each in shares)
    assert len({tuple(each) for each in shares}) > 1
