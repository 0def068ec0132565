"""Exported folders and the Go adapter through a model of BLIS's engine, beside ``pinn simulate``.

A few configurations and short loads by default; ``PINN_BLIS_STAGE_S=25 pytest -s`` on this file
takes all thirty with stages of so many seconds, step times with those of an export, and prints a
line for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from blis_engine.config import read_inputs
from blis_engine.engine import load_values, run_values, seen_of, serve
from blis_engine.flags import flags_of
from go_command import needs_go
from pages import command_on

from pinn.coefficients.configuration_files import read_configurations
from pinn.coefficients.configurations import make_deployments
from pinn.export.blis_config import blis_kv_blocks
from pinn.export.blis_files import folder_name, write_configuration
from pinn.export.blis_vectors import blis_vectors, own_errors
from pinn.export.blis_workloads import STAGE_S as EXPORTED_S
from pinn.export.blis_workloads import mean_request_tokens, standard_loads
from pinn.export.configured import from_checkpoint
from pinn.export.table import export_table
from pinn.export.table_file import write_table_file
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.specs.data_folder import find_checkpoint

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
def configured():
    """The configurations that are run."""
    rows = read_configurations(CONFIGURATIONS)
    kept, deployments, _ = make_deployments(rows if ALL else [rows[i] for i in FEW])
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def vectors_of(configured):
    """Exported vectors of all configurations, for loads with stages of a length."""
    return cache(
        lambda stage_s: [
            blis_vectors(configured, row, standard_loads(stage_s)) for row in range(len(configured))
        ]
    )


@pytest.fixture(scope="module")
def results(configured, vectors_of, tmp_path_factory):
    """What clients see of every configuration under every load."""
    out, loads = tmp_path_factory.mktemp("blis"), standard_loads(STAGE_S)
    table = out / "table.json"
    write_table_file(export_table(configured), {}, table, "json")
    runs, wanted = [], []
    for row, deployment in enumerate(configured.deployments):
        vectors = vectors_of(STAGE_S)[row]
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
    return results


def test_the_page_types_this_file_with_stages_of_a_length():
    (variable, program, _, path), _ = command_on("blis.md", "pytest")
    assert (program, Path(path).name) == ("pytest", Path(__file__).name)
    assert variable.split("=")[0] in Path(__file__).read_text()


def test_step_times_of_every_load_are_reproduced(vectors_of):
    found = vectors_of(EXPORTED_S if ALL else STAGE_S)
    by_load = np.array([[v.projection.median_error for v in each[:-1]] for each in found])
    worst = max(np.median(own_errors(each)) for each in found)
    print("step times: per load", np.round(100 * np.median(by_load, 0), 3), "worst", worst)
    assert (np.median(by_load, 0) < (0.003 if ALL else 0.01)).all()
    assert worst < 0.04


@pytest.mark.parametrize("way", ["vector", "adapter"])
def test_clients_see_what_they_see_in_our_simulator(results, way, configured):
    found = np.abs([getattr(result, way) for result in results])
    by_load = np.median(found.reshape(len(configured), -1, 3), 0)
    print(way, "medians", np.round(100 * np.median(found, 0), 2), np.round(100 * by_load, 2))
    assert (by_load < (0.04, 0.08, 0.04)).all()
    below = ~np.array([result.overloaded for result in results])
    print(way, "worst of", below.sum(), "below saturation", np.round(100 * found[below].max(0), 1))
    assert (found[below] < 0.15).all()
