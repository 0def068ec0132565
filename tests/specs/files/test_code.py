"""Which code a digest covers, without anyone having listed it."""

import subprocess
import sys

import pytest

from pinn.common import store as code
from pinn.common.source import read_source
from pinn.common.store import code_digest, module_of
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
    assert {"pinn.kernels.composition", "pinn.surrogate.inference"} <= inside


def test_what_only_type_checkers_import_is_left_out():
    source = read_source(
        b"import json\nif TYPE_CHECKING:\n    import pandas\nelse:\n    import torch\n"
        b"if typing.TYPE_CHECKING:\n    from pinn.specs import model\n"
        b"class A:\n    def f(self):\n        from pinn.specs import (batch,\n            gpu)\n"
    )
    modules = {"json", "torch", "pinn.specs", "pinn.specs.batch", "pinn.specs.gpu"}
    assert set(source.imports) == modules
    assert source.libraries == ("torch",)


def test_comments_docstrings_and_layout_do_not_count():
    plain = read_source(b'def f(a):\n    """Old."""\n    return a + 1\n')
    same = read_source(b'"""New."""\n\ndef f(\n    a,  # why\n):\n    return (a\n        + 1)\n')
    assert same.code_sha256 == plain.code_sha256
    other = read_source(b"def f(a):\n    return a + 2\n")
    assert other.code_sha256 != plain.code_sha256


def test_data_folders_and_packages_named_to_importlib_count():
    source = read_source(
        b"from importlib.util import find_spec\nNAME = 'aiconfigurator-core'\n"
        b"def f():\n    return data_folder('gpus'), find_spec(NAME)\n"
    )
    assert source.data == ("gpus",)
    assert source.libraries == ("aiconfigurator_core",)
    with pytest.raises(PinnError, match=r"line 2 calls data_folder\(which\)"):
        read_source(b"\nx = data_folder(which)\n")


def test_a_package_is_all_its_modules():
    assert code_digest("pinn.surrogate") != code_digest("pinn.surrogate.uncertainty.intervals")
    assert code_modules("pinn.surrogate.uncertainty.interval_fit") < code_modules("pinn.surrogate")


def test_a_function_with_arguments_bound_is_the_function():
    assert code_digest(code.partial(composed.compose_shards, seed=3)) == code_digest(composed)


def test_what_has_no_source_is_refused():
    with pytest.raises(PinnError, match="the code of 'math' is unknown"):
        code_digest("math")


def test_a_digest_needs_no_heavy_library_and_is_the_same_again():
    program = (
        "import sys\nfrom pinn.common.store import code_digest\n"
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
