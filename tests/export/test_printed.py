"""The output of commands on pages is that of the shipped checkpoint."""

from __future__ import annotations

import pytest
from go_command import needs_go
from printed import PAGES, refreshed


@needs_go
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_what_is_printed(page):
    text = page.read_text()
    assert "tests/export/test_printed.py" in text
    assert refreshed(page) == text, "run 'make goldens' and commit what it writes"
