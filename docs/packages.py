"""Print how the packages import each other, as the Mermaid diagram of docs/architecture.md: python docs/packages.py

The diagram leaves out modules that are not packages, and arrows that follow from others.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "sparsefw"


def imported_names(path: Path) -> set[str]:
    """Return the names directly under sparsefw that a file imports or imports from."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "sparsefw":
            modules += [f"sparsefw.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.append(node.module)
    parts = [module.split(".") for module in modules]
    return {names[1] for names in parts if names[0] == "sparsefw" and len(names) > 1}


def package_imports() -> dict[str, set[str]]:
    """Map every package to the packages that it imports."""
    packages = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    imports = {}
    for package in packages:
        names = set().union(*map(imported_names, (PACKAGE / package).rglob("*.py")))
        imports[package] = names & set(packages) - {package}
    return imports


def reachable(package: str, imports: dict[str, set[str]]) -> set[str]:
    """Return the packages that a package imports, directly or through others."""
    packages = set(imports[package])
    for other in imports[package]:
        packages |= reachable(other, imports)
    return packages


def diagram() -> str:
    """Return the Mermaid flow chart: an arrow from each package to those that it imports, unless other arrows imply it."""
    imports = package_imports()
    lines = ["flowchart TD"]
    for package, direct in imports.items():
        implied = {name for other in direct for name in reachable(other, imports)}
        lines += [f"    {package} --> {other}" for other in sorted(direct - implied)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
