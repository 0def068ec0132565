"""Measured disaggregated P/D deployments: the filter, and the steady state of a row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from assumed_priors import prior_coefficients
from score_disaggregated import (
    measured_pools,
    pools_table,
    read_disaggregated,
    steady_state,
    without_workers,
)

from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import Link, Pool, simulate_pools
from pinn.simulator.workloads.workload import closed_loop


@pytest.fixture(scope="module")
def rows():
    return read_disaggregated()[0]


def test_the_rule_leaves_the_rows_whose_pools_are_known(rows):
    report = read_disaggregated()[1]
    assert list(report.refused.values()) == [3619, 10, 659, 671]
    assert (report.accepted, len(rows)) == (262, 262)
    assert report.read == report.accepted + sum(report.refused.values())
    assert rows["engine"].value_counts().to_dict() == {"trtllm": 151, "sglang": 97, "vllm": 14}


def test_a_row_without_the_servers_of_either_pool_goes():
    rows = pd.DataFrame(
        {"prefill_num_workers": [1, np.nan, 2], "decode_num_workers": [1, 1, np.nan]}
    )
    assert without_workers(rows).tolist() == [False, True, True]


def test_every_row_is_a_pair_of_pools(rows):
    for _, row in rows.iterrows():
        pools = measured_pools(row)
        recipe = pools.decode.recipe
        assert recipe.tensor_parallel_size == row["decode_tp_size"]
        assert recipe.data_parallel_size == row["decode_attention_dp_size"]
        assert pools.decode_workers == row["decode_num_workers"]


def test_shares_of_experts_that_would_cut_a_block_are_whole_experts(rows):
    wide = rows[(rows["decode_moe_tp_size"] == 32) & (rows["engine"] == "sglang")]
    assert measured_pools(wide.iloc[0]).decode.recipe.expert_parallel_size == 32
    cut = rows[(rows["decode_moe_tp_size"] == 4) & (rows["decode_attention_dp_size"] == 1)]
    assert measured_pools(cut.iloc[0]).decode.recipe.expert_parallel_size == 1


def test_servers_of_a_pool_are_started_for_their_pool(rows):
    """Check that graphs cover a decode server's share, and prefill servers the engine's budget."""
    for _, row in rows[rows["engine"] != "vllm"].iterrows():
        pools = measured_pools(row)
        ranks = pools.decode_workers * pools.decode.recipe.data_parallel_size
        assert pools.decode.recipe.graph_requests >= row["concurrency"] / ranks
        if row["engine"] == "trtllm":
            assert pools.prefill.recipe.token_budget >= max(8192, row["prompt_tokens"])


def test_sglang_over_more_than_one_machine_exchanges_by_deepep(rows):
    ranks = rows["decode_attention_dp_size"]
    for chosen, exchange in ((ranks > 8, "all_to_all"), (ranks == 8, "gather")):
        row = rows[chosen & (rows["engine"] == "sglang")].iloc[0]
        assert measured_pools(row).decode.recipe.expert_exchange == exchange


def _steady(rows, concurrency):
    row = rows[(rows["decode_attention_dp_size"] == 1) & (rows["prompt_tokens"] == 1024)].iloc[0]
    pools, prior = measured_pools(row), prior_coefficients(1)
    prefill, decode = (
        LinearLatency(each, prior.beta[0], prior.alpha[0] * 0)
        for each in (pools.prefill, pools.decode)
    )
    state = steady_state(
        pools, prefill, decode, clients=concurrency, prompt_tokens=1000, output_tokens=100
    )
    return pools, prefill, decode, state


@pytest.mark.parametrize("concurrency", [4, 64, 1024])
def test_clients_are_conserved(rows, concurrency):
    """Check that clients waiting for a first token and clients decoding add up to all clients."""
    pools, _, _, state = _steady(rows, concurrency)
    assert 0 < state.batch * pools.decode_workers <= concurrency
    assert state.ttft_s > 0


def test_more_clients_never_quicken_a_token(rows):
    found = [_steady(rows, clients)[3].tpot_s for clients in (1, 16, 64, 256, 4096, 16384)]
    assert (np.diff(found) >= -1e-9 * found[-1]).all()
    # More clients than prefill workers can serve wait in front of them.
    assert found[-1] == pytest.approx(found[-2], rel=1e-3)


def test_the_steady_state_is_that_of_a_simulation(rows):
    pools, prefill, decode, state = _steady(rows, 64)
    run = simulate_pools(
        Pool(pools.prefill, prefill, EngineSpec(replicas=pools.prefill_workers)),
        Pool(pools.decode, decode, EngineSpec(replicas=pools.decode_workers)),
        closed_loop(64, 640, 1000, 100),
        Link(float("inf")),
    )
    simulated = np.nanmean(run.decode.requests.mean_itl_s)
    assert state.tpot_s == pytest.approx(simulated, rel=0.1)


def test_the_table_has_a_line_for_each_part(rows):
    scores = rows.assign(network_tpot_s=1.1 * rows["tpot_s"], network_ttft_s=rows["ttft_s"])
    lines = pools_table(scores).splitlines()
    assert lines[2] == "| all | all | all | all | 262 | 10.0 / 10.0 (+10.0) | 0.0 / 0.0 (+0.0) |"
    assert sum(int(line.split("|")[5]) for line in lines[3:6]) == 262
