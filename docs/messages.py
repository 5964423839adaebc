"""A directive of the site: lists every message of errors and warnings in the source, so that
readers can search for theirs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SOURCE = Path(__file__).parents[1] / "src"
FEWEST = 4  # words; shorter texts are parts of other messages


def text(node: ast.expr) -> str:
    """Return a text of the source, with … for what is put into it; nothing for other
    expressions.
    """
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) or "…" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def messages(path: Path) -> Iterator[str]:
    """Yield what a file raises and warns about."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        warns = isinstance(call.func, ast.Attribute) and call.func.attr in ("warn", "warning")
        if call is not node or warns:
            for found in map(text, call.args):
                if len(found.replace("…", " ").split()) >= FEWEST:
                    yield " ".join(found.replace("%s", "…").replace("%d", "…").split())


class Messages(SphinxDirective):
    """`{messages} folder`: a list for each file in a folder of src."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for path in sorted((SOURCE / self.arguments[0]).rglob("*.py")):
            self.env.note_dependency(str(path))
            if lines := sorted(set(messages(path))):
                found.append(nodes.rubric(text=str(path.relative_to(SOURCE))))
                items = (
                    nodes.list_item("", nodes.paragraph("", "", nodes.literal(text=line)))
                    for line in lines
                )
                found.append(nodes.bullet_list("", *items))
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("messages", Messages)
    return {"parallel_read_safe": True}
