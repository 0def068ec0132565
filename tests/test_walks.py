"""How many files of the project run between a config.json and a printed beta."""

import json
import subprocess
import sys

#: Says a beta and the files in which a function ran for it; imports do not count.
WALK = """
import sys
from pathlib import Path

import pinn
from pinn.common.files import find_checkpoint
from pinn.coefficients.surrogate import Surrogate
from pinn.specs.catalog import load_model
from pinn.engines.deployment import Deployment
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

root, files = Path(pinn.__file__).parent, set()


def note(frame, event, _):
    path = Path(frame.f_code.co_filename)
    if event == "call" and frame.f_code.co_name != "<module>" and root in path.parents:
        files.add(str(path.relative_to(root)))


sys.setprofile(note)
deployment = Deployment(load_model(Path(sys.argv[1])), load_gpu("H100"), ServingSpec())
beta = Surrogate.load(find_checkpoint(None)).coefficients([deployment]).beta[0]
sys.setprofile(None)
print(beta[0], *sorted(files))
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


def test_a_plain_model_runs_through_few_files(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    command = [sys.executable, "-c", WALK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    beta, *files = done.stdout.split()
    assert float(beta) > 0
    assert len(files) <= 30, files
