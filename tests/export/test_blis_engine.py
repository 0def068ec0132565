"""Exported folders and the Go adapter through a model of BLIS's engine, beside ``pinn simulate``.

Each folder's ``run.sh`` picks coefficients for specifications of six loads, from one request at a
time to 95 % of saturation. A few configurations and short loads run by default.
``PINN_BLIS_STAGE_S=60 pytest -s`` on this file runs all of them, with loads of at least 60 seconds,
and prints one line for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from blis_engine.config import read_inputs
from blis_engine.engine import load_values, run_values, seen_of, serve, step_ahead_us
from blis_engine.flags import flags_of
from go_command import needs_go
from pages import command_on

from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployments, read_configurations
from pinn.export.blis_batches import guard
from pinn.export.blis_files import folder_name, write_configuration
from pinn.export.blis_model import blis_kv_blocks
from pinn.export.blis_vectors import MIX, blis_vectors, latency_of
from pinn.export.configured import from_checkpoint
from pinn.export.table import export_table, write_table_file
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.load import load_workload
from pinn.simulator.workloads.workload import closed_loop

pytestmark = needs_go

ALL = "PINN_BLIS_STAGE_S" in os.environ
STAGE_S = float(os.environ.get("PINN_BLIS_STAGE_S", 30))
FOLDER = Path(__file__).resolve().parents[2] / "export" / "blis"
#: Indices of a dense model, one with windows, a mixture of experts, and one with eight large
#: experts.
FEW = (1, 16, 22, 30)
PROMPT, OUTPUT = 700, 200
#: Shares of the saturating rate; the first load is one request at a time.
SHARES = (0.0, 0.1, 0.3, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Result:
    """One configuration under one load.

    Attributes:
        what: Model, GPU and load.
        picked: Alpha and beta that ``run.sh`` picked.
        vector: E2E, TTFT and ITL of the folder over those of ``pinn simulate``, less 1.
        adapter: E2E, TTFT and ITL of the adapter over those of ``pinn simulate``, less 1.
    """

    what: str
    picked: tuple[float, ...]
    vector: np.ndarray
    adapter: np.ndarray


@pytest.fixture(scope="module")
def configured():
    """Return the configurations that are run."""
    files = ("configurations.csv", "experts.csv")
    rows = [row for name in files for row in read_configurations(FOLDER / name)]
    kept, deployments, _ = make_deployments(rows if ALL else [rows[i] for i in FEW])
    return from_checkpoint(find_checkpoint(), kept, deployments)


@pytest.fixture(scope="module")
def vectors(configured):
    """Return the exported vectors of all configurations."""
    return [blis_vectors(configured, row) for row in range(len(configured))]


def specifications(latency, folder):
    """Return files of the loads of one configuration."""
    deployment = latency.deployment
    most = deployment.recipe.max_requests
    flood = closed_loop(most, 6 * most, PROMPT, OUTPUT)
    run = simulate(deployment, flood, latency)
    saturated = len(flood) / np.nanmax(run.requests.finish_s)
    one = simulate(deployment, closed_loop(1, 2, PROMPT, OUTPUT), latency)
    for share in SHARES:
        rate = share * saturated or 0.7 / one.requests.e2e_s[0]
        path = folder / f"load-{100 * share:.0f}.yaml"
        lengths = {
            f"{side}_distribution": {
                "type": "gaussian",
                "params": {"mean": n, "std_dev": n / 4, "min": 20, "max": 2 * n},
            }
            for side, n in (("input", PROMPT), ("output", OUTPUT))
        }
        client = {
            "id": "all", "tenant_id": "t", "slo_class": "standard", "rate_fraction": 1.0,
            "arrival": {"process": "poisson" if share else "constant"}, **lengths,
        }  # fmt: skip
        found = {
            "version": "2", "seed": 1, "category": "language", "aggregate_rate": float(rate),
            "num_requests": int(max(STAGE_S * rate, 40)), "clients": [client],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(found, sort_keys=False))
        yield path


@pytest.fixture(scope="module")
def results(configured, vectors, tmp_path_factory):
    """Return the metrics of clients for every configuration under every load."""
    out = tmp_path_factory.mktemp("blis")
    table = out / "table.json"
    write_table_file(export_table(configured), {}, table)
    runs, wanted, loads = [], [], {}
    for row, deployment in enumerate(configured.deployments):
        blocks = blis_kv_blocks(deployment, PROMPT + OUTPUT)
        write_configuration(configured, row, vectors[row], blocks, out)
        folder = out / folder_name(configured, row)
        latency = latency_of(configured, row)
        for path in specifications(latency, folder):
            inputs = read_inputs(flags_of(folder / "run.sh", "--workload-spec", str(path)))
            load = load_workload(path)
            name = f"{row}/{path.stem}"
            loads[name] = load_values(load)
            run = simulate(deployment, load, latency)
            for step_us in (-1, step_ahead_us(run)):
                found = run_values(inputs, name, row, step_us)
                runs.append(found | {"completion_us": inputs.alpha[1]})
            what = f"{deployment.model.name} {deployment.gpu.name} {path.stem}"
            wanted.append((what, (*inputs.alpha, *inputs.beta), seen_of(run)))
    found = serve(runs, loads, table)
    results = []
    for i, (what, picked, seen) in enumerate(wanted):
        one = Result(what, picked, found[2 * i].over(seen), found[2 * i + 1].over(seen))
        results.append(one)
        both = " ".join(f"{100 * x:+6.1f}" for x in (*one.vector, *one.adapter))
        print(f"{what:60} {both}")
    return results


def test_the_page_types_this_file_with_loads_of_a_length():
    (variable, program, _, path), _ = command_on("blis.md", "test_blis_engine.py")
    assert (program, Path(path).name) == ("pytest", Path(__file__).name)
    assert variable.split("=")[0] in Path(__file__).read_text()


def test_no_batch_is_off_by_more_than_a_file_says(configured, vectors):
    """All numbers of decodes are covered, with up to as many prompts as the load brings at once."""
    each = {"dense": [], "experts": []}
    for row, deployment in enumerate(configured.deployments):
        latency = latency_of(configured, row)
        guards = {vector.lengths: guard(latency, vector.lengths) for vector in vectors[row]}
        for vector in vectors[row]:
            if vector.load == MIX:
                continue
            asked = guards[vector.lengths].within(*vector.taken)
            for kind, batch in vector.kinds.items():
                rows = (asked.shapes == [batch.decodes, batch.prompts, batch.prompt_tokens]).all(1)
                assert batch.error in asked.take(rows).batches.errors(vector.projection.beta), kind
            usual = asked.with_prompts(0, max(vector.prompts, 1))
            errors = np.abs(usual.batches.errors(vector.projection.beta))
            several = vector.several.error if vector.several else 0.0
            assert max(abs(vector.worst.error), abs(several)) == errors.max()
            each["dense" if deployment.model.moe is None else "experts"].append(errors.max())
    for kind, limit in (("dense", 0.15), ("experts", 0.25)):
        found = np.array(each[kind])
        print(f"worst batch of {len(found)} vectors, {kind}: {100 * found.max():.1f} %, "
              f"beyond {100 * limit:.0f} %: {(found > limit).sum()}")  # fmt: skip
        # Few decodes of large experts beside two short prompts are beyond any line.
        assert (found > limit).mean() < 0.02
        assert found.max() < limit + 0.05


def test_end_to_end_latencies_of_folders_have_no_bias(results):
    bias = np.mean([result.vector for result in results], 0)
    print("vector bias", np.round(100 * bias, 2))
    assert abs(bias[0]) < 0.015


@pytest.mark.parametrize("way", ["vector", "adapter"])
def test_clients_see_what_they_see_in_our_simulator(results, way, configured):
    found = np.abs([getattr(result, way) for result in results])
    by_load = np.median(found.reshape(len(configured), len(SHARES), 3), 0)
    print(way, "medians", np.round(100 * np.median(found, 0), 2), np.round(100 * by_load, 2))
    print(way, "worst", np.round(100 * found.max(0), 1))
    assert (by_load < (0.04, 0.11, 0.04)).all()
    # Both simulators agree on which loads saturate.
    assert found[:, 0].max() < 0.15


def test_loads_of_every_height_take_their_own_coefficients(results, configured):
    picked = [result.picked for result in results]
    for row in range(len(configured)):
        each = picked[row * len(SHARES) :][: len(SHARES)]
        # The two highest loads may both be nearest to the last.
        assert len(set(each)) >= len(SHARES) - 1
