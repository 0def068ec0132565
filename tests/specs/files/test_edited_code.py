"""A cached result is computed anew when a constant that decides it changes."""

import pytest
from package_copy import PackageCopy

#: A cached result, and a constant that decides it.
CONSTANTS = (
    ("coefficients", "pinn/surrogate/featurizer.py", "_TILE"),
    ("distance", "pinn/surrogate/uncertainty/held_out.py", "UNMEASURED"),
    ("distance", "pinn/kernels/composition.py", "ROUTING_SECONDS"),
    ("distance", "data/gpus/H100-SXM.json", "memory_bandwidth_bytes_per_s"),
    ("steps", "pinn/kernels/composition.py", "ROUTING_SECONDS"),
    ("steps", "pinn/physics/cost_facts.py", "_COPY"),
    ("steps", "pinn/physics/batch_sums.py", "MAX_CONTEXT"),
    ("steps", "pinn/training/synthetic.py", "WEIGHTS_SHARE"),
    ("operator", "pinn/kernels/operator.py", "_HUBER"),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory, checkpoint_path, h100_kernels):
    """The package, a checkpoint and kernels, in a folder of their own."""
    folder = tmp_path_factory.mktemp("copy")
    (folder / "pinn.safetensors").write_bytes(checkpoint_path.read_bytes())
    h100_kernels.save(folder / "kernels" / "all")
    found = PackageCopy(folder)
    yield found
    found.close()


@pytest.fixture(scope="module")
def before(copy):
    """The results of the code as it is."""
    return {name: copy.result(name) for name in {name for name, *_ in CONSTANTS}}


@pytest.mark.parametrize(("name", "path", "constant"), CONSTANTS)
def test_an_edited_constant_gives_a_new_result(copy, before, name, path, constant):
    copy.double(path, constant)
    changed = copy.result(name)
    copy.restore(path)
    assert changed != before[name]


def test_constants_of_other_modules_leave_results_alone(copy, before):
    cached = copy.cached_files()
    copy.double("pinn/common/plots.py", "WIDTH")
    assert {name: copy.result(name) for name in before} == before
    assert copy.cached_files() == cached
