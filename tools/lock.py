"""Writes requirements-dev.lock and docs/licences.md: what `.venv` holds for developers, pinned, with hashes and licences.

    make lock

The lock lists what the extra `dev` of pyproject.toml needs, directly or not, in the versions that are installed, with the SHA-256
of every file that the package index has of that version: of all systems and Pythons, not of this machine alone. torch is left
out: its builds for CPU and CUDA, and what they need, differ between machines. constraints.txt says its version.
"""

from __future__ import annotations

import argparse
import re
import tomllib
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-dev.lock"
LICENCES = ROOT / "docs" / "licences.md"
UNLOCKED = "torch"
LINK = re.compile(r"<a [^>]*href=\"[^\"#]*#sha256=([0-9a-f]{64})\"[^>]*>([^<]+)</a>")
# SPDX identifiers that ask for no more than a notice.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python",
    "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "WTFPL", "Zlib",
}  # fmt: skip
# Weak copyleft: their own files stay under their licence; what imports them does not come under it.
WEAK_COPYLEFT = {"MPL-2.0", "LGPL-3.0-only"}
# What packages without an SPDX expression call their licence.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}

# Packages whose metadata state none, or its whole text: what their file LICENSE says.
READ = {"tiktoken": "MIT", "torchao": "BSD-3-Clause"}


def developer_requirements() -> list[Requirement]:
    """Return what pyproject.toml asks for, with the extra `dev` and the extras that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ["dev"]
    found = [*map(Requirement, project["dependencies"])]
    for extra in extras:  # which grows
        for requirement in map(Requirement, project["optional-dependencies"][extra]):
            if requirement.name == project["name"]:
                extras += sorted(requirement.extras)
            else:
                found.append(requirement)
    return found


def add_needed(requirements: Iterable[Requirement], extra: str, seen: set[tuple[str, str]]) -> None:
    """Add the installed packages that are needed, each with every extra that is wanted of it, to `seen`."""
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = canonicalize_name(requirement.name)
            for wanted in {"", *requirement.extras}:
                if (name, wanted) not in seen:
                    seen.add((name, wanted))
                    add_needed(map(Requirement, metadata.requires(name) or []), wanted, seen)


def hashes(name: str, version: str) -> list[str]:
    """Return the SHA-256 of every file that the index has of a version."""
    from pip._internal.models.index import PyPI

    request = urllib.request.Request(f"{PyPI.simple_url}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        links = LINK.findall(answer.read().decode())
    found = sorted({digest for digest, file in links if version_of(file.strip()) == Version(version)})
    if not found:
        raise SystemExit(f"{name} {version}: the index has no file of it; install a version that it has, and try again")
    return found


def version_of(file: str) -> Version | None:
    """Return the version in the name of a file; None for kinds of files that pip does not install.

    >>> version_of("numpy-2.4.6-cp311-cp311-win_amd64.whl"), version_of("numpy-2.4.6.exe")
    (<Version('2.4.6')>, None)
    """
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def licence(name: str) -> str:
    """Return the licence of an installed package: an SPDX expression."""
    if name in READ:
        return READ[name]
    about = metadata.metadata(name)
    expression = about.get("License-Expression")
    text = (about.get("License") or "").strip()
    if expression or (text and parts(text) <= PERMISSIVE | WEAK_COPYLEFT):
        return expression or text
    classes = [line.split(" :: ")[-1] for line in about.get_all("Classifier", []) if line.startswith("License")]
    for words in (*classes, text):
        if words in SPDX:
            return SPDX[words]
    raise SystemExit(f"{name}: its licence is neither stated as an SPDX expression nor known to {Path(__file__).name}")


def parts(expression: str) -> set[str]:
    """Return the licences in an SPDX expression.

    >>> sorted(parts("Apache-2.0 WITH LLVM-exception AND (MIT OR BSD-3-Clause)"))
    ['Apache-2.0 WITH LLVM-exception', 'BSD-3-Clause', 'MIT']
    """
    return {part.strip() for part in re.split(r"[()]|\bAND\b|\bOR\b", expression) if part.strip()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    needed: set[tuple[str, str]] = set()
    add_needed(developer_requirements(), "", needed)
    versions = {name: metadata.version(name) for name in sorted({name for name, _ in needed})}
    locked = {name: version for name, version in versions.items() if name != UNLOCKED}
    with ThreadPoolExecutor(8) as pool:
        digests = dict(zip(locked, pool.map(hashes, locked, locked.values()), strict=True))
    entries = [
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests[name])])
        for name, version in locked.items()
    ]
    LOCK.write_text(
        "# Written by `make lock`, used by `make locked`: what developers need on Linux with the CPU build of torch, with the\n"
        "# hashes of all files that the package index has of these versions. torch itself is not here: its build, for a CPU or\n"
        "# for CUDA, and so its hash, differ between machines. constraints.txt pins its version.\n"
        + "\n".join(entries)
        + "\n"
    )
    LICENCES.write_text(licence_page({name: licence(name) for name in versions}, versions))
    print(f"{len(entries)} packages: {LOCK.relative_to(ROOT)}, {LICENCES.relative_to(ROOT)}")


def licence_page(licences: dict[str, str], versions: dict[str, str]) -> str:
    """Return the licences as a page of Markdown, copyleft first."""
    weak = [name for name, expression in licences.items() if parts(expression) & WEAK_COPYLEFT]
    unknown = [name for name, expression in licences.items() if parts(expression) - PERMISSIVE - WEAK_COPYLEFT]
    if unknown:
        raise SystemExit(
            f"{unknown[0]}: {licences[unknown[0]]!r} is in neither list of licences in tools/lock.py; read it first"
        )
    rows = [
        f"| {name} | {versions[name].split('+')[0]} | {licences[name]} |"
        for name in sorted(licences, key=lambda name: (name not in weak, name))
    ]
    return (
        "# Licences\n\n"
        "sparsefw is under Apache-2.0. It contains no code of other packages; `pip` installs those that it needs. `make lock`\n"
        "writes this page: all packages that developers need, with the licences that they state. Users need a part of them.\n\n"
        f"Weak copyleft: {', '.join(weak)}.\nTheir own files stay under their licence; code that imports them does not "
        "come under it. All others are permissive.\n\n"
        "| package | version | licence |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
