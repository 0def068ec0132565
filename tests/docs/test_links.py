"""Links of the pages and of the site that ``make docs`` builds lead somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from pages import ROOT

PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("export/go/*.md")})


class Html(HTMLParser):
    """What a page can be linked at, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, _tag, attrs):
        found = dict(attrs)
        self.places |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links |= {found[key] for key in ("href", "src") if found.get(key)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_of_the_repository(page):
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    own = {link for link in links if not urlsplit(link).scheme} - {"reference/notebook.md"}
    assert not [link for link in own if not (page.parent / link).exists()]


def test_the_site_is_built_without_a_warning_and_has_no_dead_link(tmp_path):
    for needed in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: the site needs it")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.resolve(): Html(path.read_text()) for path in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            name, place = urldefrag(link)
            target = (path.parent / unquote(urlsplit(name).path)).resolve() if name else path
            known = not place or target not in pages or unquote(place) in pages[target].places
            if not (target.exists() and known):
                dead.append(f"{path.name}: {link}")
    assert not dead
