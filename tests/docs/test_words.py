"""Words and docstring openings that are gone from code, pages and output."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The project's own words for what the field has a term for, as regular expressions.
GONE = Path(__file__).with_name("gone_words.txt").read_text().split("\n")[:-1]
WORDS = re.compile(rf"\b({'|'.join(GONE)})\b", re.IGNORECASE)
#: Openings of docstrings that make sense only beside a name.
OPENING = re.compile(r'^\s*r?"""(What|Of|The same|It|Those|That)\b')
#: Descriptions of arguments that name no thing.
FRAGMENT = re.compile(r"^\s+\w+: (Of|The same|As|Those of|That of)\b[^.]{0,40}\.$")
#: Files with old names that are still read, and their readers; histories keep their words.
EXEMPT = (
    "CHANGELOG.md",
    "LOG.md",
    "pinn/kernels/tables/attention.py",  # a flag that is disabled by default
    "docs/evaluation.md",
    "pinn/common/old_names.py",
    "tests/evaluation/test_panel.py",
    "tests/evaluation/test_serving_runs_bars.py",
    "pinn/training/run_scalars.py",
)


def lines():
    """Yield place and text of every line of code, pages and templates under version control."""
    kinds = ("*.py", "*.md", "*.yaml", "*.j2")
    listed = subprocess.run(
        ["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in listed.split():
        if not name.startswith(EXEMPT):
            text = (ROOT / name).read_text(encoding="utf-8")
            yield from ((f"{name}:{i}", line) for i, line in enumerate(text.splitlines(), 1))


def test_words_that_the_field_has_a_term_for_are_gone():
    found = [place for place, line in lines() if WORDS.search(line)]
    assert found == []


def test_docstrings_and_arguments_make_sense_alone():
    found = [place for place, line in lines() if OPENING.match(line) or FRAGMENT.match(line)]
    assert found == []
