"""SGLang's HiCache: cases worked out by hand, laws, and flags.

A step takes one second, pages hold 4 tokens of 4,096 bytes, and the link to the host takes a
quarter of a second for each page unless a test says otherwise. The model has four layers.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from random_cases import latency_of
from simulator_helpers import MIXTURE, Recorder, deployment, load, scheduled

from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import read_launch
from pinn.errors import PinnError
from pinn.memory.host_tier import host_tier
from pinn.memory.kv_cache import kv_layout
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics

PAGE_BYTES = 4 * 4096
#: ``HiRadixCache``, and ``UnifiedRadixCache``.
RELEASES = ("0.5.12", "0.5.23")
POLICIES = ("write_through", "write_through_selective", "write_back")
#: A of 16 tokens, B of 31 that drives it out of ten pages, A again.
AGAIN = {"shares_with": [-1, -1, 0], "shared_tokens": [0, 0, 16]}


def hicache(policy: str = "write_through", ratio: float = 4.0, **flags) -> dict:
    """Flags of HiCache beside a GPU cache of ten pages."""
    return {
        "num_gpu_blocks_override": 11,
        "enable_hierarchical_cache": True,
        "hicache_write_policy": policy,
        "hicache_ratio": ratio,
        "host_link_bytes_per_s": 4.0 * PAGE_BYTES,
        **flags,
    }


def play(workload, flags, release="0.5.12"):
    """The run, and its batches."""
    target = deployment(engine="sglang", engine_version=release, max_model_len=40)
    recorder = Recorder()
    target, spec = scheduled(target, {"async_scheduling": False} | flags)
    return simulate(target, workload, recorder, spec), recorder.batches


def moved(run):
    """Transfers: whether they load, pages, begin and end."""
    t = run.transfers
    columns = (t.load.tolist(), t.blocks.tolist(), t.start_s.tolist(), t.end_s.tolist())
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("release", RELEASES)
def test_written_through_a_prompt_is_stored_when_it_is_computed(release):
    """A is stored from 1 s to 2 s, B from 11 s on; A's first three pages come back at 20 s.

    The last of four layers waits for all of the load, which takes 0.75 s: the step ends a layer's
    time after the load's first part and the other layers, at 20.1875 s + 1 s.
    """
    run, batches = play(load([16, 31, 16], [1, 1, 1], [0.0, 10.0, 20.0], **AGAIN), hicache(),
                        release)  # fmt: skip
    assert batches == [["16@0"], ["31@0"], ["4@12"]]
    assert moved(run) == [
        (False, 4, 1.0, 2.0), (False, 7, 11.0, 12.75), (True, 3, 20.0, 20.75)
    ]  # fmt: skip
    assert run.requests.first_token_s.tolist() == [1.0, 11.0, 21.1875]
    assert run.requests.loaded_tokens.tolist() == [0, 0, 12]
    assert run.requests.cached_tokens.tolist() == [0, 0, 12]


@pytest.mark.parametrize("release", RELEASES)
def test_written_back_a_prompt_is_stored_when_it_leaves_the_gpu_and_the_scheduler_waits(release):
    """B needs eight pages and six are unused: A is stored first, for a second.

    When A comes again, the one page that it computes drives out B, whose seven pages take 1.75 s on
    their way down, while A's three come up.
    """
    run, batches = play(load([16, 31, 16], [1, 1, 1], [0.0, 10.0, 20.0], **AGAIN),
                        hicache("write_back"), release)  # fmt: skip
    assert batches == [["16@0"], ["31@0"], ["4@12"]]
    assert moved(run) == [
        (False, 4, 10.0, 11.0), (True, 3, 20.0, 20.75), (False, 7, 20.0, 21.75)
    ]  # fmt: skip
    assert run.requests.first_token_s.tolist() == [1.0, 12.0, 22.75]


def test_a_slow_load_holds_up_the_layers_that_wait_for_it():
    """Three pages take 6 s: the last layer begins when they are there."""
    flags = hicache(host_link_bytes_per_s=0.5 * PAGE_BYTES)
    run, _ = play(load([16, 31, 16], [1, 1, 1], [0.0, 20.0, 60.0], **AGAIN), flags)
    assert run.requests.first_token_s.tolist() == [1.0, 21.0, 66.25]


@pytest.mark.parametrize(("release", "stored"), [("0.5.12", [4, 4]), ("0.5.23", [0, 4])])
def test_selective_writes_wait_for_a_second_use(release, stored):
    """At first a request's own end counts as another use of its prompt, later another request's."""
    counts = []
    for n in (1, 2):
        workload = load([16] * n, [4] * n, [0.0, 50.0][:n], shares_with=[-1, 0][:n],
                        shared_tokens=[0, 16][:n])  # fmt: skip
        counts.append(play(workload, hicache("write_through_selective"), release)[0].tier.stored)
    assert counts == stored


@pytest.mark.parametrize("release", RELEASES)
def test_a_short_hit_in_host_memory_is_computed_again(release):
    # Two pages of eight tokens are fewer than the ten of ``load_back_threshold``.
    workload = load([12, 31, 12], [1, 1, 1], [0.0, 10.0, 20.0], **AGAIN | {
        "shared_tokens": [0, 0, 12]
    })  # fmt: skip
    run, batches = play(workload, hicache(), release)
    assert batches[-1] == ["12@0"]
    assert not run.transfers.load.any()


def one_by_one(ratio: float, release: str, policy: str):
    """Requests that come when the last one has ended."""
    rng = np.random.default_rng(0)
    n, chosen = 60, rng.integers(0, 10, 60)
    first = [int(np.flatnonzero(chosen == each)[0]) for each in chosen]
    shares = [donor if donor < i else -1 for i, donor in enumerate(first)]
    workload = load([16] * n, [2] * n, 100.0 * np.arange(n), shares_with=shares,
                    shared_tokens=[16] * n)  # fmt: skip
    return play(workload, hicache(policy, ratio), release)[0]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_a_larger_tier_never_lowers_the_hits_of_the_same_requests(release, policy):
    hits = [int(one_by_one(ratio, release, policy).requests.cached_tokens.sum())
            for ratio in (1.1, 2.0, 3.0, 5.0, 8.0)]  # fmt: skip
    assert hits == sorted(hits)
    assert hits[-1] > 1.5 * hits[0]


def crowd(release: str, policy: str, compiled: bool):
    """Many requests at once, half of which share beginnings."""
    rng = np.random.default_rng(1)
    n = 120
    donors = [int(rng.integers(max(i - 12, -1), i)) if i else -1 for i in range(n)]
    workload = load(
        rng.integers(8, 60, n), rng.integers(1, 12, n), np.cumsum(rng.exponential(2e-3, n)),
        shares_with=donors, shared_tokens=rng.integers(0, 64, n),
    )  # fmt: skip
    target = deployment(engine="sglang", engine_version=release, max_num_batched_tokens=64,
                        max_num_seqs=8, max_model_len=96)  # fmt: skip
    flags = hicache(policy, 1.2, num_gpu_blocks_override=40, host_link_bytes_per_s=4e3 * PAGE_BYTES)
    return simulate(target, workload, latency_of(target), EngineSpec(**flags), compiled=compiled)


def test_what_was_stored_is_there_or_was_evicted_compiled_or_not():
    for release, policy in product(RELEASES, POLICIES):  # in one process: compiling takes long
        run = crowd(release, policy, True)
        assert_conserved(run)
        plain = crowd(release, policy, False)
        assert run.tier == plain.tier
        np.testing.assert_allclose(run.requests.finish_s, plain.requests.finish_s)
        np.testing.assert_allclose(run.transfers.end_s, plain.transfers.end_s)


def assert_conserved(run):
    """Check that blocks, hits and the link's time of a run add up."""
    use = run.tier
    assert run.requests.finished.all()
    assert use.stored == use.evicted + use.resident
    assert 0 < use.resident <= use.chunks
    stores = ~run.transfers.load
    assert run.transfers.blocks[stores].sum() == use.stored
    found = run_statistics(run)
    assert found["host_hit_tokens"] == run.requests.loaded_tokens.sum() > 0
    assert 0 < found["host_link_busy_share"] <= 1
    for way in (stores, ~stores):  # one transfer at a time in each direction
        assert (run.transfers.start_s[way][1:] >= run.transfers.end_s[way][:-1] - 1e-12).all()


# Flags.


def test_a_launch_line_names_the_tier():
    line = (
        "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache "
        "--hicache-ratio 3 --hicache-write-policy write_back --hicache-io-backend direct "
        "--hicache-mem-layout page_first_direct --page-size 64"
    )
    found = read_launch(line)
    assert not found.unmodelled
    assert found.configuration["enable_hierarchical_cache"] is True
    assert float(found.configuration["hicache_ratio"]) == 3
    assert found.configuration["hicache_write_policy"] == "write_back"


@pytest.mark.parametrize(
    ("serving", "flags", "fault"),
    [
        ({"engine_version": "0.5.12"}, {"hicache_ratio": 0.5}, "expected more than the .* GPU's"),
        ({"engine": "vllm"}, {}, "give --engine sglang"),
        ({"enable_prefix_caching": False}, {}, "exclude each other"),
        ({"model": MIXTURE}, {}, "windows or recurrent states"),
        ({}, {"hicache_write_policy": "sometimes"}, "write_back"),
    ],
)
def test_what_is_not_modelled_is_refused_with_a_remedy(serving, flags, fault):
    target = deployment(**{"engine": "sglang", "max_model_len": 40, **serving})
    with pytest.raises(PinnError, match=fault):
        simulate(target, load([8], [2]), latency_of(target), EngineSpec(**hicache() | flags))


def test_the_size_is_that_of_each_gpu():
    def tier(tp=1, release="0.5.23", **flags):
        target = deployment(engine="sglang", engine_version=release, tensor_parallel_size=tp)
        spec = EngineSpec(enable_hierarchical_cache=True, num_gpu_blocks_override=101, **flags)
        return host_tier(target, spec, kv_layout(target, spec))

    assert tier().chunks == 2 * 100 + 1
    assert tier(release="0.5.3.post1").chunks == 2 * 100
    sized = [tier(tp, hicache_size=1) for tp in (1, 2)]
    # A GPU of two has half of the heads, and room for twice the tokens.
    assert sized[0].chunks == int(1e9 // 4096) // 4 + 1
    assert sized[1].chunks == int(1e9 // 2048) // 4 + 1
    one_by_one = tier(hicache_io_backend="direct", host_link_copy_s=1e-6).block_s
    assert one_by_one == pytest.approx(tier().block_s + 8e-6)
