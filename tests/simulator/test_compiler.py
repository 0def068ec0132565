"""Compiled functions are cached on disk, also by processes that compile them side by side."""

from __future__ import annotations

import subprocess
import sys

#: Compiles a function for one type of argument, as an array or a number, and prints its result
#: and whether it was compiled, not loaded.
CODE = """
import sys
import numpy as np
from pinn.simulator.compiler import compilations, compiled
import twin

kind = sys.argv[1]
value = np.arange(4, dtype=kind) if len(kind) > 1 else {"i": 3, "f": 3.5}[kind]
print(compiled(twin.half)(value), compilations() > 0)
"""
KINDS = {"i": "1.5", "f": "1.75", "i4": "[0.  0.5 1.  1.5]", "f8": "[0.  0.5 1.  1.5]"}


def test_processes_that_compile_side_by_side_load_their_own_types(tmp_path, monkeypatch):
    (tmp_path / "twin.py").write_text("def half(x):\n    return x / 2\n")
    monkeypatch.setenv("PINN_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    for is_new in (True, False):
        running = {
            kind: subprocess.Popen(
                [sys.executable, "-c", CODE, kind], stdout=subprocess.PIPE, text=True
            )
            for kind in KINDS
        }
        found = {kind: each.communicate()[0].strip() for kind, each in running.items()}
        assert found == {kind: f"{value} {is_new}" for kind, value in KINDS.items()}
    assert list((tmp_path / "cache").rglob("*.nbc"))


#: Prints the symbols of a function for records of two fields, in the order of their first use.
SYMBOLS = """
import sys
import numpy as np
import numba
from numba.core.itanium_mangler import mangle
import pinn.simulator.compiler

for order in sys.argv[1:]:
    record = np.zeros(1, [(name, "f8") for name in order]).view(np.recarray)[0]
    print(mangle("read", [numba.typeof(record)]))
"""


def test_symbols_tell_records_apart_whichever_comes_first_in_a_process():
    one, other, last, first = (
        subprocess.check_output([sys.executable, "-c", SYMBOLS, *orders], text=True).split()[-1]
        for orders in (["xy"], ["yx"], ["yx", "xy"], ["xy", "yx"])
    )
    assert one == last != other == first
