"""Every command on README and in docs does what the page says, on small files of its kind."""

import glob
import itertools
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from blis_engine.config import read_inputs
from blis_engine.flags import flags_of
from pages import PAGES, ROOT, blocks, missing, quoted_commands, shape
from printed import PAGES as TYPED_AGAIN
from scenes import make_files
from typer.main import get_command
from typer.testing import CliRunner

from pinn.cli.main import COMMANDS, app
from pinn.errors import PinnError

#: Pages that ask for intervals, which the small checkpoint of the tests does not have, or for
#: networks that never saw a model.
SHIPPED = {
    "decisions.md",
    "disaggregation.md",
    "index.md",
    "limits.md",
    "llm-d.md",
    "plan.md",
    "plan_disaggregated.md",
    "python.md",
    "speculation.md",
    "speculation_notes.md",
}
#: Parts that the script writes and nothing else runs: 36 runs of 7,200 requests.
SLOW_PARTS = {"simulate"}
BLOCKS = [block for page in PAGES for block in blocks(page)]
PAGE_NAMES = sorted({block.page for block in BLOCKS})


@pytest.fixture
def scratch(tmp_path, monkeypatch, checkpoint_path):
    """An empty folder to type in, with a small checkpoint."""
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_a_page_can_be_typed_from_top_to_bottom(page, scratch, monkeypatch):
    if page in SHIPPED:
        monkeypatch.setenv("PINN_CHECKPOINT", str(ROOT / "checkpoints" / "pinn.safetensors"))
    names: dict[str, object] = {}
    for block in BLOCKS:
        if block.page != page or block.tests or block.part in SLOW_PARTS:
            continue
        if block.language == "python":
            make_files(block.text, scratch)
            exec(compile(block.text, f"{page}: {block.text[:40]}", "exec"), names)
        for command, shown in block.commands:
            printed = typed(command, shown, scratch)
            if block.part is None and shown.strip():
                seen = shape if block.other_rows else str
                gone = missing(seen(shown), seen(printed))
                assert not gone, f"{page}: {command} does not print '{gone}' but\n{printed}"


def typed(command: str, shown: str, folder: Path) -> str:
    """Run a command as a shell would; what it printed."""
    program, *arguments = shlex.split(command)
    if program == "cat":
        Path(arguments[0]).write_text(shown)
        return shown
    make_files(command, folder)
    if "/run.sh " in command:
        return served_by_blis(command, folder)
    assert program == "pinn", f"no test can run {command!r}: name one in <!-- run by tests/... -->"
    arguments = [word for a in arguments for word in (sorted(glob.glob(a)) or [a])]
    result = CliRunner().invoke(app, arguments)
    refused = shown.lstrip().startswith("error:")
    assert (result.exit_code != 0) == refused, f"{command}: {result.output}"
    return result.output


def served_by_blis(command: str, folder: Path) -> str:
    """Run a run.sh with a stand-in for BLIS, which reads its flags and files as BLIS does."""
    words = shlex.split(command)
    variables = dict(word.split("=") for word in itertools.takewhile(lambda w: "=" in w, words))
    script, *appended = words[len(variables) :]
    inputs = read_inputs(flags_of(folder / script, *appended, load=variables.get("LOAD", "")))
    return json.dumps([inputs.alpha, inputs.beta])


def test_commands_that_are_not_typed_here_are_run_by_the_tests_that_pages_name():
    elsewhere = [block for block in BLOCKS if block.tests]
    assert elsewhere
    for block in elsewhere:
        if block.tests == ("tests/export/test_printed.py",):
            assert ROOT / "docs" / block.page in TYPED_AGAIN, block.page
            continue
        texts = [(ROOT / name).read_text() for name in block.tests]
        taken = [
            program
            for text in texts
            for program in re.findall(rf'\(\s*"{re.escape(block.page)}", "([^"]+)"', text)
        ]
        for command, _ in block.commands:
            assert any(program in command for program in taken), f"{block.page}: {command}"


def test_no_page_has_commands_that_nothing_runs():
    assert not [page.name for page in PAGES if "<!-- not run" in page.read_text()]


def test_a_shape_is_that_of_other_rows_and_values_alone():
    shown = "│ a │ 1 │\n│ b │ 2 │\nFirst: x y\nonce more"
    assert not missing(shape(shown), shape("┃ h ┃\n│ c │ 3 │\nFirst: z\nonce more"))
    assert missing(shape(shown), shape("│ a │\nFirst: x y\nonce more"))
    assert missing(shape(shown), shape("│ a │ 1 │\nSecond: x y\nonce more"))


def test_written_parts_are_those_of_the_script():
    text = (ROOT / "scripts" / "update_docs.py").read_text()
    parts = {block.part for block in BLOCKS if block.part is not None}
    assert {"first-answer", "report", "simulate"} <= parts
    assert not [part for part in parts if f'"{part}"' not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_pages_name(page):
    for words in quoted_commands(page):
        options, name = options_of(words)
        typed_options = {w.split("=")[0] for w in words if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", w)}
        assert typed_options <= options | {"--help"}, f"{page.name}: pinn {' '.join(words)}: {name}"


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_examples_of_help_can_be_copied_from_80_columns(command):
    inner = get_command(app).get_command(None, command)
    for words in ([command], *([command, name] for name in getattr(inner, "commands", ()))):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        assert all(len(line) <= 80 for line in shown.splitlines()), words
        for example in re.findall(r"^ {4}(pinn (?:.*\\\n)*.*)", shown, re.MULTILINE):
            typed = shlex.split(example)[1:]
            options, name = options_of(typed)
            used = {word for word in typed if re.fullmatch("-{1,2}[a-z][a-z-]*", word)}
            assert used <= options, f"{name}: {example}"


def options_of(words: list[str]) -> tuple[set[str], str]:
    """Spellings of the options of the command that words begin with."""
    group = get_command(app)
    context = group.make_context("pinn", [], resilient_parsing=True)
    name, command, _ = group.resolve_command(context, [words[0].rstrip(",.;")])
    for word in words[1:]:
        if not hasattr(command, "commands") or word not in command.commands:
            break
        command, name = command.commands[word], f"{name} {word}"
    spelled = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return spelled, str(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_trainings_that_pages_name_compose(page, monkeypatch):
    from configurations import configure

    monkeypatch.setenv("PINN_SERVING_RUNS", os.devnull)
    for command in re.findall(r"python train\.py([^`|\n]*)", page.read_text()):
        overrides = shlex.split(command, comments=True)
        if overrides and overrides[0].startswith("-"):
            continue  # options of Hydra, not overrides of one job
        try:
            configure(*(o.rstrip(".,;") for o in overrides))
        except PinnError as error:
            pytest.fail(f"{page.name}: python train.py{command}: {error}")
