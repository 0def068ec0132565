"""Memory that servers logged at start, compared with predictions.

The tests need the table of start-ups that PINN_KV_MEMORY names.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from score_memory import configuration_of, deployment_of, errors, scored_table
from simulator_helpers import load as load_of

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import least_blocks, memory_fit
from pinn.memory.kv_layout import empty_layout, max_model_len
from pinn.memory.ledger import memory_ledger
from pinn.planning.candidates import deployments_of
from pinn.specs.serving import SGLANG
from pinn.units import GIB

CASES = os.environ.get("PINN_KV_MEMORY", "")
pytestmark = pytest.mark.skipif(not CASES, reason="PINN_KV_MEMORY names no table of start-ups")


@pytest.fixture(scope="module")
def rows():
    return scored_table(Path(CASES))


def test_errors_of_vllm_are_small(rows):
    found = errors(rows)
    assert len(found["KV memory"]) >= 25
    assert len(found["weights"]) >= 24
    assert found["KV memory"].median() <= 1.5
    assert found["KV memory"].quantile(0.9) <= 4
    assert found["tokens"].median() <= 1.5
    assert found["weights"].median() <= 0.5


def test_errors_of_sglang_are_small(rows):
    own = rows[(rows["engine"] == SGLANG) & rows["kv_logged"].notna()]
    assert len(own) >= 5
    assert (own["kv"] - own["kv_logged"]).abs().mean() <= 1.5


def test_no_server_that_started_is_refused(rows):
    started = rows[(rows["starts"] == 1) & rows["fits"].notna()]
    assert len(started) >= 35
    assert list(started.loc[~started["fits"].astype(bool), "case"]) == []


def test_intervals_hold_what_was_logged(rows):
    table = pd.read_csv(CASES).set_index("case")
    known = rows[rows["kv_logged"].notna() & (rows["scored"] | (rows["engine"] == SGLANG))]
    outside = []
    for case, logged in zip(known["case"], known["kv_logged"], strict=True):
        ends = memory_fit(deployment_of(table.loc[case])).byte_ends
        # Weights that exceed the memory have no interval.
        if ends is not None and not ends[0] - GIB / 50 <= logged * GIB <= ends[1] + GIB / 50:
            outside.append(case)
    assert outside == []


def test_no_plan_rents_what_does_not_start_by_its_log(rows):
    """Each start-up has a share of memory that leaves 1 % less than a context needs.

    vLLM sizes the cache by what the share leaves, so a logged cache shrinks with it. The plan
    examines the configuration as ``pinn plan`` does, for a load that it could serve.
    """
    table = pd.read_csv(CASES).set_index("case")
    logged = rows[rows["scored"] & rows["kv_logged"].notna()]
    load, asked, rented = load_of([512], [64]), [], []
    for case, kv_gib in zip(logged["case"], logged["kv_logged"], strict=True):
        deployment = deployment_of(table.loc[case])
        layout, longest = empty_layout(deployment), max_model_len(deployment)
        need = least_blocks(deployment, layout) * layout.block_bytes
        share = deployment.recipe.memory_share
        share -= (kv_gib * GIB - 0.99 * need) / memory_ledger(deployment).visible
        if not 0 < share < 1:
            continue
        row = configuration_of(table.loc[case])
        row |= {"gpu_memory_utilization": share, "max_model_len": longest}
        asked.append(case)
        for _, _, reason in deployments_of([row], EngineSpec(), load):
            if reason is None:
                rented.append(case)
    assert rented == []
    assert len(set(asked)) >= 10
