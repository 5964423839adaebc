"""How Sphinx makes the site: `make docs`. Nothing is taken from elsewhere, so pages work from the
disk and without a network.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

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


def name_files_outside(_: object, page: str, source: list[str]) -> None:
    """Markdown files elsewhere in the repository are no pages of the site: name them instead of a
    link.
    """
    out = re.escape(
        "../" * (page.count("/") + 1)
    )  # from the folder of the page to the root of the repository
    source[0] = re.sub(rf"\[([^]]*)\]\({out}([\w/-]+\.md)\)", r"\1 (`\2`)", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_files_outside)


html_theme = "furo"  # system fonts, own scripts
html_title = f"attittud {release}"
html_copy_source = False
html_show_copyright = False
