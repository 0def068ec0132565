"""The site's first page: its answer is what is printed, its questions take one command each."""

import re
import shlex

import pytest
from pages import PAGES, ROOT, blocks, run_script
from typer.testing import CliRunner

from pinn.cli.main import app

INDEX = ROOT / "docs" / "index.md"
#: Options whose value is a file that is read; a page to write is no file to bring along.
READ = {"--workload", "--configs", "--coefficients", "--candidates", "--checkpoint"}
QUESTION = re.compile(r"^# ([^\n]+\?)\n((?:(?!#|```).*\n)+)", re.M)


def test_ten_questions_take_one_command_and_no_file():
    questions = QUESTION.findall(INDEX.read_text())
    assert len(questions) == 10
    for question, typed in questions:
        words = shlex.split(typed.replace("\\\n", " "))
        assert words[0] == "pinn", question
        assert words.count("pinn") == 1, question
        assert not READ & set(words), question
        assert not [word for word in words if re.search(r"\.(json|ya?ml|csv|parquet)$", word)]


@pytest.mark.parametrize("page", ["README.md", "index.md"])
def test_the_first_answer_is_what_is_printed(page, monkeypatch):
    monkeypatch.setenv("PINN_CHECKPOINT", str(ROOT / "checkpoints" / "pinn.safetensors"))
    (path,) = (each for each in PAGES if each.name == page)
    (block,) = (b for b in blocks(path) if b.part in ("first-answer", "site-answer"))
    ((command, shown),) = block.commands
    found = CliRunner().invoke(app, shlex.split(command)[1:])
    printed = [line.rstrip() for line in found.stdout.strip().splitlines()]
    assert shown.strip().splitlines() == printed
    assert len(printed) <= 24


def test_the_picture_of_held_out_models_is_drawn_from_the_kept_table(tmp_path):
    drawn = tmp_path / "held-out.png"
    run_script("evaluation.md", "draw_held_out.py", str(drawn))
    assert drawn.stat().st_size > 20_000


def test_what_a_page_prints_is_at_most_100_columns_wide():
    wide = [
        (block.page, line)
        for page in PAGES
        for block in blocks(page)
        if block.language in ("", "bash")
        for line in block.typed.splitlines()
        if len(line) > 100
    ]
    assert not wide
