"""requirements-dev.lock covers what developers need, with hashes; docs/licences.md says under which licences."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lock

ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
ROW = re.compile(r"\| ([a-z0-9-]+) \| (\d\S*) \| (.+) \|\n")
TEXT = lock.LOCK.read_text()
VERSIONS = {name: version for name, version, _ in ENTRY.findall(TEXT)}
LICENCES = {name: (version, expression) for name, version, expression in ROW.findall(lock.LICENCES.read_text())}


def wanted_by(requirements, extra: str = "") -> list[Requirement]:
    """Return the requirements that apply to Linux, without torch."""
    return [
        requirement
        for requirement in requirements
        if canonicalize_name(requirement.name) != lock.UNLOCKED
        and (requirement.marker is None or requirement.marker.evaluate({"extra": extra, "platform_system": "Linux"}))
    ]


def test_every_line_is_a_pinned_package_with_hashes():
    comments = re.compile(r"^#.*\n", re.MULTILINE)
    assert ENTRY.sub("", comments.sub("", TEXT)) == ""  # and nothing else, such as an index or a path
    assert len(VERSIONS) > 100
    assert lock.UNLOCKED not in VERSIONS


def test_everything_that_pyproject_asks_for_is_locked_in_a_version_that_it_allows():
    for requirement in wanted_by(lock.developer_requirements()):
        version = VERSIONS.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement}: run `make lock`"
        assert version in requirement.specifier, f"{requirement}, not {version}: run `make lock`"


@pytest.mark.parametrize("name", VERSIONS)
def test_what_a_locked_package_needs_is_locked_too(name):
    """As far as its locked version is the installed one, which knows what it needs."""
    try:
        if metadata.version(name) != VERSIONS[name]:
            return
    except metadata.PackageNotFoundError:
        return
    for requirement in wanted_by(map(Requirement, metadata.requires(name) or [])):
        assert VERSIONS[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_every_licence_is_listed_and_known():
    assert {name: version for name, (version, _) in LICENCES.items() if name != lock.UNLOCKED} == VERSIONS
    for name, (_, expression) in LICENCES.items():
        assert lock.parts(expression) <= lock.PERMISSIVE | lock.WEAK_COPYLEFT, name


def test_copyleft_is_named_and_refused_where_it_is_strong():
    weak = [name for name, (_, expression) in LICENCES.items() if lock.parts(expression) & lock.WEAK_COPYLEFT]
    assert weak
    assert f"Weak copyleft: {', '.join(weak)}.\n" in lock.LICENCES.read_text()
    with pytest.raises(SystemExit, match=r"^readline: 'GPL-3.0-only' is in neither list"):
        lock.licence_page({"mit": "MIT", "readline": "GPL-3.0-only"}, {"mit": "1", "readline": "8"})


def test_what_an_extra_of_a_package_needs_is_followed(monkeypatch):
    needs = {
        "a": ["b[fast]", "never; python_version < '3'"],
        "b": ["c; extra == 'fast'", "d; extra == 'slow'"],
        "c": ["a"],
    }
    monkeypatch.setattr(metadata, "requires", lambda name: needs.get(name))
    seen: set[tuple[str, str]] = set()
    lock.add_needed([Requirement("a")], "", seen)
    assert seen == {("a", ""), ("b", ""), ("b", "fast"), ("c", "")}
