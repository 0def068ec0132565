"""Links of the pages and of the site that ``make docs`` builds lead somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from pages import ROOT, command_on

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


def test_what_make_test_runs_is_there():
    """The tests cannot run all tests: what the command would run is looked at."""
    command, _ = command_on("README.md", "make test")
    done = subprocess.run([*command, "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    for program in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert f"/{program}" in done.stdout, done.stderr


def test_the_site_is_built_without_a_warning_and_has_no_dead_link(tmp_path):
    for needed in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: the site needs it")
    installed, site = tmp_path / "environment", tmp_path / "site"
    installed.mkdir()
    (installed / "bin").symlink_to(Path(sys.executable).parent)
    (installed / "installed-test").touch()
    build = [*command_on("README.md", "make docs")[0], f"VENV={installed}", f"SITE={site}"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.resolve(): Html(path.read_text()) for path in site.rglob("*.html")}
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
