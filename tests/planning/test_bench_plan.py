"""The benchmark of a plan, with the command of docs/plan_notes.md on a small load."""

from __future__ import annotations

import json

from pages import run_script
from scenes import make_files


def test_the_benchmark_of_a_plan_says_what_it_took(tmp_path):
    make_files("few.yaml", tmp_path)
    small = ("--load-s", "12", "--workers", "1", "--candidates", str(tmp_path / "few.yaml"))
    found = json.loads(run_script("plan_notes.md", "bench_plan.py", *small).splitlines()[-1])
    assert 120 < found["requests"] < 170  # 12 s of 12 a second
    assert found["candidates"] > 1
    assert min(found["wall_s"], found["processor_s"], found["most_memory_mib"]) > 0
