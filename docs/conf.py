"""The site of the docs: ``make docs`` builds it in docs/site."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "pinn"
author = "the pinn developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
html_theme = "furo"
html_title = "pinn"
# A hundred columns of what a terminal shows fit into the width of a page.
html_theme_options = {
    name: {"code-font-size": "0.72rem"} for name in ("light_css_variables", "dark_css_variables")
}
html_static_path: list[str] = []
# The page to play with, which the first page shows in a frame.
html_extra_path = ["made"]
myst_heading_anchors = 3
# Directives stand between colons, so that fenced blocks are what one types and sees.
myst_enable_extensions = ["colon_fence"]
# Pages of the repository that lie outside docs: links to them stay links.
myst_url_schemes = ["http", "https", "mailto"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Fenced blocks without a language are what a terminal shows.
highlight_language = "text"
suppress_warnings = ["myst.xref_missing"]

# The page of commands is what their --help prints; that of the notebook is the notebook; the page
# to play with is that of the checkpoint.
sys.path.insert(0, str(ROOT / "scripts"))
import make_notebook  # noqa: E402
import make_pages  # noqa: E402

make_pages.main()
make_notebook.write_page()
