"""Links of the pages and of the site that ``make docs`` builds lead somewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from browser import CHROMIUM, Tab
from pages import ROOT, command_on

PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("export/go/*.md")})
#: Pages that building the site writes.
WRITTEN = {"reference/notebook.md", "reference/commands.md"}


class Html(HTMLParser):
    """Return the anchors of a page, and its links."""

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
    own = {link for link in links if not urlsplit(link).scheme} - WRITTEN
    assert not [link for link in own if not (page.parent / link).exists()]


def test_what_make_test_runs_is_there():
    """The tests cannot run all tests: what the command would run is looked at."""
    command, _ = command_on("README.md", "make test")
    done = subprocess.run([*command, "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    for program in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert f"/{program}" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as ``make docs`` builds it."""
    for needed in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(needed, reason=f"{needed} is not installed: the site needs it")
    folder = tmp_path_factory.mktemp("site")
    installed, built = folder / "environment", folder / "site"
    installed.mkdir()
    (installed / "bin").symlink_to(Path(sys.executable).parent)
    (installed / "installed-test").touch()
    build = [*command_on("README.md", "make docs")[0], f"VENV={installed}", f"SITE={built}"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return built


def test_the_site_is_built_without_a_warning_and_has_no_dead_link(site):
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


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium installed")
def test_pages_of_the_site_fit_a_desk_and_a_telephone(site, tmp_path):
    tab = Tab(tmp_path)
    wide = (
        "[...document.querySelectorAll('pre')].filter((e) => e.scrollWidth > e.clientWidth).length"
    )
    beyond = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    try:
        for page in sorted(site.glob("*.html")):
            tab.open(page, 390)
            assert tab.value(beyond) <= 0, page.name
            tab.open(page, 1300)
            assert (tab.value(beyond), tab.value(wide)) == (0, 0), page.name
        assert 'src="play.html"' in (site / "index.html").read_text()
        tab.open(site / "play.html", 1300)
        assert tab.value("document.querySelectorAll('#figures dl').length") == 3
        assert [line for line in tab.errors if "favicon" not in line] == []
    finally:
        tab.close()
