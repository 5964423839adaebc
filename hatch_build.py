"""The description for a package index: the README, with links that work outside of the repository.

hatchling calls this when it builds a wheel or a source distribution. An index shows the README but
none of the files beside it, so relative links and pictures become addresses in the repository that
`[project.urls]` names, at the tag of the version. Without such an address they could not be opened:
pictures are left out, and of a link its text stays. What the README installs from a checkout is
installed by its name.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)]+)\)")


def absolute(readme: str, repository: str, version: str) -> str:
    """Return a README whose relative links lead to files of a version in the repository."""

    def address(link: re.Match[str]) -> str:
        mark, text, path = link.groups()
        kind = "raw" if mark else "blob"
        return f"{mark}[{text}]({repository.rstrip('/')}/{kind}/v{version}/{path})"

    return LINK.sub(address, readme)


def without_links(readme: str) -> str:
    """Return a README without pictures and links that only work beside its other files."""

    def text_of(link: re.Match[str]) -> str:
        mark, text, _ = link.groups()
        return "" if mark else text

    return LINK.sub(text_of, readme)


def installed_by_name(readme: str, name: str) -> str:
    """Return a README that installs the package from the index, not from a checkout."""
    readme = readme.replace("# in a checkout, with Python", "# with Python")
    readme = readme.replace("pip install '.[", f"pip install '{name}[")
    return readme.replace("pip install .\n", f"pip install {name}\n")


class CustomMetadataHook(MetadataHookInterface):
    """Fills the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field in the metadata of the project."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        readme = installed_by_name(readme, metadata["name"])
        repository = metadata.get("urls", {}).get("Repository")
        if repository is None:
            readme = without_links(readme)
        else:
            readme = absolute(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
