"""How many files of the project run between a config.json and what is printed of it."""

import itertools
import json
import subprocess
import sys

import pytest

#: Runs Python that it is given, and says the file of each function that ran; imports do not count.
WALK = """
import contextlib, importlib, io, json, sys
from pathlib import Path

import pinn

root, files = Path(pinn.__file__).parent, []
config, code, modules = sys.argv[1], sys.argv[2], sys.argv[3].split()
for module in modules:
    importlib.import_module(module)


def note(frame, event, _):
    path = Path(frame.f_code.co_filename)
    if event == "call" and frame.f_code.co_name != "<module>" and root in path.parents:
        files.append(str(path.relative_to(root)))


with contextlib.redirect_stdout(io.StringIO()):
    sys.setprofile(note)
    exec(code, {"config": config})
    sys.setprofile(None)
print(json.dumps([files, [name for name in sys.modules if name.startswith("pinn.")]]))
"""

BETA = """
from pinn.common.files import find_checkpoint
from pinn.surrogate.surrogate import Surrogate
from pinn.specs.catalog import load_model
from pinn.engines.deployment import Deployment
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

deployment = Deployment(load_model(config), load_gpu("H100"), ServingSpec())
assert Surrogate.load(find_checkpoint(None)).coefficients([deployment]).beta[0, 0] > 0
"""

REPORT = """
from pinn.cli.main import app

app(["coefficients", "--model", config, "--gpu", "H100"], standalone_mode=False)
"""

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}


@pytest.fixture
def walk(tmp_path):
    """Files of functions in the order of their calls, the second time that something runs."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))

    def once(code, modules):
        command = [sys.executable, "-c", WALK, str(path), code, " ".join(modules)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return lambda code: once(code, once(code, [])[1])[0]


def test_a_plain_model_runs_through_few_files(walk):
    files = set(walk(BETA))
    assert len(files) <= 30, files


def test_a_report_goes_through_few_files_and_seldom_changes_them(walk):
    """The limits were 45 files and 600 changes until files of several nouns were split.

    Memory is eight of them (weights, LoRA, ledger, two of layouts, longest request, cache and
    start-up), vision encoders are one, and quantization is read in several. Every number that is
    printed goes through one formatter, which is a file and 130 changes. Old names of options are
    read by a file of their own. Batches beyond the KV cache are found by the memory of each batch.
    """
    files = walk(REPORT)
    assert len(set(files)) <= 70, set(files)
    assert sum(a != b for a, b in itertools.pairwise(files)) <= 850
