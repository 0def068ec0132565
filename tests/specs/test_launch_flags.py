"""Every flag that the newest releases' argument parsers have is known; needs their source."""

import ast
import os
import re
from pathlib import Path

import pytest

from pinn.cli.command_group import foreign_words
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.launch_line import NO_EFFECT, SWITCH, TAKEN, UNMODELLED, known_flags
from pinn.engines.launch_values import READERS
from pinn.specs.flags import flags_of
from pinn.specs.serving import ENGINES, SGLANG, VLLM, ServingSpec

#: Folder of unpacked wheels, ``vllm-VERSION`` and ``sglang-VERSION``.
SOURCES = os.environ.get("PINN_ENGINE_WHEELS", "")
needs_sources = pytest.mark.skipif(not SOURCES, reason="PINN_ENGINE_WHEELS names no folder")


def classes(path):
    return (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef))


def added(path):
    """Names that ``add_argument`` is called with."""
    calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
    return {
        word.value
        for call in calls
        if getattr(call.func, "attr", "") == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant) and str(word.value).startswith("-")
    }


def fields(path, wanted):
    """Annotated fields of classes as flags, with the aliases that their annotation lists."""
    for each in classes(path):
        for line in each.body:
            if isinstance(line, ast.AnnAssign) and wanted(each, ast.unparse(line.annotation)):
                text = ast.unparse(line.annotation)
                named = re.search(r"cli_name='([^']+)'", text)
                yield named[1] if named else "--" + line.target.id.replace("_", "-")
                yield from re.findall(
                    r"'(--[\w-]+)'", "".join(re.findall(r"aliases=\[.*?\]", text))
                )


@needs_sources
def test_every_flag_of_vllm_is_known():
    root = Path(SOURCES) / "vllm-0.33.0" / "vllm"
    common = root / "entrypoints" / "common" / "cli_args.py"
    found = added(root / "engine" / "arg_utils.py") | added(common)
    found |= set(fields(common, lambda each, _: "Args" in each.name))
    assert len(found) > 300
    assert found - set(known_flags(VLLM)) == set()


@needs_sources
def test_every_flag_of_sglang_is_known():
    root = Path(SOURCES) / "sglang-0.5.23" / "sglang" / "srt"
    found = added(root / "server_args.py")
    for path in (root / "arg_groups" / "fields").glob("*.py"):
        ours = lambda _, text: text.startswith("A[") and "no_cli" not in text  # noqa: E731
        found |= {n for n in fields(path, ours) if "Derived" not in n}
    derived = {n for n in found if n not in known_flags(SGLANG)}
    assert len(found) > 500
    assert derived == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_known_flag_is_of_a_kind_and_sets_what_there_is(engine):
    own = {f.name for spec in (ServingSpec, EngineSpec) for f in flags_of(spec)} | {"model"}
    readers = {*READERS, ":config"}
    for name, flag in known_flags(engine).items():
        assert flag.kind in (TAKEN, NO_EFFECT, UNMODELLED), name
        assert (flag.field in readers or flag.field.lstrip("!") in own) == (flag.kind == TAKEN), (
            name
        )


def test_flags_of_an_engine_among_a_commands_own():
    words = "--model a --port 8000 --trust-remote-code --max_num_seqs 5 --lora-modules x y --json -"
    kept, foreign = foreign_words(words.split(), {"--model", "--max-num-seqs", "--json"})
    assert kept == ["--model", "a", "--max-num-seqs", "5", "--json", "-"]
    assert foreign == ["--port", "8000", "--trust-remote-code", "--lora-modules", "x", "y"]
    assert known_flags(VLLM)["--trust-remote-code"].takes == SWITCH
