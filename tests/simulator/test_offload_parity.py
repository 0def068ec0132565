"""Schedules with a second tier of KV equal those of vLLM's own scheduler and OffloadingConnector.

Batches, their starts, what is stored, loaded and evicted, in which step, and when each transfer
begins and ends: record_offload_schedules.py has the command that records them anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recorded_schedules import LOADS, WHOLE, digest, offload_case, transfer_seconds
from repeated_schedules import repeat
from simulator_helpers import deployment

from pinn.errors import PinnError
from pinn.simulator import offloading, tiers

RECORDED = json.loads(Path(__file__).with_name("offload_schedules.json").read_text())
CASES = [offload_case(seed) for seed in range(LOADS)]
RELEASES = [name for name in RECORDED if name != "loads"]
#: Bytes of a block of four tokens, see ``simulator_helpers.DENSE``.
BLOCK_BYTES = 4 * 4096


def _flags(case, release):
    """Flags of the load's tier; arc_manager.py of 0.15.1 stops at its first store."""
    offload = case["offload"]
    bytes_to_use = offload["chunks"] * BLOCK_BYTES * offload["block_size"] // 4
    extra = {"cpu_bytes_to_use": bytes_to_use, "block_size": offload["block_size"]}
    if release != "0.15.1":
        extra["eviction_policy"] = offload["policy"]
        extra["offload_prompt_only"] = offload["prompt_only"]
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    return {
        "kv_transfer_config": json.dumps(config),
        "host_link_latency_s": transfer_seconds(0),
        "host_link_copy_s": 0.0,
        "host_link_bytes_per_s": BLOCK_BYTES / (transfer_seconds(1) - transfer_seconds(0)),
    }


class _Watch:
    """Return the blocks stored, loaded and evicted, and before which batch."""

    def __init__(self, monkeypatch):
        self.kept, self.evicted = [], []
        self._reserve, self._load, self._evict = (
            offloading._reserve, offloading.begin_load, tiers.evict_chunk,
        )  # fmt: skip
        monkeypatch.setattr(offloading, "_reserve", self.reserve)
        monkeypatch.setattr(offloading, "begin_load", self.load)
        monkeypatch.setattr(tiers, "evict_chunk", self.evict)

    def evict(self, engine, replica, place):
        self.evicted.append(int(engine.tier[replica, place].key))
        self._evict(engine, replica, place)

    def reserve(self, engine, replica, request, first, end, owner):
        self.evicted = []
        stored = self._reserve(engine, replica, request, first, end, owner)
        if stored > 0:
            chunks = engine.tier_missing[replica, :stored].tolist()
            keys = [tiers.chunk_key(engine, request, i) for i in chunks]
            self.kept.append(["store", engine.counters.n_steps, keys, self.evicted])
        return stored

    def load(self, engine, replica, r, computed, hit):
        tokens = offloading.chunk_tokens(engine)
        chunks = range(computed // tokens, (computed + hit) // tokens)
        keys = [tiers.chunk_key(engine, engine.requests[r], i) for i in chunks]
        self.kept.append(["load", engine.counters.n_steps, keys, []])
        self._load(engine, replica, r, computed, hit)


def schedule_of(case, release, monkeypatch):
    """Return a load as the recorder writes it down."""
    target = deployment(**case["serving"], engine_version=release)
    with monkeypatch.context() as patched:
        watch = _Watch(patched)
        engine = case["engine"] | _flags(case, release)
        try:
            batches, run = repeat(case | {"engine": engine}, target)
        except PinnError as error:
            if "the engine is stuck" not in str(error):
                raise
            return {"stuck": True}
    moved = run.transfers
    ends = zip(~moved.load, moved.blocks, moved.start_s, moved.end_s, strict=True)
    return {
        "batches": batches,
        "starts": run.steps["start_s"].tolist(),
        "finish": run.requests.finish_s.tolist(),
        "timed_out": np.flatnonzero(run.requests.status == "timed_out").tolist(),
        "kept": watch.kept,
        "link": [[int(store), int(size), start, end] for store, size, start, end in ends],
    }


def test_the_loads_are_those_that_were_recorded():
    assert digest(CASES) == RECORDED["loads"], "NumPy draws other loads: record them anew"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", range(WHOLE))
def test_schedule_is_that_of_vllm(seed, release, monkeypatch):
    found, recorded = schedule_of(CASES[seed], release, monkeypatch), RECORDED[release]["whole"]
    for name in ("kept", "batches", "timed_out"):
        assert found[name] == recorded[seed][name], name
    for name in ("link", "starts", "finish"):
        np.testing.assert_allclose(found[name], recorded[seed][name], atol=2e-8)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("first", range(0, LOADS, 50))
def test_digest_is_that_of_vllm(first, release, monkeypatch):
    recorded = RECORDED[release]["digests"]
    found = [
        seed
        for seed in range(first, first + 50)
        if digest(schedule_of(CASES[seed], release, monkeypatch)) != recorded[seed]
    ]
    assert not found, (
        f"the schedules of loads {found} are not those of vLLM {release}; compare schedule_of with "
        f"what `record_offload_schedules.py --case {found[0]} {release}=FOLDER` prints"
    )


def test_releases_differ_and_each_does_everything():
    assert {"0.15.1", "0.33.0"} <= set(RELEASES)
    one, other = (RECORDED[name]["digests"] for name in ("0.15.1", "0.33.0"))
    assert sum(a != b for a, b in zip(one, other, strict=True)) > LOADS / 2
    for name in RELEASES:
        kept = [each for run in RECORDED[name]["whole"] for each in run["kept"]]
        assert {kind for kind, *_ in kept} == {"load", "store"}
        assert any(evicted for *_, evicted in kept)
