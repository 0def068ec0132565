"""KV caches are laid out as by vLLM's own functions, recorded for six releases.

record_vllm_layouts.py has the command to record them again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from layout_cases import CASES

from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout, token_count
from pinn.memory.kv_layout import window_block_tokens
from pinn.memory.longest_request import counted_blocks

RECORDED = json.loads(Path(__file__).with_name("vllm_layouts.json").read_text())
ROWS = [(release, name) for release, rows in RECORDED.items() for name, row in rows.items() if row]


def _deployment(release, name):
    case = CASES[name]
    flags = {"model": case["model"], "gpu": case["gpu"], "engine_version": release, "force": True}
    return make_deployment(canonical(flags | case["flags"]))


def _layout(target, name):
    return kv_layout(target, EngineSpec(kv_cache_memory_bytes=CASES[name]["memory"]))


@pytest.mark.parametrize(("release", "name"), ROWS)
def test_blocks_and_tokens_are_those_of_vllm(release, name):
    expected, target = RECORDED[release][name], _deployment(release, name)
    layout = _layout(target, name)
    found = {
        "block_tokens": min(target.recipe.block_tokens, window_block_tokens(target)),
        "blocks": layout.blocks + 1,
        "block_bytes": layout.block_bytes,
        "request_blocks": counted_blocks(target, layout, CASES[name]["flags"]["max_model_len"]),
        "tokens": token_count(target, layout)(layout.blocks),
    }
    assert found == {key: expected[key] for key in found}


@pytest.mark.parametrize(
    ("release", "name"), [(r, n) for r, n in ROWS if not n.startswith("compressed")]
)
def test_groups_are_those_of_vllm(release, name):
    layout = _layout(_deployment(release, name), name)
    assert layout.full_groups + layout.window_groups == RECORDED[release][name]["groups"]


def test_releases_differ_where_their_rules_do():
    older, newer = RECORDED["0.22.1"], RECORDED["0.33.0"]
    differing = {name for name in CASES if older[name] != newer[name]}
    assert {"gpt-oss", "gemma-3", "hybrid", "compressed"} <= differing
    assert not {"dense", "latent", "sparse fp8"} & differing
