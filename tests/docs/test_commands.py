"""Every command on README and in docs does what the page says, on small files of its kind."""

import glob
import os
import re
import shlex
from pathlib import Path

import pytest
from hydra.errors import HydraException
from pages import PAGES, ROOT, blocks, missing, quoted_commands
from scenes import make_files
from typer.main import get_command
from typer.testing import CliRunner

from pinn.cli.main import COMMANDS, app

#: Blocks that are not run here, at most; each page says what runs them.
MOST_NOT_RUN = 12
#: Pages that ask for intervals, which the small checkpoint of the tests does not have.
WITH_INTERVALS = {"python.md", "speculation.md"}
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
    if page in WITH_INTERVALS:
        monkeypatch.setenv("PINN_CHECKPOINT", str(ROOT / "checkpoints" / "pinn.safetensors"))
    names: dict[str, object] = {}
    for block in BLOCKS:
        if block.page != page or block.reason is not None or block.part in SLOW_PARTS:
            continue
        if block.language == "python":
            make_files(block.text, scratch)
            exec(compile(block.text, f"{page}: {block.text[:40]}", "exec"), names)
        for command, shown in block.commands:
            printed = typed(command, shown, scratch)
            if block.part is None and shown.strip():
                gone = missing(shown, printed)
                assert not gone, f"{page}: {command} does not print '{gone}' but\n{printed}"


def typed(command: str, shown: str, folder: Path) -> str:
    """Run a command as a shell would; what it printed."""
    program, *arguments = shlex.split(command)
    if program == "cat":
        Path(arguments[0]).write_text(shown)
        return shown
    assert program == "pinn", f"no test can run {command!r}: say <!-- not run: WHY --> above it"
    make_files(command, folder)
    arguments = [word for a in arguments for word in (sorted(glob.glob(a)) or [a])]
    result = CliRunner().invoke(app, arguments)
    refused = shown.lstrip().startswith("error:")
    assert (result.exit_code != 0) == refused, f"{command}: {result.output}"
    return result.output


def test_blocks_that_are_not_run_are_few_and_say_what_runs_them_instead():
    left_out = [(block, block.reason) for block in BLOCKS if block.reason is not None]
    assert 0 < len(left_out) <= MOST_NOT_RUN
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block, reason in left_out:
        if reason.startswith("measures "):  # how fast something is
            assert "$ python scripts/" in block.text
            continue
        files = [ROOT / name for name in re.findall(r"\btests/[\w/]+\.py", reason)]
        made = re.findall(r"\bmake ([\w-]+)", reason)
        assert files or made, f"{block.page}: '{reason}' names no test and no target that runs it"
        assert all(file.is_file() for file in files), reason
        assert set(made) <= targets, reason


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
        try:
            configure(*(o.rstrip(".,;") for o in overrides))
        except HydraException as error:
            pytest.fail(f"{page.name}: python train.py{command}: {error}")
