"""Draw how packages import each other: python docs/packages.py prints the diagram of docs/architecture.md, from the imports.

Leaves that everybody uses are left out, and so is an arrow that others imply.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "sparsefw"


def imported_parts(path: Path) -> set[str]:
    """Packages directly under sparsefw that a file imports from, itself included."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.append(node.module)
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    names = [module.split(".") for module in modules]
    return {name[1] for name in names if name[0] == "sparsefw" and len(name) > 1}


def packages() -> dict[str, set[str]]:
    """Every package -> those that it imports."""
    known = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return {
        name: set().union(*map(imported_parts, (PACKAGE / name).rglob("*.py"))) & known - {name}
        for name in sorted(known)
    }


def reachable(name: str, needs: dict[str, set[str]]) -> set[str]:
    found = set(needs[name])
    for other in needs[name]:
        found |= reachable(other, needs)
    return found


def diagram() -> str:
    """The packages as a Mermaid flow chart: who needs whom, without what follows from the rest."""
    needs = packages()
    lines = ["flowchart TD"]
    for name, direct in needs.items():
        implied = set().union(*(reachable(other, needs) for other in direct)) if direct else set()
        lines += [f"    {name} --> {other}" for other in sorted(direct - implied)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
