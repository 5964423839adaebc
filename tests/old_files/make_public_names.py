"""Makes public_names.json: the names that users of revision 878ab49 could import.

    python tests/old_files/make_public_names.py CHECKOUT_OF_878ab49

They are what each `__all__` has, what the documented modules without one define, and what pages and examples import.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (
    *("attittud.losses", "attittud.checkpoint"),
    *(f"attittud.integrations.{name}" for name in ("transformers", "lightning", "torchjd")),
)


def public(source: Path) -> Iterator[str]:
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and module in DOCUMENTED and node.name[0] != "_":
                yield f"{module}.{node.name}"


def imported(text: str) -> Iterator[str]:
    for module, names in re.findall(r"^ *from (attittud[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        yield from (f"{module}.{name.split()[0]}" for name in names.split(","))


def main(checkout: Path) -> None:
    found = set(public(checkout / "src"))
    for path in [checkout / "README.md", *checkout.glob("docs/*.md"), *checkout.glob("examples/*.py")]:
        found |= set(imported(path.read_text(encoding="utf-8")))
    Path(__file__).with_name("public_names.json").write_text(
        json.dumps(sorted(found), indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
