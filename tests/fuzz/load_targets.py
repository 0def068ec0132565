"""Loads in flags, and launch commands in place of flags."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.command_targets import MODELS
from fuzz.hostile_values import VALUES, changed
from fuzz.target import Fuzzed
from hypothesis import strategies as st

from pinn.api.arguments import read_request
from pinn.api.requests import ManyRequest
from pinn.common.documents import MOST_REQUESTS
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import known_flags
from pinn.simulator.workloads.load import LoadFlags, asked_load
from pinn.specs.flags import flags_of
from pinn.specs.serving import ENGINES, ServingSpec

#: Launch commands as people type them.
LINES = [
    line.rpartition(" ;; ")[2]
    for line in (Path(__file__).parents[1] / "cli/launch_lines.txt").read_text().splitlines()
    if " ;; " in line
]
_FLAGS = [
    {"input_len": 1024, "output_len": 256, "concurrency": 64},
    {"random_input_len": "64", "random_output_len": "8", "max_concurrency": 4, "num_prompts": 30},
    {"input_len": 512, "output_len": 64, "duration": 60, "range_ratio": 0.3, "prefix_len": 128},
    {"input_len": 5, "output_len": 1, "num_prompts": 1, "random_range_ratio": 0.9},
    {"input_len": 90, "output_len": 9, "turns": 3, "turn_len": 20, "think_time": 4.0,
     "num_prompts": 60, "tool_calls": 1, "tool_len": 7, "tool_delay": 0.5},
    {"input_len": 99, "output_len": 9, "num_prompts": 400, "prefix_hit_rate": 0.5},
]  # fmt: skip


def loads(_: Fuzzed) -> st.SearchStrategy[dict[str, Any]]:
    """Flags of a load by all their names, some of them changed, and the rate."""
    rate = st.one_of(*[st.sampled_from([8.0, 0.1])] * 9, st.none(), st.floats())
    return st.fixed_dictionaries({"flags": changed(_FLAGS), "rate": rate})


def check_load(_: Fuzzed, asked: dict[str, Any]) -> None:
    """As many requests as are asked for, of lengths in their range, one after the other."""
    _, given = read_request(ManyRequest, asked["flags"], LoadFlags)
    load, _ = asked_load(None, given, 0)
    found, flags = load.draw(asked["rate"]), load.flags
    assert 1 <= len(found) <= MOST_REQUESTS
    each = (flags.turns or 1) * (1 + flags.tool_calls)
    if flags.num_prompts is not None:
        assert len(found) == max(flags.num_prompts // each, 1) * each
    assert np.isfinite(found.offset_s).all()
    assert (np.diff(found.offset_s[found.starts]) >= 0).all()
    assert (found.turns == np.arange(len(found)) % each).all()
    assert (found.prompt_tokens > flags.prefix_len).all()
    assert (found.output_tokens <= np.ceil((flags.output_len or 0) * 2)).all()
    again = dict(zip(load.words[::2], load.words[1::2], strict=True))
    again.pop("--seed", None)
    named = {name[2:].replace("-", "_"): text for name, text in again.items()}
    _, same = read_request(ManyRequest, named, LoadFlags)
    assert LoadFlags(**same) == flags


def lines(_: Fuzzed) -> st.SearchStrategy[tuple[str, str]]:
    """A launch command with words replaced, added or dropped, and the GPU that it runs on."""
    flags = sorted({name for engine in ENGINES for name in known_flags(engine)})
    hostile = VALUES.map(str).map(lambda text: text.replace("\0", ""))
    word = st.one_of(
        st.sampled_from(flags), st.sampled_from([*MODELS, "8", "fp8", "auto", "{}"]), hostile
    )
    line = st.builds(
        _changed,
        st.sampled_from(LINES),
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), word), max_size=2),
    )
    text = st.text(max_size=30)
    return st.tuples(st.one_of(*[line] * 9, text), st.sampled_from(["H100", "H200", "B200"]))


def _changed(line: str, changes: list[tuple[int, int, str]]) -> str:
    words = shlex.split(line)
    for place, dropped, word in changes:
        at = place % (len(words) + 1)
        words[at : at + dropped] = [word]
    return shlex.join(words)


def check_line(shared: Fuzzed, given: tuple[str, str]) -> None:
    """A command starts a server whose steps take time, and what it says of the rest is text."""
    from pinn.engines.configurations import canonical, make_deployment
    from pinn.specs.batch import parse_batch
    from pinn.surrogate.surrogate import batch_seconds

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        served = {"serve": given[0], "gpu": given[1]}
        server, found = read_request(ManyRequest, served, ServingSpec, EngineSpec)
    assert all(str(line.message).isprintable() for line in said)
    of_engine = {flag.name for flag in flags_of(EngineSpec)}
    named = {name: value for name, value in found.items() if name not in of_engine}
    deployment = make_deployment(canonical(named | {"model": server.model, "gpu": server.gpu}))
    beta = shared.surrogate.coefficients([deployment]).beta[0]
    (seconds,) = batch_seconds(beta, deployment, [parse_batch("4 decode @ 9")])
    assert 0 < seconds < np.inf
