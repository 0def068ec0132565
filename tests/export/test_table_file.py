"""Coefficient tables survive every format exactly."""

from __future__ import annotations

import numpy as np
import pytest
from table_files import read_table

from pinn.engines.configurations import make_deployments
from pinn.errors import PinnError
from pinn.export.configured import from_checkpoint, with_coefficient_files
from pinn.export.table import (
    FORMAT,
    VERSION,
    alpha_columns,
    beta_columns,
    export_table,
    write_table_file,
)
from pinn.physics.costs import COST_NAMES, step_costs
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, write_coefficient_set


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_floats_survive_exactly(configured, tmp_path, file_format):
    path = tmp_path / f"table.{file_format}"
    write_table_file(export_table(configured), configured.provenance, path)
    table = read_table(path)
    for names, values in (
        (beta_columns(), configured.coefficients.beta),
        (alpha_columns(), configured.coefficients.alpha),
    ):
        found = np.array([table[name].to_pylist() for name in names]).T
        assert (found == values).all()
    costs = step_costs(configured.deployments)
    for name in COST_NAMES:
        assert table[f"cost.{name}"].to_pylist() == getattr(costs, name).tolist()
    assert table["model"][0].as_py() == configured.deployments[0].model.name
    assert table["max_model_len"].to_pylist()[0] == configured.deployments[0].model.max_position
    assert (table["format"][0].as_py(), table["version"][0].as_py()) == (FORMAT, VERSION)
    assert set(table["window_tokens"].to_pylist()) == {None, 4096}


def test_rows_that_speculate_say_what_drafts(checkpoint_path, tmp_path):
    rows = [
        {
            "model": "meta-llama/Llama-3.1-8B",
            "gpu": "H100",
            "speculative_config": config,
            "speculative_acceptance": "0.4",
        }
        for config in (
            "none",
            '{"method": "ngram", "num_speculative_tokens": 2}',
            '{"method": "eagle", "num_speculative_tokens": 3}',
        )
    ]
    kept, deployments, _ = make_deployments(rows)
    found = export_table(from_checkpoint(checkpoint_path, kept, deployments))
    for file_format in ("json", "csv", "parquet"):
        path = tmp_path / f"table.{file_format}"
        write_table_file(found, {}, path)
        table = read_table(path)
        assert table["draft.tokens"].to_pylist() == [None, 2, 3]
        assert table["draft.passes"].to_pylist() == [None, 0, 3]
        assert table["tokens_per_step"].to_pylist()[1:] == [
            d.recipe.speculation.tokens_per_step for d in deployments[1:]
        ]
        assert table["draft_cost.layers"].to_pylist() == [None, None, 1.0]
    plain = export_table(from_checkpoint(checkpoint_path, kept[:1], deployments[:1]))
    assert not [name for name in plain.column_names if name.startswith("draft")]


def test_an_unknown_format_is_refused(configured, tmp_path):
    with pytest.raises(PinnError, match=r"\.json, \.csv, \.parquet"):
        write_table_file(export_table(configured), {}, tmp_path / "table.xml")


def test_a_coefficient_file_takes_the_place_of_the_network(configured, tmp_path):
    path = tmp_path / "calibrated.json"
    facts = deployment_facts(configured.deployments[2])
    doubled = configured.coefficients.take(2)
    write_coefficient_set(CoefficientSet(facts, doubled.take(0)), path)
    found = with_coefficient_files(configured, [path])
    assert found.sources == ["network"] * 2 + [path.name] + ["network"] * 9
    assert found.provenance["coefficient_files"].keys() == {path.name}
    assert found.provenance["source"] == f"network, {path.name}"
    with pytest.raises(PinnError, match="same configuration"):
        with_coefficient_files(found, [path])


def test_a_coefficient_file_of_another_deployment_is_refused(configured, llama_8b_h100, tmp_path):
    path = tmp_path / "calibrated.json"
    facts = deployment_facts(llama_8b_h100) | {"gpu": "GB300"}
    write_coefficient_set(CoefficientSet(facts, configured.coefficients.take(0)), path)
    with pytest.raises(PinnError, match="gpu GB300"):
        with_coefficient_files(configured, [path])
