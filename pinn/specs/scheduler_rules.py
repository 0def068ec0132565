"""What vLLM's releases schedule differently: a line for each change, with its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

#: Batches that may hold a request's decodes while several stages of a pipeline are at work and
#: steps are planned ahead: one at a time, any, or those that lie as many steps apart as there are
#: stages, with one batch more in flight.
ONE_BATCH, ANY_BATCH, STAGGERED = "one_batch", "any_batch", "staggered"


@dataclass(frozen=True)
class SchedulerRules:
    """How a scheduler does what its releases do in different ways.

    Attributes:
        pipelined_decodes: ``ONE_BATCH``, ``ANY_BATCH`` or ``STAGGERED``.
        whole_prompts: Whether a waiting request needs room for all its tokens to be admitted, not
            only for its first chunk.
        uncached_first: Whether freed blocks in which no prefix can be found are the next to be
            taken; else they queue up behind all others.
        cuts_lone_prompts: Whether the longest chunk holds for the only request there is, too.
        awaits_preempted: Whether a preempted request is started again only when its batches in
            flight have ended.
        group_padding: Layers of the commoner kind over those of the rarer one up to which KV cache
            groups are as large as the former.
    """

    pipelined_decodes: str = ONE_BATCH
    whole_prompts: bool = False
    uncached_first: bool = False
    cuts_lone_prompts: bool = True
    awaits_preempted: bool = False
    group_padding: float = 1.25

    def described(self) -> dict[str, Any]:
        """Rules by name."""
        return asdict(self)


_SCHEDULER = "vllm/v1/core/sched/scheduler.py: Scheduler"
#: First release that was read with it, what it changes, and where that stands.
_CHANGES: tuple[tuple[str, str, Any, str], ...] = (
    ("0.16.0", "pipelined_decodes", ANY_BATCH, f"{_SCHEDULER}.schedule"),
    (
        "0.18.0",
        "group_padding",
        1.5,
        "vllm/v1/core/kv_cache_utils.py: _get_kv_cache_groups_uniform_page_size",
    ),
    (
        "0.19.0",
        "whole_prompts",
        True,
        "vllm/config/scheduler.py: SchedulerConfig.scheduler_reserve_full_isl",
    ),
    ("0.23.0", "uncached_first", True, "vllm/v1/core/block_pool.py: BlockPool.free_blocks"),
    # The second model runner's. Llama, Mistral and Qwen3 are served by it from 0.23 on, all dense
    # models from 0.25 and mixtures of experts from 0.29: VllmConfig.use_v2_model_runner.
    ("0.25.1", "pipelined_decodes", STAGGERED, "vllm/config/vllm.py: max_concurrent_batches"),
    ("0.27.1", "awaits_preempted", True, f"{_SCHEDULER}._preempt_request"),
    ("0.31.0", "cuts_lone_prompts", False, f"{_SCHEDULER}.schedule"),
)
_FIRST = f"vllm 0.15.1 {_SCHEDULER}.schedule"


@lru_cache(maxsize=256)
def vllm_rules(release: tuple[int, ...]) -> tuple[SchedulerRules, str]:
    """Rules of a release of vLLM and where they stand.

    A change holds for every patch of the release in which it was read first.
    """
    rules, sources = SchedulerRules(), [_FIRST]
    for first, name, value, source in _CHANGES:
        if release >= tuple(int(number) for number in first.split("."))[:2]:
            rules = replace(rules, **{name: value})
            sources.append(f"vllm {first} {source}")
    return rules, "; ".join(sources)
