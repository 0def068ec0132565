"""Run docs/python.ipynb and store its output: ``python scripts/make_notebook.py``.

Building the docs writes the notebook as a page of the site.
"""

import ast
import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "python.ipynb"
#: Path of the page that the docs build writes.
PAGE = ROOT / "docs" / "reference" / "notebook.md"


def run_cells(notebook: dict[str, Any]) -> None:
    """Run every code cell of a notebook in one namespace, and store its output in the cell.

    Raises:
        Exception: Any error that a cell raises.
    """
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for count, cell in enumerate(code, 1):
        cell["outputs"] = _outputs("".join(cell["source"]), names)
        cell["execution_count"] = count


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the notebook outputs of a cell: printed text, last value, and figures."""
    from matplotlib import pyplot

    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None and not pyplot.get_fignums():
            print(value if isinstance(value, str) else repr(value))
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        lines = text.splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": lines})
    for number in pyplot.get_fignums():
        drawn = io.BytesIO()
        pyplot.figure(number).savefig(drawn, format="png", dpi=70, bbox_inches="tight")
        data = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    pyplot.close("all")
    return found


def write_page() -> None:
    """Write the notebook, without running it, as a Markdown page with its figures."""
    parts = []
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```\n{''.join(output['text'])}```")
            else:
                picture = PAGE.with_name(f"notebook-{number}.png")
                picture.write_bytes(base64.b64decode(output["data"]["image/png"]))
                parts.append(f"![What the cell above draws]({picture.name})")
    PAGE.write_text("\n\n".join(parts) + "\n")


def main() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    run_cells(notebook)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
