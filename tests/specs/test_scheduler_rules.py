"""Rules of vLLM's scheduler by release; that they are its own is checked on recorded schedules."""

import pytest
from simulator_helpers import GPU

from pinn.engines.recipe import ANY_BATCH, STAGGERED, SchedulerRules, vllm_rules
from pinn.engines.recipe_rules import effective_recipe
from pinn.specs.serving import ServingSpec


@pytest.mark.parametrize(
    ("before", "since", "name", "value"),
    [
        ("0.15.1", "0.16.0", "pipelined_decodes", ANY_BATCH),
        ("0.17.1", "0.18.0", "group_padding", 1.5),
        ("0.18.1", "0.19.0", "whole_prompts", True),
        ("0.23.0", "0.24.0", "uncached_first", True),
        ("0.24.0", "0.25.0", "pipelined_decodes", STAGGERED),
        ("0.26.0", "0.27.0", "awaits_preempted", True),
        ("0.30.0", "0.31.0", "cuts_lone_prompts", False),
        ("0.16.0", "0.17.0", "pads_eager_ranks", False),
        ("0.32.0", "0.33.0", "paces_alone", True),
    ],
)
def test_a_rule_changes_with_its_release(before, since, name, value):
    old, new = (_recipe(engine_version=v).scheduler for v in (before, since))
    assert getattr(old, name) != value
    assert getattr(new, name) == value
    assert getattr(_recipe(engine_version="0.33.0").scheduler, name) in (value, STAGGERED)


def test_sources_are_named_and_other_engines_keep_the_first_rules():
    assert "0.31.0 vllm/v1/core/sched/scheduler.py" in vllm_rules((0, 33, 0))[1]
    assert vllm_rules((0, 15, 1))[0] == SchedulerRules()
    assert _recipe(engine="sglang").scheduler == SchedulerRules(pads_eager_ranks=False)


def _recipe(**flags):
    return effective_recipe(ServingSpec(**flags), GPU)
