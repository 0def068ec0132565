"""10,000 broken lines: no crash, no silent loss."""

import json
import random
from collections import Counter

from trace_runs import engine_run, lines_of

from pinn.measurements.readers.parser import ChunkParser

LINES = 10_000


def mutate(line: bytes, draw: random.Random) -> bytes:
    """Change a line in one to four places."""
    data = bytearray(line)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        match draw.randrange(9):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 30)]
            case 2:
                data[at:at] = bytes(data[at : at + draw.randint(1, 60)])
            case 3:
                data = data[:at] or bytearray(b"{")
            case 4:
                _replace(
                    data, b'"intValue":"', draw.choice([b'"intValue":"x', b'"intValue":null,"'])
                )
            case 5:
                _replace(data, b'"events":[', b'"events":{"a":[')
            case 6:
                _replace(data, b"step.", draw.choice([b"stop.", b"", b"\\u0073tep."]))
            case 7:
                _replace(
                    data, b'"attributes":[', draw.choice([b'"attributes":[7,', b'"attributes":['])
                )
            case 8:
                _replace(
                    data, b'"value":', draw.choice([b'"value":[],"v":', b'"valve":', b'"value":-'])
                )
        data = data or bytearray(b"x")
    return bytes(data).replace(b"\n", b" ")


def _replace(data: bytearray, old: bytes, new: bytes) -> None:
    data[:] = bytes(data).replace(old, new, 1)


def counted_by_json(lines: list[bytes], errors: str) -> Counter[str]:
    """Spans and events that a plain walk finds in lines that are exports at all.

    ``errors`` is what becomes of bytes that are not UTF-8; the reader refuses a line for those in
    what it reads, not for those in what it skips.
    """
    found: Counter[str] = Counter()
    for line in lines:
        try:
            export = json.loads(line.decode(errors=errors))
        except ValueError:
            continue
        groups = export.get("resourceSpans") if isinstance(export, dict) else None
        for group in groups if isinstance(groups, list) else ():
            scopes = group.get("scopeSpans") if isinstance(group, dict) else None
            for scope in scopes if isinstance(scopes, list) else ():
                spans = scope.get("spans") if isinstance(scope, dict) else None
                for span in spans if isinstance(spans, list) else ():
                    found["spans"] += 1
                    events = span.get("events", []) if isinstance(span, dict) else None
                    found["events"] += len(events) if isinstance(events, list) else 0
    return found


def test_ten_thousand_mutated_lines() -> None:
    draw = random.Random(7)
    whole = []
    for line in lines_of(engine_run(30), step_sampling=0.2, snapshot_sampling=0.2):
        # One span per line: short lines, so that a mutation hits something that matters.
        export = json.loads(line)
        for scope in export["resourceSpans"][0]["scopeSpans"]:
            for span in scope["spans"]:
                one = {"scopeSpans": [{**scope, "spans": [{**span, "events": span["events"][:3]}]}]}
                whole.append(json.dumps({"resourceSpans": [one]}, separators=(",", ":")).encode())
    lines = [mutate(draw.choice(whole), draw) for _ in range(LINES)]

    parser, read, accepted, refused = ChunkParser(), Counter(), Counter(), Counter()
    for begin in range(0, LINES, 1000):
        chunk = parser.parse(lines[begin : begin + 1000])
        read.update(chunk.counts.read)
        for level, reasons in chunk.counts.refused.items():
            refused[level] += reasons.total()
        for table, batches in chunk.tables.items():
            level = "spans" if table == "spans" else "events"
            accepted[level] += sum(batch.num_rows for batch in batches)

    assert read["lines"] == LINES
    assert 2000 < refused["lines"] < 9000, "the mutations should break many lines, not all"
    least, most = counted_by_json(lines, "strict"), counted_by_json(lines, "replace")
    for level in ("spans", "events"):
        assert least[level] <= read[level] <= most[level]
    assert read["events"] == accepted["events"] + refused["events"]
    # Spans of steps are accepted without a row of their own.
    assert read["spans"] >= accepted["spans"] + refused["spans"]
    assert accepted["events"] > 1000
    assert accepted["spans"] > 500
