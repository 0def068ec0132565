"""Data-parallel ranks that share their experts: what a step of them is, and what holds it back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import latency_of
from simulator_helpers import DENSE, MIXTURE, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.physics.batch_sums import sum_batches
from pinn.planning.screening import lone_seconds, step_seconds
from pinn.simulator import hooks
from pinn.simulator.engine import plain_engine
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.lockstep import share_work
from pinn.simulator.setup import check_run, prompt_interval, set_up
from pinn.simulator.simulate import simulate
from pinn.simulator.state import SUMS
from pinn.specs.batch import Batch
from pinn.surrogate.group_features import group_features, shared_features
from pinn.surrogate.step_features import STEP_FEATURES, step_time

RANKS = 4
EAGER, GRAPHS = {"enforce_eager": True}, {"max_cudagraph_capture_size": 512}
#: Requests of a rank: decodes, tokens of each context, prompt tokens.
RANK = st.tuples(st.integers(0, 40), st.integers(1, 900), st.sampled_from([0, 0, 1, 40, 600, 3000]))


def mixture(**serving):
    wide = {"max_num_batched_tokens": 8192, "max_num_seqs": 64, "max_model_len": 8192}
    return deployment(
        MIXTURE, data_parallel_size=RANKS, enable_expert_parallel=True, **wide, **serving
    )


def batch_of(decodes, context, prompt):
    return Batch.decode(decodes, context) + Batch.prefill(int(prompt > 0), max(prompt, 1))


def step_of(ranks, **serving):
    """(Seconds of a step of ranks with such batches, what the experts work on per rank)."""
    target = mixture(**serving)
    latency, workload, spec = latency_of(target), load([1], [1]), EngineSpec()
    layout = kv_layout(target, spec)
    refused = check_run(target, workload, spec, layout)
    engine = plain_engine(set_up(target, workload, spec, layout, refused))
    batches = [batch_of(*each) for each in ranks]
    for replica, batch in enumerate(batches):
        sums = sum_batches([batch], target.model.window_tokens).padded(target.recipe.graph_sizes)
        for i, name in enumerate(SUMS):
            engine.replicas[replica].sums[i] = float(getattr(sums, name)[0])
    share_work(engine, 0)
    shared_s = hooks.shared_seconds(latency, engine, 0)
    busy = [batch for batch in batches if batch.new_tokens]
    longest = max((latency.own_step_time(batch, shared_s) for batch in busy), default=0.0)
    return longest, engine.groups[0].shared[:3]


@given(RANK.filter(lambda rank: rank[0] + rank[2] > 0), st.sampled_from([EAGER, GRAPHS]))
@settings(max_examples=40, deadline=None)
def test_equal_batches_step_like_one_rank_that_is_asked_about_alone(rank, graphs):
    whole = latency_of(mixture(**graphs)).step_time(batch_of(*rank))
    assert step_of([rank] * RANKS, **graphs)[0] == pytest.approx(whole, rel=1e-12)


@given(st.lists(RANK, min_size=RANKS, max_size=RANKS), st.integers(0, RANKS - 1), RANK)
@settings(max_examples=60, deadline=None)
def test_a_step_never_gets_shorter_with_more_work_on_any_rank(ranks, place, more):
    larger = [tuple(np.add(r, more).tolist()) if i == place else r for i, r in enumerate(ranks)]
    assert step_of(larger, **EAGER)[0] >= step_of(ranks, **EAGER)[0] * (1 - 1e-12)
    if sum(map(sum, larger)) < 512:  # all within the graphs
        assert step_of(larger, **GRAPHS)[0] >= step_of(ranks, **GRAPHS)[0] * (1 - 1e-12)


@given(st.lists(RANK, min_size=RANKS, max_size=RANKS), st.integers(0, RANKS - 1))
@settings(max_examples=40, deadline=None)
def test_an_idle_rank_costs_no_more_than_a_loaded_one(ranks, place):
    idle = [(0, 1, 0) if i == place else rank for i, rank in enumerate(ranks)]
    for graphs in (EAGER, GRAPHS) if max(rank[2] for rank in ranks) < 400 else (EAGER,):
        assert step_of(idle, **graphs)[0] <= step_of(ranks, **graphs)[0] * (1 + 1e-12)


@pytest.mark.parametrize("prompt", [600, 3000])
def test_a_prompt_is_the_same_work_for_the_experts_on_whichever_rank_it_is(prompt):
    places = [[(8, 100, prompt if i == j else 0) for i in range(RANKS)] for j in range(RANKS)]
    for ranks in places:
        seconds, shared = step_of(ranks, **GRAPHS)
        assert shared == pytest.approx([1 / RANKS, 8, prompt / RANKS])
        assert seconds == pytest.approx(step_of(places[0], **GRAPHS)[0])
    apart, together = places[0], [(8, 100, prompt)] * RANKS
    assert step_of(apart, **GRAPHS)[1][2] == step_of(together, **GRAPHS)[1][2] / RANKS
    assert step_of(apart, **GRAPHS)[0] <= step_of(together, **GRAPHS)[0]
    assert step_of(apart, **GRAPHS)[0] > step_of([(8, 100, 0)] * RANKS, **GRAPHS)[0]


def test_ranks_within_the_graphs_are_padded_to_the_largest_and_the_idle_run_along():
    uneven = [(32, 100, 0), (4, 100, 0), (0, 1, 0), (0, 1, 0)]
    assert step_of(uneven, **GRAPHS)[1] == [0, 32, 0]
    assert step_of(uneven, **EAGER)[1] == [0, (32 + 4 + 1 + 1) / 4, 0]


@pytest.mark.parametrize(
    ("release", "padded"), [("0.10.2", True), ("0.16.0", True), ("0.17.0", False)]
)
def test_releases_before_0_17_pad_eager_steps_too(release, padded):
    ranks = [(8, 100, 3000), (8, 100, 0), (8, 100, 0), (8, 100, 0)]
    shared = step_of(ranks, engine_version=release, **GRAPHS)[1]
    assert shared == ([1, 8, 3000] if padded else [0.25, 8, 750])
    assert step_of(ranks, engine_version=release, **EAGER)[1] == [0.25, 8, 750]


def test_steps_are_recorded_with_what_their_features_need():
    target, rng = mixture(), np.random.default_rng(0)
    workload = load(
        rng.integers(1, 900, 60), rng.integers(1, 60, 60), np.sort(rng.uniform(0, 0.02, 60))
    )
    run, latency = simulate(target, workload, latency_of(target)), latency_of(target)
    own, shared = run.steps.sums, run.steps.shared_sums
    seconds = step_time(group_features(target, own, shared), latency.beta)
    assert run.steps["duration_s"] == pytest.approx(seconds, rel=1e-9)
    assert (shared.tokens < own.tokens).mean() > 0.05


def test_only_experts_and_a_gather_are_shared():
    names = np.array(list(STEP_FEATURES))
    gathered = set(names[shared_features(mixture())])
    assert "expert_exchange" in gathered
    assert {name for name in gathered if not name.startswith("expert")} == set()
    sglang = {"engine": "sglang", "tensor_parallel_size": 4, "data_parallel_size": 4}
    apart = deployment(MIXTURE, enable_dp_attention=True, moe_a2a_backend="deepep", **sglang)
    assert gathered - set(names[shared_features(apart)]) == {"expert_exchange"}
    assert not shared_features(deployment(DENSE, data_parallel_size=4)).any()
    assert not shared_features(deployment(MIXTURE, enable_expert_parallel=True)).any()


@given(prompt=st.integers(1, 2000), context=st.integers(1, 900))
@settings(max_examples=30, deadline=None)
def test_no_step_is_faster_than_its_request_alone(prompt, context):
    latency = latency_of(mixture(**EAGER))
    beside = [(3, 50, 0), (0, 1, 0), (5, 9, 0)]
    decode = lone_seconds(latency, decode_requests=np.ones(1), decode_context=np.array([context]))
    chunk = lone_seconds(latency, prefill_requests=np.ones(1), prefill_tokens=np.array([prompt]))
    assert decode <= step_of([(1, context, 0), *beside], **EAGER)[0]
    assert chunk <= step_of([(0, 1, prompt), *beside], **EAGER)[0]
    assert decode <= step_seconds(
        latency, decode_requests=np.ones(1), decode_context=np.array([context])
    )


def paced(interval, **serving):
    """Steps with prompts among those in which requests decode, and the run."""
    target = mixture(prefill_schedule_interval=interval, **serving)
    rng = np.random.default_rng(1)
    workload = load(rng.integers(40, 60, 80), [64] * 80, np.sort(rng.uniform(0, 0.05, 80)))
    run = simulate(target, workload, latency_of(target))
    return run.steps.shared_sums.prefill_requests > 0, run


def test_an_interval_leaves_prompts_to_every_nth_step_of_all_ranks():
    often, usual = paced(1)
    seldom, held = paced(16)
    assert seldom.sum() < often.sum() / 3
    assert held.requests.computed_tokens.sum() == usual.requests.computed_tokens.sum()
    assert held.requests.ttft_s.mean() > usual.requests.ttft_s.mean()
    assert held.requests.mean_itl_s.mean() < usual.requests.mean_itl_s.mean()
    middle = np.flatnonzero(seldom)[2:-2]
    assert (np.diff(middle) % 16 == 0).mean() > 0.8


def test_an_interval_paces_an_engine_by_itself_from_0_33_on():
    alone = {"prefill_schedule_interval": 8}
    assert prompt_interval(deployment(**alone, engine_version="0.33.0")) == 8
    assert prompt_interval(deployment(**alone, engine_version="0.32.0")) == 1
    assert prompt_interval(mixture(**alone, engine_version="0.32.0")) == 8


def test_sglangs_delayer_takes_prompts_of_all_ranks_together():
    serving = {"engine": "sglang", "tensor_parallel_size": RANKS, "enable_dp_attention": True}
    serving |= {
        "data_parallel_size": RANKS,
        "max_num_seqs": 64,
        "max_model_len": 512,
        "max_num_batched_tokens": 4096,
    }
    rng, found = np.random.default_rng(2), []
    workload = load(rng.integers(40, 60, 80), [32] * 80, np.sort(rng.uniform(0, 0.03, 80)))
    for delayer in ({}, {"enable_prefill_delayer": True}):
        target = replace(
            deployment(MIXTURE), serving=deployment(MIXTURE, **serving, **delayer).serving
        )
        run = simulate(target, workload, latency_of(target))
        found.append((run.steps.shared_sums.prefill_requests > 0).sum())
        assert run.requests.finished.all()
    assert found[1] < found[0] * 0.7
    alone = deployment(MIXTURE, engine="sglang", enable_prefill_delayer=True).recipe
    assert alone.prompt_wait_steps == 0 < target.recipe.prompt_wait_steps


def test_a_latency_model_that_knows_no_ranks_steps_as_long_as_the_slowest():
    class Steps:
        def step_time(self, batch):
            return 1.0 + sum(batch.new_tokens)

        def queueing_time(self, _):
            return 0.0

        def output_token_processing_time(self):
            return 0.0

    run = simulate(mixture(), load([5, 9, 2, 1], [1] * 4), Steps())
    assert run.steps["duration_s"].tolist() == [10.0]
    assert not isinstance(Steps(), LinearLatency)
