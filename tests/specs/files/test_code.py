"""Which code a digest covers, without anyone having listed it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pinn.common import code
from pinn.common.code import code_digest, module_of
from pinn.errors import PinnError
from pinn.training import composed


def code_modules(*deciders):
    """Names of the modules that a digest covers."""
    return {*code._closure(frozenset(module_of(decider) for decider in deciders))}


def test_imports_are_followed_also_inside_functions():
    covered = code_modules(composed.compose_shards)
    assert {
        "pinn.training.composed",
        "pinn.physics.batch_sums",
        "pinn.kernels.composition",
    } <= covered
    assert {"pinn.physics.costs", "pinn.units", "pinn"} <= covered
    assert not any(name.startswith(("pinn.training.folds", "pinn.simulator")) for name in covered)
    inside = code_modules("pinn.surrogate.uncertainty.intervals")
    assert {"pinn.kernels.composition", "pinn.surrogate.architecture"} <= inside


def test_what_only_type_checkers_import_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "decider.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from pinn.planning import page\n\nB = 1\n"
        "class A:\n    def f(self):\n        from pinn.specs import (batch,\n            gpu)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import decider

    covered = code_modules(decider)
    assert {"decider", "pinn", "pinn.specs", "pinn.specs.batch", "pinn.specs.gpu"} <= covered
    assert not any(name.startswith("pinn.planning") for name in covered)


def test_every_data_folder_is_named_where_a_digest_finds_it():
    root = Path(code.__file__).parents[1]
    for path in {*root.rglob("*.py")} - {root / "common/code.py"}:
        calls = re.findall(r"(?<!def )\bdata_folder\((.*)", path.read_text())
        assert all(call.startswith('"') for call in calls), path


def test_a_digest_holds_the_installed_libraries(monkeypatch):
    ours = code_digest("pinn.units")
    code._digest.cache_clear()
    monkeypatch.setattr(code, "_installed", lambda: ["torch-0.0.1.dist-info"])
    assert code_digest("pinn.units") != ours
    code._digest.cache_clear()


def test_a_function_with_arguments_bound_is_the_function():
    assert code_digest(code.partial(composed.compose_shards, seed=3)) == code_digest(composed)


def test_what_has_no_source_is_refused():
    with pytest.raises(PinnError, match="the code of 'math' is unknown"):
        code_digest("math")


def test_a_digest_needs_no_heavy_library_and_is_the_same_again():
    program = (
        "import sys\nfrom pinn.common.code import code_digest\n"
        "print(code_digest('pinn.surrogate.uncertainty.intervals'))\n"
        "assert not {'torch', 'pandas', 'numpy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    found = {
        subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)
    }
    assert len(found) == 1


def test_code_that_changed_under_a_running_process_is_nobody_elses(monkeypatch):
    """Python may hold the old file, so its results must not pass for those of the new one."""
    ours = code_digest("pinn.units")
    code._digest.cache_clear()
    assert code_digest("pinn.units") == ours
    monkeypatch.setattr(code, "_STARTED", 0.0)
    code._digest.cache_clear()
    first = code_digest("pinn.units")
    assert first == code_digest("pinn.units") != ours
    code._digest.cache_clear()
    assert code_digest("pinn.units") != first
    code._digest.cache_clear()
