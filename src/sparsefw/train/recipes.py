"""Recipes: complete experiments as YAML.

A file states what its variants share; each variant adds its method (and whatever else differs). The recipe
"cifar10-resnet18-filters" is the variant `filters` of cifar10-resnet18.yaml; a file without variants is one recipe.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from sparsefw.config_base import ConfigError, nested, parse
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig

SHIPPED = resources.files("sparsefw") / "recipes"


def recipe_names() -> dict[str, str]:
    """Every shipped recipe and what it is about."""
    found = {}
    for file in sorted(SHIPPED.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            for name, values in _variants(
                read_yaml(file.read_text(), file.name), file.name.removesuffix(".yaml")
            ).items():
                found[name] = f"{values.get('about', '')}; {_in_words(values['method'])}"
    return found


def _in_words(method: dict[str, Any]) -> str:
    """ "sparsefw filters k=0.2 w=20" """
    settings = [f"{key}={value}" for key, value in method.items() if key not in ("name", "kind")]
    return " ".join([method["name"], *([method["kind"]] if "kind" in method else []), *settings])


def load_recipe(name: str, /, changes: Sequence[str] = (), **fields: Any) -> RunConfig:
    """The configuration of a shipped recipe or of a YAML file, with `changes` such as "train.epochs=5" applied.

    With another method it has another name, so that runs of several methods lie beside each other.
    """
    values = _values(name)
    before = values.get("method")
    values.pop("about", None)
    values = merged(values, {key: value for key, value in fields.items() if value is not None})
    asked: dict[str, Any] = {}
    for change in changes:
        asked = merged(asked, _change(change))
    values = merged(values, asked)
    if not (asked.get("name") or fields.get("name")):
        values["name"] = _name_with(values, before)
    return parse(RunConfig, values, f"recipe {name}")


def _name_with(values: dict[str, Any], before: Any) -> Any:
    """ "digits-resnet-ssl" for digits-resnet-sgd with the method ssl; the name as it is where the method is that of before."""
    name, method = values.get("name"), values.get("method")
    if not (isinstance(name, str) and isinstance(method, dict) and isinstance(before, dict)):
        return name  # a mistake, which parsing tells
    if method.get("name") == before.get("name"):
        return name
    words = name.split("-")
    stems = ("-".join(words[:count]) for count in range(len(words) - 1, 0, -1))
    stem = next((stem for stem in stems if (SHIPPED / f"{stem}.yaml").is_file()), name)
    return f"{stem}-{str(method.get('name')).rpartition(':')[2].lower()}"


def read_config(path: Path) -> RunConfig:
    """The configuration that a run folder keeps. Its method may be somebody's own: its code is not needed, and not run."""
    return parse(RunConfig, read_yaml(path.read_text(), str(path)), str(path), foreign=True)


def write_config(config: RunConfig) -> str:
    return yaml.safe_dump(config.plain(), sort_keys=False)


def _values(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"recipe {name}: there is no such file")
        variants = _variants(read_yaml(path.read_text(), name), path.stem)
        if len(variants) > 1:
            raise ConfigError(f"recipe {name} has the variants {', '.join(variants)}: a file of your own must have one")
        return next(iter(variants.values()))
    for file in SHIPPED.iterdir():
        stem = file.name.removesuffix(".yaml")
        if file.name.endswith(".yaml") and (name == stem or name.startswith(f"{stem}-")):
            variants = _variants(read_yaml(file.read_text(), file.name), stem)
            if name in variants:
                return variants[name]
    known = recipe_names()
    raise ConfigError(
        f"unknown recipe {name!r}{did_you_mean(name, known)}; see `sparsefw list recipes`, or give a .yaml file"
    )


def read_yaml(text: str, where: str) -> dict[str, Any]:
    try:
        values = copy.deepcopy(_parsed(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: is not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: must be a table of settings, got {type(values).__name__}")
    return values


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """A grid asks for the same recipe a hundred times."""
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 5e-4 is a number, 2:4 is none (but 124, to the base of 60), equal keys are a mistake."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (its own copy: the class of all SafeLoaders stays as it is)
        first: [
            (tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} stands there twice", node.start_mark
            )
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
    """Tables are merged key by key; anything else is replaced. A method or model of another name brings its own settings."""
    result = dict(values)
    for key, value in changes.items():
        old = result.get(key)
        if (
            isinstance(value, dict)
            and isinstance(old, dict)
            and not (key in ("method", "model") and _renames(old, value))
        ):
            value = merged(old, value)
        result[key] = value
    return result


def _renames(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "name" in old and "name" in new and old["name"] != new["name"]


def _change(text: str) -> dict[str, Any]:
    """ "train.epochs=5" as {"train": {"epochs": 5}}; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip(" ."):
        raise ConfigError(f"--set {text!r}: must be KEY=VALUE, such as train.epochs=5")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except yaml.YAMLError:
        raise ConfigError(f"--set {text!r}: the value is not YAML") from None
    return nested(key.strip(), parsed)
