"""How Sphinx makes the site: `make docs`. Nothing is taken from elsewhere, so pages work from the disk and without a network."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for the extension `messages`

try:
    release = version = metadata.version("attittud")
except metadata.PackageNotFoundError:  # a checkout that was never installed
    release = version = "0+unknown"

project, author = "attittud", "The attittud authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "messages"]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings have names in single backticks, as Markdown does

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4  # links to headings are checked, as links to pages are

autodoc_typehints = "none"  # signatures stay short; the text says what an argument may be
autodoc_member_order = "bysource"
napoleon_google_docstring = True

html_theme = "furo"  # system fonts, own scripts
html_title = f"attittud {release}"
html_copy_source = False
html_show_copyright = False
