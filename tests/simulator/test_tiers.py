"""A second tier of KV: laws, and cases worked out by hand.

A step takes one second, blocks hold 4 tokens of 4,096 bytes, and the link to the host takes a
quarter of a second for each block unless a test says otherwise.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from random_cases import latency_of
from simulator_helpers import Recorder, deployment, load, play

from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import read_launch
from pinn.errors import PinnError
from pinn.memory.host_tier import host_tier
from pinn.memory.kv_cache import kv_layout
from pinn.simulator.pools import Link, Pool, simulate_pools
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics

BLOCK_BYTES = 4 * 4096
#: What a request stores can be read when it has ended, or when its job has.
RELEASES = ("0.15.1", "0.33.0")


def tier(blocks: int, connector: str = "OffloadingConnector", **extra) -> dict:
    """Flags of a tier of so many blocks."""
    if connector == "OffloadingConnector":
        extra = {"cpu_bytes_to_use": blocks * BLOCK_BYTES, **extra}
    else:
        extra = {"lmcache.max_local_cpu_size": blocks * BLOCK_BYTES / 2**30, **extra}
    config = {"kv_connector": connector, "kv_connector_extra_config": extra}
    return {
        "kv_transfer_config": json.dumps(config),
        "host_link_copy_s": 0.0,
        "host_link_bytes_per_s": 4.0 * BLOCK_BYTES,
    }


def one_by_one(blocks: int, release: str, seed: int = 0, **extra):
    """Requests that come when the last one has ended, in a GPU cache of eight blocks."""
    rng = np.random.default_rng(seed)
    n, chosen = 60, rng.integers(0, 12, 60)
    first = [int(np.flatnonzero(chosen == each)[0]) for each in chosen]
    shares = [donor if donor < i else -1 for i, donor in enumerate(first)]
    workload = load(
        [16] * n, [2] * n, 100.0 * np.arange(n), shares_with=shares, shared_tokens=[16] * n
    )
    engine = {"num_gpu_blocks_override": 9, **tier(blocks, **extra)}
    return play(workload, engine=engine, engine_version=release, max_model_len=32).run


def crowd(release: str, blocks: int = 40, policy: str = "lru", compiled: bool = True):
    """Many requests at once, half of which share beginnings."""
    rng = np.random.default_rng(1)
    n = 120
    donors = [int(rng.integers(max(i - 12, -1), i)) if i else -1 for i in range(n)]
    workload = load(
        rng.integers(8, 60, n),
        rng.integers(1, 12, n),
        np.cumsum(rng.exponential(2e-3, n)),
        shares_with=donors,
        shared_tokens=rng.integers(0, 64, n),
    )
    target = deployment(
        engine_version=release, max_num_batched_tokens=64, max_num_seqs=8, max_model_len=96
    )
    extra = {"eviction_policy": policy} if policy != "lru" else {}
    spec = EngineSpec(num_gpu_blocks_override=60, **tier(blocks, **extra))
    return simulate(target, workload, latency_of(target), spec, compiled=compiled)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_larger_tier_never_lowers_the_hits_of_the_same_requests(release, seed):
    hits = [
        int(one_by_one(blocks, release, seed).requests.cached_tokens.sum())
        for blocks in (1, 4, 8, 16, 24, 40, 80)
    ]
    assert hits == sorted(hits)
    assert hits[-1] > 2 * hits[0]


@pytest.mark.parametrize("release", RELEASES)
def test_without_reuse_there_are_stores_and_no_hits(release):
    engine = {"num_gpu_blocks_override": 9, **tier(100)}
    workload = load([16] * 8, [2] * 8, 50.0 * np.arange(8))
    found = run_statistics(
        play(workload, engine=engine, engine_version=release, max_model_len=32).run
    )
    assert found["host_hit_tokens"] == found["host_loads"] == 0
    assert found["host_stored_bytes"] == found["host_resident_bytes"] == 8 * 4 * BLOCK_BYTES


@pytest.mark.parametrize(
    ("release", "policy"), [("0.15.1", "lru"), ("0.33.0", "lru"), ("0.33.0", "arc")]
)
def test_what_was_stored_is_there_or_was_evicted(release, policy):
    run = crowd(release, policy=policy)
    use = run.tier
    assert run.requests.finished.all()
    assert use.stored == use.evicted + use.resident
    assert use.evicted > 0
    assert 0 < use.resident <= use.chunks == 40
    moved = run.transfers
    assert moved.blocks[~moved.load].sum() == use.stored * use.chunk_blocks
    found = run_statistics(run)
    assert found["host_stored_bytes"] == use.stored * BLOCK_BYTES
    assert found["host_loaded_bytes"] == moved.blocks[moved.load].sum() * BLOCK_BYTES > 0
    assert found["host_hit_tokens"] == run.requests.loaded_tokens.sum() > 0
    assert (run.requests.loaded_tokens <= run.requests.cached_tokens).all()


@pytest.mark.parametrize("release", RELEASES)
def test_the_link_carries_one_transfer_at_a_time(release):
    moved = crowd(release).transfers
    order = np.argsort(moved.start_s, kind="stable")
    assert (moved.start_s[order][1:] >= moved.end_s[order][:-1] - 1e-12).all()
    assert (moved.start_s >= moved.planned_s).all()
    np.testing.assert_allclose(moved.end_s - moved.start_s, moved.blocks / 4)


def test_without_a_tier_nothing_is_moved():
    run = play(load([16, 16], [2, 2])).run
    assert run.tier is None
    assert len(run.transfers) == 0
    assert not run.requests.loaded_tokens.any()
    assert not run.requests.load_wait_s.any()
    assert not any(name.startswith("host_") for name in run_statistics(run))


#: A of 16 tokens, B of 32 that drive it out of eight blocks, A again.
AGAIN = {"shares_with": [-1, -1, 0], "shared_tokens": [0, 0, 16]}
SMALL = {"num_gpu_blocks_override": 9}


@pytest.mark.parametrize("release", RELEASES)
def test_a_hit_in_host_memory_is_loaded_before_its_request_runs(release):
    """Four blocks take a second; the last token of a prompt that was found whole is computed."""
    got = play(
        load([16, 31, 16], [1, 1, 1], [0.0, 10.0, 20.0], **AGAIN),
        engine={**SMALL, **tier(100)},
        engine_version=release,
        max_model_len=32,
    )
    assert got.batches == [["16@0"], ["31@0"], ["1@15"]]
    assert got.run.requests.first_token_s.tolist() == [1.0, 11.0, 22.0]
    assert got.run.requests.loaded_tokens.tolist() == [0, 0, 16]
    assert got.run.requests.load_wait_s.tolist() == [0.0, 0.0, 1.0]


def test_others_run_while_a_request_loads():
    got = play(
        load([16, 31, 16, 4], [1, 1, 1, 2], [0.0, 10.0, 20.0, 20.0], **{
            "shares_with": [-1, -1, 0, -1], "shared_tokens": [0, 0, 16, 0]
        }),
        engine={**SMALL, **tier(100), "host_link_bytes_per_s": 2.5 * BLOCK_BYTES},
        max_model_len=32,
    )  # fmt: skip
    assert got.batches == [["16@0"], ["31@0"], ["4@0"], ["1@4"], ["1@15"]]
    assert got.run.requests.finish_s.tolist() == [1.0, 11.0, 23.0, 22.0]


def _slow(release):
    """Stores of A take 16 s; B comes at 2 s and needs all blocks, A comes again at 4.5 s."""
    return play(
        load([16, 31, 16], [1, 1, 1], [0.0, 2.0, 4.5], **AGAIN),
        engine={**SMALL, **tier(100), "host_link_bytes_per_s": 0.25 * BLOCK_BYTES},
        engine_version=release,
        max_model_len=32,
    )


def test_what_is_being_stored_is_waited_for():
    """B takes blocks that a job still reads, so it starts when that has ended.

    A finds its chunks on their way, waits for them, and loads them behind the stores of B.
    """
    got = _slow("0.33.0")
    assert got.batches == [["16@0"], ["31@0"], ["1@15"]]
    assert got.run.transfers.load.tolist() == [False, False, True]
    assert got.run.transfers.end_s.tolist() == [17.0, 46.0, 62.0]
    assert got.run.steps["start_s"].tolist() == [0.0, 17.0, 62.0]


def test_at_first_a_request_kept_its_blocks_until_they_were_stored():
    got = _slow("0.15.1")
    assert got.run.steps["start_s"][1] == got.run.transfers.end_s[0] == 17.0


def test_a_chunk_of_several_blocks_is_stored_and_found_whole():
    chunked = {**SMALL, **tier(100, block_size=8)}
    workload = load([14, 31, 14], [1, 1, 1], [0.0, 10.0, 20.0], shares_with=[-1, -1, 0],
                    shared_tokens=[0, 0, 14])  # fmt: skip
    got = play(workload, engine=chunked, max_model_len=32)
    assert got.batches[-1] == ["6@8"]
    assert got.run.tier.chunk_tokens == 8
    assert got.run.tier.stored == 1 + 3


def test_outputs_are_stored_where_a_release_or_a_key_says_so():
    def stored(release, **extra):
        engine = {**SMALL, **tier(100, **extra)}
        run = play(load([8], [14]), engine=engine, engine_version=release, max_model_len=32).run
        return run.tier.stored

    # 21 tokens are computed: five blocks, two of them of the prompt.
    assert stored("0.15.1") == 5
    assert stored("0.33.0") == 2
    assert stored("0.33.0", offload_prompt_only=False) == 5


# LMCache: a step loads before it computes and stores before it ends.


def _lmcache(blocks=100, chunk=8):
    return {
        **SMALL,
        **tier(blocks, "LMCacheConnectorV1", **{"lmcache.chunk_size": chunk}),
    }


def test_lmcache_stores_whole_chunks_of_prompts_in_their_step():
    got = play(load([20], [3]), engine=_lmcache(), engine_version="0.20.0", max_model_len=32)
    # One second of computing, four blocks of the first two chunks in another.
    assert got.run.requests.first_token_s[0] == 2.0
    assert got.run.requests.finish_s[0] == 4.0
    assert got.run.requests.stored_tokens[0] == 16


def test_lmcache_loads_whole_chunks_before_the_step():
    # Two of five blocks of A are still in the GPU's cache; the chunk after them is loaded.
    got = play(
        load([20, 24, 20], [1, 1, 1], [0.0, 10.0, 20.0], **AGAIN | {"shared_tokens": [0, 0, 20]}),
        engine=_lmcache(),
        engine_version="0.20.0",
        max_model_len=32,
    )
    assert got.batches[-1] == ["4@16"]
    assert got.run.requests.cached_tokens.tolist() == [0, 0, 16]
    assert got.run.requests.loaded_tokens.tolist() == [0, 0, 8]
    assert got.run.requests.first_token_s.tolist() == [2.0, 12.5, 21.5]


def test_lmcache_evicts_the_least_recently_used_chunk():
    workload = load([16, 16, 16, 16], [1, 1, 1, 1], 50.0 * np.arange(4),
                    shares_with=[-1, -1, -1, 0], shared_tokens=[0, 0, 0, 16])  # fmt: skip
    small, large = (
        play(workload, engine=_lmcache(blocks), engine_version="0.20.0", max_model_len=32).run
        for blocks in (8, 12)
    )
    assert small.tier.evicted > 0 == large.tier.evicted
    assert small.requests.loaded_tokens[3] == 0 < large.requests.loaded_tokens[3]


# Disaggregated prefill/decode.


@pytest.mark.parametrize("release", RELEASES)
def test_prefill_servers_load_prompts_that_come_again_and_decode_servers_have_no_tier(release):
    """A, B and A again as above: the prefill server has its four blocks back after a second."""
    spec = EngineSpec(**SMALL, **tier(100))
    target = deployment(engine_version=release, max_model_len=32, async_scheduling=False)
    recorder = Recorder()
    pools = Pool(target, recorder, spec), Pool(target, Recorder(), spec)
    workload = load([16, 29, 16], [3, 3, 3], [0.0, 10.0, 20.0], **AGAIN)
    found = simulate_pools(*pools, workload, Link(float("inf")), compiled=False)
    assert recorder.batches == [["16@0"], ["29@0"], ["1@15"]]
    assert found.prefill.requests.loaded_tokens.tolist() == [0, 0, 16]
    assert found.prefill.tier.stored == 4 + 7
    assert found.decode.tier is None
    # A second of prefill, one of loading where there is any, and three decode steps.
    taken = found.decode.requests.finish_s - found.decode.requests.arrival_s
    assert taken.tolist() == [4.0, 4.0, 5.0]


# Flags.


def test_a_launch_line_names_the_tier():
    lmcache = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    variables = "LMCACHE_CHUNK_SIZE=512 LMCACHE_LOCAL_CPU=True"
    line = f"{variables} vllm serve Qwen/Qwen3-8B --kv-transfer-config '{lmcache}'"
    launch = read_launch(line)
    config = json.loads(launch.configuration["kv_transfer_config"])
    extra = {"lmcache.chunk_size": 512, "lmcache.local_cpu": True}
    assert config == json.loads(lmcache) | {"kv_connector_extra_config": extra}
    assert "LMCACHE_CHUNK_SIZE=512" in launch.taken
    elsewhere = read_launch(line.replace("LMCacheConnectorV1", "NixlConnector"))
    assert "kv_transfer_config" not in elsewhere.configuration
    assert any("NixlConnector" in words for words in elsewhere.unmodelled)


@pytest.mark.parametrize(
    ("flags", "version", "fault"),
    [
        ({"kv_offloading_size": 1.0}, "0.10.2", "has no OffloadingConnector"),
        ({"kv_transfer_config": "{"}, "0.33.0", "must be a JSON object"),
        ({"kv_transfer_config": '{"kv_connector": "NixlConnector"}'}, "0.33.0", "NixlConnector"),
        (tier(4, eviction_policy="arc"), "0.15.1", "stops at the first store"),
        (tier(4, eviction_policy="mru"), "0.33.0", "use one of lru, arc"),
        (tier(4, block_size=6), "0.33.0", "multiple of .* 4 tokens, got 6"),
        (tier(4, sync_load_budget_bytes=5), "0.33.0", "sync_load_budget_bytes"),
        (
            {"kv_offloading_size": 1.0, "kv_offloading_backend": "lmcache"},
            "0.33.0",
            "a separate server",
        ),
    ],
)
def test_what_is_not_modelled_is_refused_with_a_remedy(flags, version, fault):
    target = deployment(engine_version=version)
    with pytest.raises(PinnError, match=fault):
        simulate(target, load([8], [2]), latency_of(target), EngineSpec(**flags))


def test_other_engines_have_no_such_flags():
    target = deployment(engine="sglang", block_size=1)
    with pytest.raises(PinnError, match="give --engine vllm"):
        simulate(target, load([8], [2]), latency_of(target), EngineSpec(kv_offloading_size=1.0))


def test_the_size_is_of_all_gpus_together():
    spec = EngineSpec(kv_offloading_size=1.0)
    alone = deployment()
    halves = deployment(tensor_parallel_size=2)
    sizes = [host_tier(each, spec, kv_layout(each, spec)) for each in (alone, halves)]
    # A GPU of two has half of the heads, and half of the bytes go over its link.
    assert sizes[0].chunks == sizes[1].chunks == 2**30 // BLOCK_BYTES
    assert sizes[0].block_bytes == 2 * sizes[1].block_bytes
