"""The description for a package index: the README, with links that work outside of the repository.

hatchling calls this when it builds a wheel or a source distribution. An index shows the README but
none of the files beside it, so relative links and pictures become addresses in the repository that
`[project.urls]` names, at the tag of the version. Without such an address they stay as they are.
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


class CustomMetadataHook(MetadataHookInterface):
    """Fills the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field in the metadata of the project."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        if repository is not None:
            readme = absolute(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
