"""Recipes: complete experiments as YAML.

A file states what its variants share; each variant adds its method and whatever else differs. The recipe
"cifar10-resnet18-filters" is the variant `filters` of cifar10-resnet18.yaml; a file without variants is one recipe.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from sparsefw.config_base import ConfigError, nest, parse
from sparsefw.limits import RECIPE_CHARACTERS, read_bounded
from sparsefw.text import did_you_mean, one_line
from sparsefw.train.config import RunConfig

SHIPPED = resources.files("sparsefw") / "recipes"
# What PyYAML raises where the text is no YAML, or no value of the type that a tag gives it, such as "!!bool x".
NOT_YAML = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def recipe_descriptions() -> dict[str, str]:
    """Return every shipped recipe with a description."""
    described = {}
    for file in sorted(SHIPPED.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".yaml"):
            continue
        variants = _variants(read_yaml_file(file, file.name), file.name.removesuffix(".yaml"))
        for name, values in variants.items():
            described[name] = f"{values.get('about', '')}; {_method_text(values['method'])}{_sizes_text(values)}"
    return described


BASELINE = "sgd"  # the variant of a recipe with which the others are compared


def baseline_of(stem: str) -> str:
    """Return the variant of a recipe that is trained by SGD.

    >>> baseline_of("digits-resnet")
    'digits-resnet-sgd'
    """
    return f"{stem}-{BASELINE}"


def stems_with_baseline() -> list[str]:
    """Return the shipped recipes that have a variant trained by SGD, without the name of the variant."""
    ending = baseline_of("")
    return [name.removesuffix(ending) for name in recipe_descriptions() if name.endswith(ending)]


def _method_text(method: dict[str, Any]) -> str:
    """Return a method in words, such as "sparsefw filters k=0.2 w=20"."""
    settings = [f"{key}={value}" for key, value in method.items() if key not in ("name", "kind")]
    return " ".join([method["name"], *([method["kind"]] if "kind" in method else []), *settings])


def _sizes_text(values: dict[str, Any]) -> str:
    """Return what a recipe is trained over in words, such as " over sizes form=masked"; nothing for other recipes."""
    sizes = values.get("sizes")
    return "" if sizes is None else " ".join([" over sizes", *(f"{key}={value}" for key, value in sizes.items())])


def load_recipe(name: str, /, changes: Sequence[str] = (), **fields: Any) -> RunConfig:
    """Return the configuration of a shipped recipe or of a YAML file.

    With another method, or trained over sizes, it gets another name, so that such runs get folders beside each other.

    Args:
        changes: settings such as "train.epochs=5", whose values are YAML.
        fields: parts of the configuration to replace, such as seed=1; None leaves a part as it is.
    """
    values = _values(name)
    before = values
    values.pop("about", None)
    values = merged(values, {key: value for key, value in fields.items() if value is not None})
    changed = with_changes({}, changes)
    values = merged(values, changed)
    if not (changed.get("name") or fields.get("name")):
        values["name"] = _name_with_sizes(_name_with_method(values, before.get("method")), values, before)
    return parse(RunConfig, values, f"recipe {name}")


def _name_with_method(values: dict[str, Any], method_before: Any) -> Any:
    """Return "digits-resnet-ssl" for digits-resnet-sgd with the method ssl; the name unchanged for the same method."""
    name = values.get("name")
    method = values.get("method")
    if not (isinstance(name, str) and isinstance(method, dict) and isinstance(method_before, dict)):
        return name  # a mistake, which parsing reports
    if method.get("name") == method_before.get("name"):
        return name
    words = name.split("-")
    stems = ("-".join(words[:count]) for count in range(len(words) - 1, 0, -1))
    stem = next((stem for stem in stems if (SHIPPED / f"{stem}.yaml").is_file()), name)
    return f"{stem}-{str(method.get('name')).rpartition(':')[2].lower()}"


def _name_with_sizes(name: Any, values: dict[str, Any], before: dict[str, Any]) -> Any:
    """Return "digits-resnet-sgd-sizes" for a recipe that is not trained over sizes by itself, but by these values."""
    is_added = values.get("sizes") is not None and before.get("sizes") is None
    return f"{name}-sizes" if is_added and isinstance(name, str) else name


def _values(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.exists():
            raise ConfigError(f"recipe {name}: there is no such file")
        variants = _variants(read_yaml_file(path, name), path.stem)
        if len(variants) > 1:
            raise ConfigError(f"recipe {name} has the variants {', '.join(variants)}: a file of your own must have one")
        return next(iter(variants.values()))
    for file in SHIPPED.iterdir():
        stem = file.name.removesuffix(".yaml")
        if file.name.endswith(".yaml") and (name == stem or name.startswith(f"{stem}-")):
            variants = _variants(read_yaml_file(file, file.name), stem)
            if name in variants:
                return variants[name]
    known = recipe_descriptions()
    raise ConfigError(
        f"unknown recipe {name!r}{did_you_mean(name, known)}; see `sparsefw list recipes`, or give a .yaml file"
    )


def read_yaml_file(file: Path | Traversable, origin: str) -> dict[str, Any]:
    """Read a YAML table from a file; ConfigError of one line that names it, if there is none in it."""
    try:
        most = 4 * RECIPE_CHARACTERS  # bytes in UTF-8
        content = read_bounded(file, most) if isinstance(file, Path) else file.read_bytes()
        text = content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{origin}: is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{origin}: cannot be read ({error.strerror})") from None
    return read_yaml(text, origin)


def read_yaml(text: str, origin: str) -> dict[str, Any]:
    """Parse a YAML table; ConfigError of one line that names the place, `where` and the line, if it is none."""
    if len(text) > RECIPE_CHARACTERS:
        raise ConfigError(
            f"{origin}: has {len(text):,} characters; a table of settings has at most {RECIPE_CHARACTERS:,}"
        )
    try:
        values = copy.deepcopy(_parsed(text))
    except RecursionError:
        raise ConfigError(f"{origin}: is nested too deeply for a table of settings") from None
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or one_line(error)
        raise ConfigError(f"{origin}{line}: is not YAML: {problem}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: must be a table of settings, got {type(values).__name__}")
    return values


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Parse YAML once per text: a grid asks for the same recipe a hundred times."""
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 5e-4 is a number, 2:4 is not (YAML 1.1 reads 124, in base 60), a repeated key is a mistake."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (its own copy: the class of all SafeLoaders stays as it is)
        first: [
            (tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # aliases of aliases make gigabytes of a few hundred bytes
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not taken: write the value out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for name in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if name in names:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} is repeated", node.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$"),
    list("-+.0123456789"),
)


def _variants(values: dict[str, Any], stem: str) -> dict[str, dict[str, Any]]:
    shared = {key: value for key, value in values.items() if key != "variants"}
    variants = values.get("variants")
    if variants is None:
        return {stem: {"name": stem, **shared}}
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise ConfigError(f"{stem}: variants must be a table of tables")
    return {f"{stem}-{name}": merged({"name": f"{stem}-{name}", **shared}, v) for name, v in variants.items()}


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key, and replace anything else. A method or model of another name drops the old settings."""
    result = dict(values)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            replaces = key in ("method", "model") and _renames(old, value)
            value = value if replaces else merged(old, value)
        result[key] = value
    return result


def with_changes(values: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return the values with changes such as "train.epochs=5", one after the other."""
    changed: dict[str, Any] = {}
    for change in changes:
        changed = merged(changed, _change(change))
    return merged(values, changed)


def _renames(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "name" in old and "name" in new and old["name"] != new["name"]


def _change(text: str) -> dict[str, Any]:
    """Parse "train.epochs=5" into {"train": {"epochs": 5}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip(" ."):
        raise ConfigError(f"--set {text!r}: must be KEY=VALUE, such as train.epochs=5")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except NOT_YAML:
        raise ConfigError(f"--set {text!r}: the value is not YAML") from None
    return nest(key.strip(), parsed)
