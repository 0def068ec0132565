"""Package, changelog and citation agree on the release."""

import re
import tomllib
from pathlib import Path

import yaml

import pinn

ROOT = Path(__file__).parents[2]


def test_version_changelog_and_citation_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    releases = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    newest = (pinn.__version__, str(citation["date-released"]))
    assert releases[0] == newest
    assert citation["version"] == pinn.__version__
    dates = [date for _, date in releases]
    assert dates == sorted(dates, reverse=True)


def test_package_and_citation_name_the_same_license_and_authors():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["license"] == citation["license"] == "Apache-2.0"
    assert (
        "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    )
    names = [author["name"].lower() for author in (*project["authors"], *citation["authors"])]
    assert names == ["the pinn developers"] * 2
