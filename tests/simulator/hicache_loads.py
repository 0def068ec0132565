"""Random loads of a radix tree with a second tier, for SGLang's own tree and for the simulator's.

A load is served by hand: a request is matched, loads back, takes its blocks, puts its prompt into
the tree in chunks, ends or is dropped; now and then the tree hears which transfers have ended. Each
operation is written down with what it found and what is then free on both tiers.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

LOADS = 200
POLICIES = ("write_through", "write_through_selective", "write_back")


def tree_case(seed: int, small_host: bool) -> dict[str, Any]:
    """A load and a tree; a small host pool may be smaller than the GPU's."""
    rng = np.random.default_rng(seed)
    n, page = int(rng.integers(20, 60)), int(rng.choice([1, 4]))
    pages = int(rng.integers(80, 160)) if page == 1 else int(rng.integers(24, 60))
    ratio = float(rng.choice([0.4, 1.5] if small_host else [1.2, 1.5]))
    ratio = ratio if rng.random() < 0.6 else 3.0
    return {
        "prompts": rng.integers(1, 48, n).tolist(),
        "outputs": rng.integers(1, 16, n).tolist(),
        "donors": [int(rng.integers(max(i - 15, -1), i)) for i in range(n)],
        "shared": rng.integers(0, 60, n).tolist(),
        "page": page,
        "pages": pages,
        "host_pages": int(ratio * pages) + 1,
        "policy": str(rng.choice(POLICIES)),
        "seed": seed,
    }


class Tree(ABC):
    """A tree that a load is served with; amounts are in tokens."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.log = case, []

    @abstractmethod
    def match(self, r: int) -> tuple[int, int]:
        """Tokens of a prompt on the GPU, and on the host after them."""

    @abstractmethod
    def lock(self, r: int) -> None:
        """Lock what was matched on the GPU."""

    @abstractmethod
    def unlock(self, r: int) -> None:
        """Take that back."""

    @abstractmethod
    def load(self, r: int) -> int:
        """Load back what was matched on the host."""

    @abstractmethod
    def take(self, r: int, tokens: int) -> None:
        """Take blocks for so many tokens, after what the request has."""

    @abstractmethod
    def put(self, r: int, tokens: int, chunked: bool, ends: bool) -> None:
        """Put the first tokens of a request into the tree; one that ends leaves it."""

    @abstractmethod
    def drop(self, r: int) -> None:
        """A request leaves without putting anything into the tree."""

    @abstractmethod
    def hear(self, stores: int) -> None:
        """All loads have ended, and so many stores."""

    @abstractmethod
    def state(self) -> list[int]:
        """Tokens that are free, evictable and on the host, and stores under way."""

    def serve(self) -> list[list[Any]]:
        """Serve the load; what came of each operation."""
        case, rng = self.case, np.random.default_rng(self.case["seed"] + 1_000_000)
        waiting, running, done = list(range(len(case["prompts"]))), [], {}
        for _ in range(4000):
            if not waiting and not running:
                break
            luck, found = rng.random(), []
            if waiting and len(running) < 6 and (luck < 0.5 or not running):
                found = self._start(waiting[0])
                if found[-1] >= 0:
                    running.append(waiting.pop(0))
                    done[running[-1]] = found[-1]
                elif running:
                    luck = 0.9
            if running and (not found or luck >= 0.9):
                r = running[int(rng.integers(len(running)))]
                found = [*found, *self._go_on(r, done, float(rng.random()))]
                if r not in done:
                    running.remove(r)
                    if found[0] == "drop" and rng.random() < 0.5:
                        waiting.append(r)
            self.hear(int(rng.integers(4)))
            self.log.append([*found, *self.state()])
        return self.log

    def _start(self, r: int) -> list[Any]:
        prompt, page = self.case["prompts"][r], self.case["page"]
        on_gpu, on_host = self.match(r)
        self.lock(r)
        free, evictable, *_ = self.state()
        if -(-prompt // page) * page + page - on_gpu > free + evictable:
            self.unlock(r)
            return ["full", r, on_gpu, on_host, -1]
        loaded = self.load(r) if on_host else 0
        self.take(r, prompt)
        return ["start", r, on_gpu, on_host, loaded, on_gpu + loaded]

    def _go_on(self, r: int, done: dict[int, int], luck: float) -> list[Any]:
        """A chunk, the rest of the prompt, the end, or a drop."""
        prompt, output = self.case["prompts"][r], self.case["outputs"][r]
        if luck < 0.08:
            self.drop(r)
            del done[r]
            return ["drop", r]
        if done[r] < prompt and luck < 0.4:
            done[r] = min(done[r] + 7, prompt)
            self.put(r, done[r], done[r] < prompt, False)
            return ["chunk", r, done[r]]
        if done[r] < prompt:
            done[r] = prompt
            self.put(r, prompt, False, False)
            return ["prompt", r]
        whole, page = prompt + output - 1, self.case["page"]
        free, evictable, *_ = self.state()
        if -(-whole // page) * page - -(-prompt // page) * page > free + evictable:
            self.drop(r)
            del done[r]
            return ["drop", r]
        self.take(r, whole)
        self.put(r, whole, False, True)
        del done[r]
        return ["end", r]


def digest(log: list[list[Any]]) -> str:
    """A digest of a served load."""
    return hashlib.sha256(json.dumps(log).encode()).hexdigest()[:16]
