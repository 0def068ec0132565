"""Files that hurt: pipes, devices, full disks, foreign bytes; and files that are written."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from changed_weights import with_array

import pinn
from pinn.common.documents import read_json
from pinn.common.files import replace_atomically
from pinn.common.tables import escaped_table, write_frame, write_rows
from pinn.engines.configurations import read_configurations
from pinn.errors import PinnError
from pinn.kernels.surrogates import KernelSurrogates
from pinn.measurements.traces.trace_tables import atomic_folder
from pinn.specs.gpu import load_gpu


def test_a_full_disk_leaves_the_picture_that_was_there(file, tmp_path):
    picture = file("run.png", b"before")
    program = (
        "import resource, sys; from pathlib import Path; import matplotlib; matplotlib.use('Agg')\n"
        "from matplotlib import pyplot; from pinn.common.files import replace_atomically\n"
        "figure, _ = pyplot.subplots(); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write = lambda path: figure.savefig(path, format='png', dpi=200)\n"
        "try: replace_atomically(Path(sys.argv[1]), write)\n"
        "except OSError as error: print(error.filename)"
    )
    command = [sys.executable, "-c", program, str(picture)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(picture)
    assert picture.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["run.png"]


def test_the_current_folder_is_not_replaced_by_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PinnError, match="give a new folder"), atomic_folder(Path()):
        pass


def test_a_device_is_written_to_as_it_is():
    replace_atomically(Path("/dev/null"), lambda path: path.write_text("x"))
    assert Path("/dev/null").is_char_device()


def test_cells_that_begin_like_formulas_are_escaped():
    import pyarrow as pa

    table = pa.table({"model": ["=cmd()", "@x", "-5", "+a", "plain", None], "n": [-1.0] * 6})
    safe = escaped_table(table)
    assert safe["model"].to_pylist() == ["'=cmd()", "'@x", "-5", "'+a", "plain", None]
    assert safe["n"].to_pylist() == [-1.0] * 6


def test_every_table_that_is_written_is_escaped(tmp_path):
    import pandas as pd

    write_frame(pd.DataFrame({"gpu": ["=cmd()", "H100"], "n": [-1.0, 2.0]}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "gpu,n\n'=cmd(),-1.0\nH100,2.0\n"


def test_rows_that_are_written_are_escaped(tmp_path):
    write_rows([{"load": "=cmd()", "n": -1.5}, {"load": "general"}], tmp_path / "t")
    assert (tmp_path / "t").read_text() == "load,n\n'=cmd(),-1.5\ngeneral,\n"


def test_every_csv_goes_through_one_writer():
    """Which escapes what looks like a formula, and renames a whole file into place."""
    root = Path(pinn.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            escaped = name == "csv.write_csv" and "escaped_table(" in ast.unparse(node)
            if name.endswith((".to_csv", ".writer", ".DictWriter", ".write_csv")) and not escaped:
                found.add(str(path.relative_to(root)))
    # The second is a temporary file for this program's own reader, which takes cells as they are.
    assert found == {"common/tables.py", "api/loads.py"}


def test_a_checkpoint_with_a_number_that_is_none(measured, tmp_path):
    from pinn.surrogate.checkpoint import load_checkpoint, save_checkpoint

    checkpoint = measured[0].checkpoint
    base = np.full_like(checkpoint.network.arrays["beta_base"], np.nan)
    broken = replace(checkpoint, network=with_array(checkpoint.network, "beta_base", base))
    save_checkpoint(broken, tmp_path / "net.safetensors")
    with pytest.raises(PinnError, match="'beta_base' has a number that is not finite"):
        load_checkpoint(tmp_path / "net.safetensors")
    os.truncate(tmp_path / "net.safetensors", 20 * 2**30)
    with pytest.raises(PinnError, match="must be at most 268,435,456, got"):
        load_checkpoint(tmp_path / "net.safetensors")


def test_a_pipe_is_read_to_its_end():
    text = json.dumps({"X": {"memory_bandwidth_gb_s": 2000, "compute_tflops_fp16": 100}})
    with subprocess.Popen(["echo", text + " " * 100_000], stdout=subprocess.PIPE) as process:
        found = read_json(Path(f"/dev/fd/{process.stdout.fileno()}"))
    assert found == json.loads(text)


@pytest.mark.parametrize("structure", ["[]", "[" * 100_000, "{}", '{"layout": 3}'])
def test_kernel_surrogates_that_are_none(file, structure):
    file("kernels.safetensors", b"")
    path = file("kernels.json", structure)
    with pytest.raises(PinnError, match="kernels"):
        KernelSurrogates.load(path.parent)


@pytest.mark.parametrize("text", ["{? null : 3}", "- {1: 2}"])
def test_keys_of_a_list_that_are_no_text_are_refused(file, text):
    with pytest.raises(PinnError, match="a key must be text"):
        read_configurations(file("list.yaml", text.encode()))


def test_a_name_with_a_null_byte_is_refused():
    with pytest.raises(PinnError, match="embedded null byte"):
        load_gpu("~\x00")
