"""Default output of every command fits a terminal: 24 lines of 80 columns."""

import re
from pathlib import Path

import pytest
from one_screen import assert_one_screen

from pinn.cli.main import COMMANDS
from pinn.common.files import find_checkpoint
from pinn.common.screen import WIDEST

ROOT = Path(__file__).resolve().parents[2]
QWEN = ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H100", "--tensor-parallel-size", "2")
LOAD = ("--input-len", "1024", "--output-len", "64", "--concurrency", "8", "--num-prompts", "40")


def printed(run, *words):
    result = run(*words)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("coefficients", *QWEN),
        ("simulate", *QWEN, *LOAD),
        ("simulate", *QWEN, *LOAD, "--sensitivity", "e2e_mean_ms"),
        ("kernels", "errors", str(ROOT / "checkpoints" / "kernels" / "held_out.csv")),
        ("models", "llama"),
    ],
    ids=lambda words: " ".join(words[:1]),
)
def test_one_screen(run, words):
    assert_one_screen("\n".join(printed(run, *words)), more=12 * ("--sensitivity" in words))


def test_results_of_the_shipped_checkpoint_in_one_screen(run, monkeypatch):
    monkeypatch.delenv("PINN_CHECKPOINT")
    monkeypatch.setenv("PINN_CHECKPOINT", str(find_checkpoint(None)))
    lines = printed(run, "results")
    assert_one_screen("\n".join(lines))
    assert any(line.startswith("MiniMaxAI/MiniMax-M2.5 ") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ("coefficients", *QWEN, "--recipe"),
        ("coefficients", *QWEN, "--betas"),
        ("gpus",),
        ("gpus", "--sources"),
        ("models", "--mixers"),
        *((command.name, "--help") for command in COMMANDS),
    ],
    ids=" ".join,
)
def test_nothing_is_wider_than_100_columns(run, words):
    assert max(map(len, printed(run, *words))) <= WIDEST


def outputs(page):
    """Lines that commands print on a page, after one that begins with ``$``; no JSON, no error."""
    for block in re.findall(r"^```\n(.*?)^```$", page.read_text(), re.M | re.S):
        before = ""
        for line in block.splitlines():
            typed = line.startswith("$ ") or before.endswith("\\")
            before = line if typed else ""
            if "$ " in block and not typed and not line.startswith(("error: ", "{")):
                yield line


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_shows_output_wider_than_100_columns(page):
    assert [line for line in outputs(page) if len(line) > WIDEST] == []
