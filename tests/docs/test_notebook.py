"""docs/python.ipynb runs, and its page shows it."""

import json
import re
import sys

import pytest
from pages import ROOT, loosely

sys.path.append(str(ROOT / "scripts"))
import make_notebook


@pytest.fixture(scope="module")
def kept():
    return json.loads(make_notebook.NOTEBOOK.read_text())


def texts(notebook):
    """Return the output of every cell, without numbers; pictures as such."""
    return [
        loosely("".join(output["text"])) if "text" in output else "picture"
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    ]


def test_every_cell_runs_and_prints_what_is_kept(kept, monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    monkeypatch.chdir(checkpoint_path.parent)
    anew = json.loads(json.dumps(kept))
    make_notebook.run_cells(anew)
    assert texts(anew) == texts(kept)
    assert texts(kept).count("picture") == 2


def test_the_page_holds_every_cell(kept, monkeypatch, tmp_path):
    monkeypatch.setattr(make_notebook, "PAGE", tmp_path / "notebook.md")
    make_notebook.write_page()
    page = (tmp_path / "notebook.md").read_text()
    assert all("".join(cell["source"]) in page for cell in kept["cells"])
    pictures = re.findall(r"!\[.*\]\((.*)\)", page)
    assert len(pictures) == 2
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_the_notebook_is_small():
    assert make_notebook.NOTEBOOK.stat().st_size < 200_000
