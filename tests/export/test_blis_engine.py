"""Exported folders and the Go adapter through a model of BLIS's engine, beside ``pinn simulate``.

A few configurations and short loads by default; ``PINN_BLIS_STAGE_S=150 pytest -s`` on this file
takes all thirty with stages of so many seconds, and prints a line for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from blis_engine.config import read_inputs
from blis_engine.engine import load_values, run_values, seen_of, serve
from blis_engine.flags import flags_of
from go_command import needs_go

from pinn.coefficients.checkpoint_search import find_checkpoint
from pinn.coefficients.configuration_files import read_configurations
from pinn.coefficients.configurations import make_deployments
from pinn.export.blis_config import blis_kv_blocks
from pinn.export.blis_files import folder_name, write_configuration
from pinn.export.blis_vectors import blis_vectors, own_errors
from pinn.export.blis_workloads import mean_request_tokens, standard_loads
from pinn.export.configured import from_checkpoint
from pinn.export.table import export_table
from pinn.export.table_file import write_table_file
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate

pytestmark = needs_go

STAGE_S = float(os.environ.get("PINN_BLIS_STAGE_S", 12))
ALL = "PINN_BLIS_STAGE_S" in os.environ
CONFIGURATIONS = Path(__file__).resolve().parents[2] / "export" / "blis" / "configurations.csv"
#: Dense, with windows, a mixture of experts.
FEW = (1, 16, 18)


@dataclass(frozen=True)
class Result:
    """One configuration under one load.

    Attributes:
        overloaded: Whether requests queue up.
        vector: E2E, TTFT and ITL of the exported vector over those of ``pinn simulate``, less 1.
        adapter: The same of the adapter.
    """

    overloaded: bool
    vector: np.ndarray
    adapter: np.ndarray


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All results, and the errors of step times by configuration and load."""
    out = tmp_path_factory.mktemp("blis")
    rows = read_configurations(CONFIGURATIONS)
    rows = rows if ALL else [rows[i] for i in FEW]
    kept, deployments, _ = make_deployments(rows)
    configured = from_checkpoint(find_checkpoint(), kept, deployments)
    loads = standard_loads(STAGE_S)
    table = out / "table.json"
    write_table_file(export_table(configured), {}, table, "json")
    runs, wanted, errors = [], [], []
    for row, deployment in enumerate(configured.deployments):
        vectors = blis_vectors(configured, row, loads)
        errors.append([np.median(v.projection.errors) for v in vectors[:-1]])
        errors[-1].append(np.median(own_errors(vectors)))
        blocks = blis_kv_blocks(deployment, mean_request_tokens(loads))
        write_configuration(configured, row, vectors, blocks, out)
        script = out / folder_name(configured, row) / "run.sh"
        latency = LinearLatency(
            deployment, configured.coefficients.beta[row], configured.coefficients.alpha[row]
        )
        for load, vector in zip(loads, vectors, strict=False):
            inputs = read_inputs(flags_of(script, load=load.name))
            common = {"completion_us": inputs.alpha[1]}
            for adapter in (False, True):
                runs.append(run_values(inputs, load.name, row, adapter=adapter) | common)
            seen = seen_of(simulate(deployment, load, latency))
            wanted.append((seen, vector.overloaded, load.name, deployment))
    found = serve(runs, {load.name: load_values(load) for load in loads}, table)
    results = []
    for i, (seen, overloaded, name, deployment) in enumerate(wanted):
        one = Result(overloaded, found[2 * i].over(seen), found[2 * i + 1].over(seen))
        results.append(one)
        both = " ".join(f"{100 * x:+6.1f}" for x in (*one.vector, *one.adapter))
        what = f"{deployment.model.name} {deployment.gpu.name}"
        print(f"{what:60} {name:15} {'*' if overloaded else ' '} {both}")
    return results, np.array(errors)


def test_step_times_of_every_load_are_reproduced(results):
    _, errors = results
    print(
        "step times: per load",
        np.round(100 * np.median(errors, 0), 2),
        "worst",
        errors[:, -1].max(),
    )
    assert np.median(errors[:, :-1]) < (0.003 if ALL else 0.01)
    assert errors[:, -1].max() < 0.04


@pytest.mark.parametrize("way", ["vector", "adapter"])
def test_clients_see_what_they_see_in_our_simulator(results, way):
    found = np.array([getattr(result, way) for result in results[0]])
    print(way, "medians", np.round(100 * np.median(abs(found), 0), 2))
    assert (np.median(abs(found), 0) < (0.04, 0.08, 0.04)).all()
    below = ~np.array([result.overloaded for result in results[0]])
    print(way, "worst below saturation", np.round(100 * abs(found[below]).max(0), 1))
    assert (abs(found[below]) < 0.15).all()
