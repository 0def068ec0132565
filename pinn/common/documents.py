"""Readers of text, JSON, YAML and CSV files from users, and limits on the size of inputs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import yaml

from pinn.common import Json, JsonObject
from pinn.errors import PinnError, TooLargeError

if TYPE_CHECKING:
    from pydantic import ValidationError

# Maximum sizes of inputs, checked before anything of that size is built.
#
# Real deployments and loads stay below these limits. The limits keep a typing error or a malicious
# file from exhausting memory or running for hours. docs/limits_reference.md lists them.

#: Maximum size, in bytes, of a JSON document, of a YAML document, and of a table of configurations
#: or requests.
MOST_JSON_BYTES = 32 * 2**20
MOST_YAML_BYTES = 8 * 2**20
MOST_CSV_BYTES = 128 * 2**20
#: Maximum length, in bytes, of a line of a trace or log. The file itself may have any size, but a
#: damaged file may have a huge line: a hole in a sparse file reads as zeros without line breaks.
MOST_LINE_BYTES = 64 * 2**20
#: Maximum number of bytes read from a log; the lines about the server's start come first.
MOST_LOG_BYTES = 32 * 2**20
#: Maximum depth of nested lists and mappings; libyaml's recursion crashes at about 10,000.
MOST_DEPTH = 100
#: Maximum number of values in a YAML document with all aliases expanded.
MOST_YAML_VALUES = 200_000
#: Maximum number of Transformer layers; the parser creates one entry per layer.
MOST_LAYERS = 1000
#: Maximum product of layers and regular expressions in a quantization config. The parser matches
#: all pairs, which takes about 5 s at the limit.
MOST_MATCHES = 100_000
#: Maximum value of other sizes in a config.json: widths, heads, experts, vocabulary, context.
MOST_MODEL_SIZE = 10**9
#: Maximum value of a number in a GPU's datasheet, in SI units.
MOST_DATASHEET = 1e21
#: Maximum value of a numeric engine flag.
MOST_FLAG = 10**15
#: Maximum number of data-parallel replicas; a simulation keeps the state of each replica.
MOST_REPLICAS = 4096
#: Limits of a batch such as '1 prefill 512 @ 0 + 64 decode @ 1k': number of parts, number of
#: requests, and tokens per request.
MOST_BATCH_PARTS = 1000
MOST_BATCH_REQUESTS = 10**6
MOST_BATCH_TOKENS = 10**9
#: Maximum number of configurations in a list or grid; this many take about 5 s and 300 MB.
MOST_CONFIGURATIONS = 100_000
#: Limits of a workload: number of requests, prompt or output tokens per request, and output tokens
#: of all requests together.
MOST_REQUESTS = 10**6
MOST_REQUEST_TOKENS = 10**8
MOST_OUTPUT_TOKENS = 10**9
#: Maximum time since the start of a workload, in seconds: ten years, at which float64 still
#: resolves 60 ns.
MOST_SECONDS = 3.2e8
#: Maximum size, in bytes, of a simulated engine's state, and maximum number of its KV cache blocks.
MOST_ENGINE_BYTES = 2**30
MOST_BLOCKS = 2**40
#: Maximum number of steps of a simulation: eight hours of 10 ms steps, whose records need 0.5 GB.
MOST_STEPS = 3_000_000
#: Maximum number of columns of a table of configurations, requests or runs.
MOST_COLUMNS = 1000
#: Maximum size, in bytes, of a checkpoint or of fitted kernel surrogates; the shipped files have
#: 0.5 MiB.
MOST_CHECKPOINT_BYTES = 256 * 2**20
#: Maximum width of a hidden layer in a checkpoint's network; ``MOST_DEPTH`` limits the number of
#: layers.
MOST_HIDDEN = 4096
#: Upper limit of a random seed.
MOST_SEED = 2**63


def check_size(value: float, most: float, what: str, remedy: str) -> None:
    """Check that the size of an input does not exceed its limit.

    Args:
        value: Size of the input.
        most: Maximum size.
        what: Name of the size with its file or flag, for the error: ``load.yaml: requests``.
        remedy: What the user should do, for the error message.

    Raises:
        TooLargeError: If the value exceeds the limit.

    >>> check_size(10**400, MOST_LAYERS, "layers", "check the file")
    Traceback (most recent call last):
    pinn.errors.TooLargeError: layers must be at most 1,000, got 10^400: check the file
    """
    if not value <= most:
        raise TooLargeError(f"{what} must be at most {most:,.15g}, got {written(value)}: {remedy}")


def written(value: object) -> str:
    """Format a value for an error message.

    An integer has thousands separators, or is a power of ten if it is long. A float has six digits.
    Any other value is formatted by ``repr``, up to 60 characters.

    >>> written(12345), written(-(10**400))
    ('12,345', '-10^400')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 10**18:
            return f"{value:,}"
        return f"{'-' if value < 0 else ''}10^{round(math.log10(abs(value)))}"
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.60}"


def comma_separated(text: str) -> list[str]:
    """Split comma-separated names and strip surrounding whitespace.

    >>> comma_separated("H100, H200,")
    ['H100', 'H200']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def misfit(rule: str, value: object) -> PinnError:
    """Return an error that states the violated rule and the offending value.

    >>> print(misfit("load.yaml: requests must be a number", "many"))
    load.yaml: requests must be a number, got 'many'
    """
    return PinnError(f"{rule}, got {written(value)}")


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether a JSON or YAML value is a finite float64 number; a boolean is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300


# Paths, JSON and YAML from users: limited in size and depth, without duplicate keys, with one-line
# errors.

_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path, most_bytes: int, kind: str) -> str:
    """Return the text of a file; a byte-order mark at its start is skipped.

    Args:
        path: Path of a file or pipe.
        most_bytes: Maximum number of bytes.
        kind: Expected file format for errors, such as ``JSON``.

    Raises:
        PinnError: If the file cannot be read, is too large or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        what = f"the size of {path} in bytes"
        check_size(len(content), most_bytes, what, "give a smaller file")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PinnError(f"{path}: cannot be read ({why}): give a readable {kind} file") from error


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        PinnError: If the file cannot be read or is not JSON; the message gives the file and line.
    """
    return parse_json(read_text(path, MOST_JSON_BYTES, "JSON"), str(path))


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON document.

    Args:
        text: JSON document.
        where: Name of the document's file, for errors.

    Raises:
        PinnError: If the text is not JSON, has a duplicate key or is nested too deeply.
    """

    def mapping(pairs: list[tuple[str, Json]]) -> JsonObject:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise PinnError(f"{where}: the key {twice!r} occurs twice: remove one of the two")
        return found

    try:
        tree = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}"
        raise PinnError(f"{place}: malformed JSON ({error.msg}): correct the file") from error
    except RecursionError as error:
        raise _too_deep(where) from error
    except PinnError:
        raise
    except ValueError as error:  # more digits than Python converts to an integer
        raise PinnError(f"{where}: malformed JSON ({error}): correct the file") from error
    _check_depth(tree, where)
    return tree


def json_object(text: str, flag: str, example: str) -> JsonObject:
    """Parse the JSON object that is given as a flag's value.

    Raises:
        PinnError: If the text is not a JSON object; the message includes an example.
    """
    try:
        found = parse_json(text, flag)
    except PinnError:
        found = None
    if not isinstance(found, dict):
        raise PinnError(f"{flag} must be a JSON object such as '{example}', got {text!r:.80}")
    return found


def _check_depth(tree: Json, where: str) -> None:
    level, depth = [tree] if isinstance(tree, dict | list) else [], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise _too_deep(where)
        inside = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [each for each in chain.from_iterable(inside) if isinstance(each, dict | list)]


def _too_deep(where: str) -> PinnError:
    fault = f"lists and mappings are nested more than {MOST_DEPTH} levels deep"
    return PinnError(f"{where}: {fault}: flatten the file")


def read_yaml(path: Path) -> object:
    """Return the parsed content of a YAML or JSON file.

    Raises:
        PinnError: If the file cannot be read or is not YAML; the message gives the file and line.
    """
    return parse_yaml(read_text(path, MOST_YAML_BYTES, "YAML"), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML document.

    Args:
        text: YAML document.
        where: Name of the document's file, for errors.

    Raises:
        PinnError: If the text is not YAML, has a duplicate key, is nested too deeply or has too
            many values.
    """
    try:
        _check_yaml_depth(text, where)
        loader = _LOADER(text)
        try:
            if (root := loader.get_single_node()) is None:
                return None
            _check_nodes(root, where)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        if "nesting depth" in problem:  # the parser has its own limit since PyYAML 6.0.4
            raise _too_deep(where) from error
        raise PinnError(f"{where}{line}: malformed YAML ({problem}): correct the file") from error
    except PinnError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # for example, a date in month 13
        raise PinnError(f"{where}: malformed YAML ({error}): correct the file") from error


def _check_yaml_depth(text: str, where: str) -> None:
    """Check a YAML document's nesting depth from parser events, before any value is built."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _too_deep(where)


def _check_nodes(root: yaml.Node, where: str) -> None:
    """Check a YAML document for duplicate keys and too many values, with each alias expanded."""
    level, depth, total = [root], 0, 1
    while level:
        depth += 1
        if depth > MOST_DEPTH:  # such as an alias that contains itself
            raise _too_deep(where)
        inside: list[yaml.Node] = []
        for node in level:
            inside += _children(node, where)
            size = total + len(inside)
            what = f"the number of values in {where}"
            check_size(size, MOST_YAML_VALUES, what, "split the file, or use CSV")
        level, total = inside, size


def _children(node: yaml.Node, where: str) -> list[yaml.Node]:
    """Return the child nodes of a YAML node: items of a list, or keys and values of a mapping.

    A scalar has no child nodes. A key that occurs twice raises an error.
    """
    if not isinstance(node, yaml.MappingNode):
        return node.value if isinstance(node, yaml.SequenceNode) else []
    seen: set[tuple[str, str]] = set()
    for name, _ in node.value:
        if isinstance(name, yaml.ScalarNode) and name.value != "<<":
            if (name.tag, name.value) in seen:
                fault = f"the key {name.value!r} occurs twice: remove one of the two"
                raise PinnError(f"{where}, line {name.start_mark.line + 1}: {fault}")
            seen.add((name.tag, name.value))
    return list(chain.from_iterable(node.value))


# CSV tables from users: limited in size, without duplicate columns, every row as wide as its
# header.


class CsvTable:
    """User's CSV table whose header has been read.

    Attributes:
        names: Names of the columns, in order; empty for an empty file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = read_text(path, MOST_CSV_BYTES, "CSV")
        self._rows = csv.reader(io.StringIO(text, newline=""))
        self.names = tuple(name.strip() for name in next(self._lines(), ()))
        what = f"the number of columns in {path}"
        check_size(len(self.names), MOST_COLUMNS, what, "remove unneeded columns")
        twice = [name for name in self.names if name and self.names.count(name) > 1]
        if twice:
            raise PinnError(f"{path}: the column {twice[0]!r} occurs twice: remove one of the two")

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the cells of each nonblank row.

        Raises:
            PinnError: If a row is malformed, or has more or fewer cells than the header.
        """
        for cells in self._lines():
            if not cells:
                continue
            if len(cells) != len(self.names):
                fault = f"the row has {len(cells)} values, expected one for each of "
                fault += f"{len(self.names)} columns"
                raise PinnError(f"{self._place}: {fault}: correct the row")
            yield self._rows.line_num, cells

    def _lines(self) -> Iterator[list[str]]:
        try:
            yield from self._rows
        except csv.Error as error:
            raise PinnError(f"{self._place}: malformed CSV ({error}): correct the row") from error

    @property
    def _place(self) -> str:
        return f"{self._path}, line {self._rows.line_num}"


# Messages about invalid values in users' files, which replace pydantic's.

_SCHEMA_KINDS = {
    "integer": "a whole number", "number": "a number", "string": "text", "list": "a list",
    "tuple": "a list", "boolean": "true or false", "dictionary": "a mapping",
}  # fmt: skip
_KEY_FAULTS = {"missing": "this key is missing", "extra_forbidden": "this key is unknown"}
_SAID = re.compile(r"Input should be (?:a valid (?P<kind>\w+)|(?P<other>.*))")


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the name of the first invalid field, and a statement of what was expected there.

    ``error`` is a pydantic ``ValidationError``.

    >>> from pydantic import BaseModel, ValidationError
    >>> class Load(BaseModel):
    ...     rate: int
    >>> try:
    ...     Load(rate="fast")
    ... except ValidationError as error:
    ...     first_fault(error)
    ('rate', "expected a whole number, got 'fast'")
    """
    fault = error.errors()[0]
    place, said = ".".join(map(str, fault["loc"])), _SAID.match(fault["msg"])
    if fault["type"] in _KEY_FAULTS:
        return place, _KEY_FAULTS[fault["type"]]
    if said is None:
        return place, fault["msg"].removeprefix("Value error, ")
    kind, other = said.groups()
    expected = _SCHEMA_KINDS.get(kind, kind) if kind else other
    number = "a number " if kind is None and "than" in other else ""
    return place, f"expected {number}{expected}, got {fault['input']!r:.60}"
