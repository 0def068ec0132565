"""Draw docs/images/architecture.svg from imports: ``python scripts/draw_architecture.py``.

Packages are in the order of ``pinn.__doc__``. An arc on the left shows that one package imports
another; its width increases with the number of imports.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch

import pinn

ROOT = Path(pinn.__file__).parent
OUT = ROOT.parent / "docs" / "images" / "architecture.svg"
ORDER = re.findall(r"\w+", str(pinn.__doc__).split("\n\n")[2])


def imports() -> Counter[tuple[str, str]]:
    """Return the number of importing modules per pair (importing package, imported package)."""
    found: Counter[tuple[str, str]] = Counter()
    for package in ORDER:
        for path in (ROOT / package).rglob("*.py"):
            names = {
                node.module.split(".")[1]
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pinn.")
            }
            found.update((package, name) for name in names & set(ORDER) - {package})
    return found


def holds(package: str) -> str:
    """Return the first line of the package's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
    return str(text).splitlines()[0]


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "pinn"
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(ORDER) + 0.4))
    height = {name: -i for i, name in enumerate(ORDER)}
    for (user, used), count in sorted(imports().items()):
        far = height[used] - height[user]
        arc = FancyArrowPatch(
            (0, height[user]), (0, height[used]), connectionstyle=f"arc3,rad={-0.5 + 0.01 * far}",
            arrowstyle="-", linewidth=0.3 + 0.12 * min(count, 20), color="0.35", alpha=0.45,
        )  # fmt: skip
        axes.add_patch(arc)
    for name, y in height.items():
        files = len([*(ROOT / name).rglob("*.py")])
        axes.plot(0, y, "o", color="black", markersize=5)
        axes.text(0.25, y, name, va="center", weight="bold", size=10)
        axes.text(2.5, y, f"{holds(name)} ({files} files)", va="center", size=9, color="0.25")
    axes.set(xlim=(-4, 11), ylim=(-len(ORDER) + 0.5, 0.6))
    axes.axis("off")
    figure.savefig(OUT, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
