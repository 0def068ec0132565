"""Pieces of prose in the repository: docstrings, comments, sentences of docs, and messages."""

from __future__ import annotations

import ast
import csv
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pinn.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
#: Table of the deployments rejected by engines, with a reason and a remedy for each.
REFUSALS = "data/engines/refusals.csv"
#: Names of functions whose arguments are help texts of command-line options.
_FLAGS = ("flag", "Flag", "cost")
#: Minimum number of words in a sentence of docs, and in a string in code, to count as prose.
_WORDS_OF_SENTENCE, _WORDS_OF_STRING = 4, 5
#: Maximum context shown with a piece: lines of code below a comment, and characters of the
#: statement around a string.
_LINES_OF_CODE, _CODE_CHARACTERS = 3, 300
_WORD = re.compile(r"(?<![\w{.'\"/-])[A-Za-z][a-z]+(?=$|[ .,;:])")
#: Pattern of strings that are not prose: regular expressions, patterns of log lines, and code.
_NOT_PROSE = re.compile(r"\.\*|\\[a-z]|\(\?|#[a-z]|^[^\w{'\"*-]|^--?\w+$|</?\w+>")
_NOT_COMMENT = re.compile(r"#\s*(?:noqa|type:|fmt:|mypy:|!|pragma)")
#: Bold heading at the beginning of a paragraph, shown as context of the paragraph's first sentence.
_RUN_IN = re.compile(r"\*\*([^*]+[.:!?])\*\*\s*")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)[)*]*\s+(?=[A-Z0-9`\[*(])")
#: Pattern of skipped text in docs: code, lists of pages, generated parts and HTML comments.
_SKIPPED = re.compile(
    r"^```.*?^```$|^:{3,}.*?^:{3,}$|<!-- begin .*?<!-- end -->|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Piece:
    """Piece of prose with the context that a reader sees at its place.

    Attributes:
        kind: One of docstring, comment, sentence, help, error, output.
        place: Path and line of the piece, or path and heading.
        before: Context above the piece, such as the signature of a docstring's function.
        text: Text to grade; values inserted into a string are shown as ``{name}``.
        after: Context below the piece, such as the code under a comment.
    """

    kind: str
    place: str
    before: str
    text: str
    after: str = ""


def pieces() -> Iterator[Piece]:
    """Yield every piece of prose in ``pinn``, ``scripts``, the docs and the help of commands."""
    for folder in ("pinn", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _pieces_of_module(path, with_strings=folder == "pinn")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from _sentences(page)
    yield from _help()
    yield from _refusals()


def _pieces_of_module(path: Path, *, with_strings: bool) -> Iterator[Piece]:
    text, name = path.read_text(), str(path.relative_to(ROOT))
    tree = ast.parse(text)
    yield from _docstrings(tree, text, name)
    yield from _comments(text, name)
    if with_strings:
        yield from _strings(tree, name)


def _docstrings(tree: ast.Module, text: str, name: str) -> Iterator[Piece]:
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, _Documented) or not (said := ast.get_docstring(node)):
            continue
        first = node.body[0].lineno
        head = [] if isinstance(node, ast.Module) else lines[node.lineno - 1 : first - 1]
        yield Piece("docstring", f"{name}:{first}", "\n".join(head), said)


def _comments(text: str, name: str) -> Iterator[Piece]:
    """Yield each block of comment lines, and each comment at the end of a line of code."""
    lines, block = text.splitlines(), [0]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _NOT_COMMENT.match(token.string):
            continue
        row, column = token.start
        if before := lines[row - 1][:column].strip():
            yield Piece("comment", f"{name}:{row}", before, token.string)
        elif row not in block:
            block = [row]
            while lines[block[-1]].lstrip().startswith("#"):
                block.append(block[-1] + 1)
            said = "\n".join(lines[number - 1].strip() for number in block)
            after = "\n".join(lines[block[-1] : block[-1] + _LINES_OF_CODE])
            yield Piece("comment", f"{name}:{row}", "", said, after)


def _strings(tree: ast.Module, name: str) -> Iterator[Piece]:
    """Yield each string of prose in errors and output, with the statement around the string."""

    def visit(node: ast.AST, kind: str, statement: str, entry: str) -> Iterator[Piece]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FLAGS:
            return
        if isinstance(node, ast.keyword) and node.arg == "help":
            return
        if isinstance(node, ast.Raise):
            kind, statement, entry = "error", "", ""
        elif isinstance(node, ast.stmt):
            statement, entry = ast.unparse(node), ""
        said = _shown(node)
        if said is None:
            entries = _entries(node)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, kind, statement, entries.get(child, entry))
        elif _is_prose(said):
            line = getattr(node, "lineno", 0)
            around = _around(statement, entry, ast.unparse(node))
            yield Piece(kind, f"{name}:{line}", around, said)

    yield from visit(tree, "output", "", "")


def _entries(node: ast.AST) -> dict[ast.AST, str]:
    """Return the code of each entry of a dictionary, by key and by value; empty for other nodes."""
    if not isinstance(node, ast.Dict):
        return {}
    pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if k is not None]
    return {each: f"{ast.unparse(k)}: {ast.unparse(v)}" for k, v in pairs for each in (k, v)}


def _around(statement: str, entry: str, text: str) -> str:
    """Return the context of a string: its statement, shortened if it is long.

    Args:
        statement: Code of the statement that contains the string.
        entry: Code of the innermost dictionary entry that contains the string; empty if none does.
        text: Code of the string.
    """
    half, at = _CODE_CHARACTERS // 2, statement.find(text)
    if len(statement) <= _CODE_CHARACTERS or (not entry and at < _CODE_CHARACTERS):
        return statement[:_CODE_CHARACTERS]
    return f"{statement[:half]} ... {entry[:half] or statement[at - half : at]}"


def _is_prose(said: str) -> bool:
    enough = min(len(_WORD.findall(said)), said.count(" ")) >= _WORDS_OF_STRING
    return enough and not _NOT_PROSE.search(said)


def _shown(node: ast.AST) -> str | None:
    """Return a string expression as its reader sees it, or None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else _placeholder(part.value)
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )


def _placeholder(value: ast.expr) -> str:
    """Return ``{name}`` for an expression inserted into a string, or a string that it may yield."""
    if isinstance(value, ast.IfExp):
        return _shown(value.body) or _placeholder(value.body)
    return f"{{{_name(value)}}}"


def _name(value: ast.expr) -> str:
    """Return a name for an expression's value, to show it as ``{name}`` in a message."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return f"number of {_name(counted)}"
        case ast.BinOp(left=ast.Constant(), right=inner) | ast.BinOp(left=inner):
            return _name(inner)
        case ast.Subscript(value=inner) | ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
            return _name(inner)
        case ast.Call(args=[inner, *_]) | ast.Call(func=inner):
            return _name(inner)
    return "..."


def _sentences(page: Path) -> Iterator[Piece]:
    """Yield the sentences of a docs page, each with its heading and the sentence before it."""
    name, text = str(page.relative_to(ROOT)), _SKIPPED.sub("\n\n", page.read_text())
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        heading, _, body = section.partition("\n")
        for paragraph in _paragraphs(body):
            run_in = _RUN_IN.match(paragraph)
            before = run_in[1] if run_in else ""
            for sentence in _SENTENCE_END.split(paragraph[run_in.end() if run_in else 0 :]):
                if len(_WORD.findall(sentence)) >= _WORDS_OF_SENTENCE:
                    yield Piece("sentence", f"{name}, {heading}", before, sentence)
                before = sentence


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and items of lists, one line each, without tables and pictures."""
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*:]|\d+\.) )", text):
        joined = " ".join(part.split())
        if joined and not joined.startswith(("|", "![")):
            yield re.sub(r"^(?:[-*:]|\d+\.) ", "", joined)


def _help() -> Iterator[Piece]:
    """Yield the help of each command, and of each option whose help no earlier command has."""
    known: set[tuple[str, str]] = set()
    for command in COMMANDS:
        loaded = command.load()
        yield Piece("help", "pinn --help", command.name, command.help)
        for each in (loaded, *getattr(loaded, "commands", {}).values()):
            for parameter in each.params:
                option, said = parameter.opts[0], getattr(parameter, "help", None)
                if said and (option, said) not in known:
                    known.add((option, said))
                    yield Piece("help", f"pinn {command.name} --help", option, said)


def _refusals() -> Iterator[Piece]:
    with (ROOT / REFUSALS).open(newline="") as file:
        for row in csv.DictReader(file):
            yield Piece(
                "error", f"{REFUSALS}, {row['rule']}", "", f"{row['reason']}: {row['remedy']}"
            )
