"""The simulator's radix tree does what SGLang's own trees with HiCache do, load by load.

What is found, loaded, stored and evicted by each operation, and what is free then on both tiers:
record_hicache_trees.py has the command that records releases anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hicache_loads import LOADS, Tree, digest, tree_case
from simulator_helpers import load

from pinn.simulator import blocks, engine, hicache, hicache_link, radix_requests, radix_tree, state
from pinn.simulator.setup import block_keys

RECORDED = json.loads(Path(__file__).with_name("hicache_trees.json").read_text())


class SimulatedTree(Tree):
    """``pinn.simulator.radix_tree`` and ``hicache`` of one replica."""

    def __init__(self, case, release):
        super().__init__(case)
        shares = {"shares_with": case["donors"], "shared_tokens": case["shared"]}
        workload = load(case["prompts"], case["outputs"], **shares)
        keys, first, distinct = block_keys(workload, case["page"])
        n, through = len(case["prompts"]), case["policy"] == "write_through"
        requests = np.zeros(n, state.REQUEST)
        requests["prompt"], requests["first_key"], requests["slot"] = case["prompts"], first, -1
        settings = dict.fromkeys(engine.CONFIG_FIELDS, 0) | {
            "tier": state.BY_NODE, "tier_chunks": case["host_pages"], "tier_chunk_blocks": 1,
            "tier_hits": 0 if case["policy"] == "write_back" else 1 if through else 2,
            "tier_unified": release >= "0.5.19", "tier_layers": 4, "host_latency_s": 1.0,
            "blocks": case["pages"], "block_tokens": case["page"], "max_seqs": n, "slots": n,
            "row": 2, "depth": 1, "n_replicas": 1, "n_groups": 1, "n_copies": 1, "n_servers": 1,
            "n_sources": 1,
        }  # fmt: skip
        given = {"requests": requests, "keys": keys, "stages": np.zeros(1, state.STAGE),
                 "graph_size": np.zeros(1), "chances": np.zeros(0)}  # fmt: skip
        self.engine = engine.plain_engine(engine.new_engine(settings, given, distinct))
        self.replica, self.hits = self.engine.replicas[0], {}

    def match(self, r):
        blocks = (self.case["prompts"][r] - 1) // self.case["page"]
        self.hits[r] = radix_tree.match(self.engine, 0, self.engine.requests[r], blocks)
        return self.hits[r] * self.case["page"], int(self.replica.host_hits) * self.case["page"]

    def lock(self, r):  # noqa: ARG002
        radix_tree.lock(self.engine, 0, self.replica.matched)

    def unlock(self, r):  # noqa: ARG002
        radix_tree.unlock(self.engine, 0, self.replica.matched)

    def load(self, r):
        before = self.replica.matched
        loaded = hicache.load_back(self.engine, 0, r)
        radix_requests.begin_loads(self.engine, 0)
        radix_tree.unlock(self.engine, 0, before)
        radix_tree.lock(self.engine, 0, self.replica.matched)
        self.hits[r] += loaded
        return loaded * self.case["page"]

    def take(self, r, tokens):
        request = self.engine.requests[r]
        if request.slot < 0:
            matched = self.replica.matched
            assert radix_requests.take(self.engine, 0, r, self.hits[r], tokens)
            radix_tree.unlock(self.engine, 0, matched)
        else:
            assert radix_requests.grow(self.engine, 0, request, tokens)
        self.replica.wanting = 0  # room for what is taken, and no more
        radix_requests.allocate(self.engine, 0, True)

    def put(self, r, tokens, chunked, ends):
        radix_requests.put(self.engine, 0, r, tokens // self.case["page"], chunked, 0.0)
        if ends:
            self.drop(r)

    def drop(self, r):
        radix_requests.leave(self.engine, 0, r)

    def hear(self, stores):
        hicache_link.begin(self.engine, 0, state.STORE, 0.0)
        moving = [job for job in self._jobs() if job.progress == state.MOVING]
        ends = sorted({job.end_s for job in moving if job.kind == state.STORE})[:stores]
        for job in moving:
            if job.kind == state.LOAD or job.end_s in ends:
                job.end_s = -1.0
        self.replica.heard_s = 0.0
        hicache_link.hear_ended(self.engine, 0)

    def _jobs(self):
        numbers = range(self.replica.jobs_first, self.replica.jobs_made)
        return [blocks.job_of(self.engine, 0, i) for i in numbers]

    def state(self):
        stored = self.replica.stored_chunks - self.replica.evicted_chunks
        moving = sum(job.kind == state.STORE and job.progress != state.DONE
                     for job in self._jobs())  # fmt: skip
        page = self.case["page"]
        found = self.replica.unused * page, self.replica.evictable * page, stored * page, moving
        return [int(each) for each in found]


def served(seed, release):
    """Return the events of the simulator's tree under a load."""
    return SimulatedTree(tree_case(seed, release >= "0.5.19"), release).serve()


@pytest.mark.parametrize("first", range(0, LOADS, 50))
@pytest.mark.parametrize("release", RECORDED)
def test_trees_do_what_sglangs_do(release, first):
    recorded = RECORDED[release]
    found = [seed for seed in range(first, first + 50)
             if digest(served(seed, release)) != recorded[seed]]  # fmt: skip
    assert not found, (
        f"loads {found} differ from SGLang {release}; compare served(...) with what "
        f"`record_hicache_trees.py --case {found[0]} {release}=FOLDER` prints"
    )
