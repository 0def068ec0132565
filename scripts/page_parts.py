"""Generated parts of docs pages, between ``<!-- begin NAME -->`` and ``<!-- end -->``."""

from collections.abc import Iterable
from pathlib import Path


def write_part(pages: Iterable[Path], name: str, part: str) -> None:
    """Replace the text between the markers of a generated part on every page that has them."""
    begin, end = f"<!-- begin {name} -->\n", "<!-- end -->"
    found = [page for page in pages if begin in page.read_text()]
    if not found:
        raise SystemExit(
            f"no page has the part {name}: add {begin.strip()} and {end} to one of the pages"
        )
    for page in found:
        before, rest = page.read_text().split(begin, 1)
        page.write_text(f"{before}{begin}{part}\n{end}{rest.split(end, 1)[1]}")
