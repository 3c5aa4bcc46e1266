"""From YAML and the command line to a configuration: what is merged, what is read as what, and what is said when it is wrong."""

from __future__ import annotations

import pytest

from sparsefw.config_base import ConfigError
from sparsefw.runfolder.schema import DataRecord
from sparsefw.train import RunConfig, RunFolder, load_recipe, recipe_descriptions, recipes
from sparsefw.train.facts import run_facts

OWN = """
about: mine
seed: 3
data: {name: digits, batch_size: 32}
model: {name: resnet_digits, arguments: {width: 8}}
method: {name: sparsefw, kind: rank, k: 0.2}
train: {epochs: 2, weight_decay: 5e-4, schedule: {kind: cosine}}
"""


def own(tmp_path, text: str = OWN, name: str = "mine.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def line(call, *args, **kwargs) -> str:
    """What is wrong, in one line."""
    with pytest.raises(ConfigError) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", recipe_descriptions())
def test_every_shipped_recipe_is_complete_says_what_it_is_about_and_survives_being_written(name, tmp_path):
    config = load_recipe(name)
    assert config.name == name
    assert recipe_descriptions()[name]
    RunFolder(tmp_path).begin(config, run_facts(config, "accuracy"), DataRecord({}))
    assert RunFolder(tmp_path).config == config


def test_a_variant_adds_to_what_its_file_shares():
    sgd, filters = load_recipe("digits-resnet-sgd"), load_recipe("digits-resnet-filters")
    assert sgd.train == filters.train
    assert sgd.data == filters.data
    assert sgd.method.name == "sgd"
    assert (filters.method.kind, filters.method.rescale) == ("filters", "horizon")
    assert load_recipe("digits-resnet-filters-paper", ["method.name=glt"]).name == "digits-resnet-glt"


def test_tables_are_merged_key_by_key(tmp_path):
    config = load_recipe(own(tmp_path), ["train.schedule.warmup=1", "model.arguments.stem=cifar"])
    assert (config.train.schedule.kind, config.train.schedule.warmup) == ("cosine", 1)
    assert config.model.arguments == {"width": 8, "stem": "cifar"}


def test_a_method_of_another_name_does_not_inherit_settings_and_one_of_the_same_name_does(tmp_path):
    path = own(tmp_path)
    assert load_recipe(path, ["method.name=sgd"]).method.model_dump() == {"name": "sgd"}
    kept = load_recipe(path, ["method.k=3"]).method
    assert (kept.name, kept.kind, kept.k, kept.w) == ("sparsefw", "rank", 3, None)
    assert load_recipe(path, ["method.name=sparsefw", "method.k=3"]).method.kind == "rank"


def test_an_own_variant_is_merged_into_what_is_shared(tmp_path):
    text = OWN + "variants:\n  short: {train: {epochs: 1}, method: {name: sgd}}\n"
    config = load_recipe(own(tmp_path, text))
    assert config.name == "mine-short"
    assert (config.train.epochs, config.train.weight_decay, config.method.name) == (1, 5e-4, "sgd")


def test_a_file_of_ones_own_with_several_variants_cannot_be_chosen_from(tmp_path):
    text = OWN + "variants:\n  one: {}\n  two: {}\n"
    assert "mine-one, mine-two" in line(load_recipe, own(tmp_path, text))


def test_an_own_file_is_named_after_itself_unless_it_says_otherwise(tmp_path):
    assert load_recipe(own(tmp_path)).name == "mine"
    assert load_recipe(own(tmp_path, OWN + "name: other\n")).name == "other"
    assert load_recipe(own(tmp_path, name="short.yml")).seed == 3
    assert load_recipe(own(tmp_path), seed=7).seed == 7


def test_another_method_has_another_name_so_that_runs_lie_beside_each_other(tmp_path):
    assert load_recipe("digits-resnet-sgd", ["method.name=ssl"]).name == "digits-resnet-ssl"
    assert load_recipe("digits-resnet-filters", ["method.name=glt"]).name == "digits-resnet-glt"
    assert load_recipe(own(tmp_path), ["method.name=ssl"]).name == "mine-ssl"
    assert load_recipe("digits-resnet-sgd", ["method.name=ssl", "name=chosen"]).name == "chosen"
    assert load_recipe("digits-resnet-sgd", ["method.name=ssl"], name="chosen").name == "chosen"
    assert (
        load_recipe("digits-resnet-filters", ["method.name=sparsefw", "method.k=0.3"]).name == "digits-resnet-filters"
    )


@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("train.weight_decay=5e-4", lambda c: c.train.weight_decay == 5e-4),
        ("train.lr=1E-2", lambda c: c.train.lr == 0.01),
        ("train.epochs=7", lambda c: c.train.epochs == 7),
        ("method.k=3", lambda c: c.method.k == 3 and isinstance(c.method.k, int)),
        ("method.k=1.0", lambda c: c.method.k == 1.0 and isinstance(c.method.k, float)),
        ("train.nesterov=true", lambda c: c.train.nesterov is True),
        ("train.ema=null", lambda c: c.train.ema is None),
        ("curve.at=[0.2, 5e-1]", lambda c: c.curve.at == (0.2, 0.5)),
        ("data.augment={flip: true, crop: 1}", lambda c: c.data.augment.flip and c.data.augment.crop == 1),
        ("model.arguments.drop=1e-1", lambda c: c.model.arguments["drop"] == 0.1),
        ("model.arguments.act=relu", lambda c: c.model.arguments["act"] == "relu"),
        ("model.arguments.equation=a=b", lambda c: c.model.arguments["equation"] == "a=b"),
        (" train.epochs =7", lambda c: c.train.epochs == 7),
    ],
)
def test_what_set_means(change, read):
    assert read(load_recipe("digits-resnet-filters", [change]))


def test_the_last_of_two_changes_wins():
    assert load_recipe("digits-resnet-sgd", ["train.epochs=2", "train.epochs=3"]).train.epochs == 3


def test_numbers_without_a_point_are_numbers_in_files_too(tmp_path):
    assert load_recipe(own(tmp_path)).train.weight_decay == 0.0005


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("trian.epochs=5", "unknown key 'trian'; did you mean 'train'?"),
        ("train.epoch=5", "unknown key 'train.epoch'; did you mean 'epochs'?"),
        ("train.schedule.warm=5", "unknown key 'train.schedule.warm'; did you mean 'warmup'?"),
        ("data.batchsize=5", "unknown key 'data.batchsize'; did you mean 'batch_size'?"),
        ("data.batch-size=5", "unknown key 'data.batch-size'; did you mean 'batch_size'?"),
        ("batch-size=5", "unknown key 'batch-size'"),
        ("int=5", "unknown key 'int'"),
        ("data.augment.flipp=true", "unknown key 'data.augment.flipp'; did you mean 'flip'?"),
        ("engine.devcie=cpu", "unknown key 'engine.devcie'; did you mean 'device'?"),
        ("method.kk=5", "method: unknown key 'kk'; did you mean 'k'?"),
        ("curve.kinds=rank", "unknown key 'curve.kinds'; did you mean 'kind'?"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_that_there_is(change, said):
    assert said in line(load_recipe, "digits-resnet-filters", [change])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.epochs=0", "train.epochs=0"),
        ("train.epochs=1.5", "train.epochs=1.5"),
        ("train.epochs=", "train.epochs=None"),
        ("train=5", "train=5"),
        ("train.lr=-1", "train.lr=-1"),
        ("train.lr=fast", "train.lr='fast'"),
        ("train.lr=.nan", "train.lr=nan"),
        ("method.k=abc", "k='abc': input should be a valid number, "),
        ("train.ema=1", "train.ema=1"),
        ("engine.precision=fp8", "engine.precision='fp8'"),
        ("engine.device=gpu", "engine.device='gpu'"),
        ("engine.accumulate=3", "engine.accumulate=3 does not divide data.batch_size=64"),
        ("track=[tensorbord]", "tensorbord"),
        ("method.name=sdg", "did you mean 'sgd'"),
        ("method=filters", "a name is given as method.name=filters"),
        ("curve.at=[1.0]", "at=[1.0]"),
        ("epochs", "must be KEY=VALUE"),
        ("=5", "must be KEY=VALUE"),
        ("train.epochs=[5", "the value is not YAML"),
        ("train..epochs=5", "unknown key"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(change, said):
    assert said in line(load_recipe, "digits-resnet-filters", [change])


def test_an_unknown_recipe_is_told_the_nearest():
    assert "did you mean 'digits-resnet-filters'" in line(load_recipe, "digits-resnet-filter")
    assert "sparsefw list recipes" in line(load_recipe, "digits-resnet")
    assert "there is no such file" in line(load_recipe, "nowhere.yaml")


def test_a_file_that_is_not_yaml_is_named_with_the_line(tmp_path):
    said = line(load_recipe, own(tmp_path, "data: {name: digits}\nmodel: {name: x\ntrain: [\n"))
    assert "mine.yaml, line 3" in said


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text"])
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    assert "must be a table of settings" in line(load_recipe, own(tmp_path, text))


def test_what_is_missing_is_named(tmp_path):
    assert "train is missing" in line(load_recipe, own(tmp_path, OWN.split("train:")[0]))
    assert "method" in line(load_recipe, own(tmp_path, OWN.replace("method:", "metod:")))


def test_a_configuration_cannot_be_changed_in_place():
    config = load_recipe("digits-resnet-sgd")
    with pytest.raises(Exception, match="frozen"):
        config.train.epochs = 3
    assert isinstance(config, RunConfig)


def test_another_network_brings_its_own_arguments_in_whatever_order_they_are_asked_for():
    name, argument = "model.name=vgg11_bn", "model.arguments.width=4"
    assert load_recipe("cifar10-resnet18-sgd", [name]).model.arguments == {}
    for changes in ([name, argument], [argument, name]):
        assert load_recipe("cifar10-resnet18-sgd", changes).model.arguments == {"width": 4}
    assert load_recipe("cifar10-resnet18-sgd", [argument]).model.arguments == {"stem": "cifar", "width": 4}


def test_a_key_that_stands_twice_is_an_error(tmp_path):
    (tmp_path / "own.yaml").write_text("train: {epochs: 1}\ntrain: {epochs: 2}\n")
    with pytest.raises(ConfigError, match="line 1: is not YAML: the key 'train' is repeated"):
        load_recipe(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize(
    ("text", "value"), [("5e-4", 5e-4), ("1E5", 1e5), ("3", 3), ("-0.5", -0.5), ("2:4", "2:4"), ("0x1", "0x1")]
)
def test_numbers_are_what_people_mean(text, value):
    """YAML would read 5e-4 as a text and 2:4 as 124, to the base of 60."""
    assert recipes.read_yaml(f"value: {text}", "own.yaml") == {"value": value}
    assert recipes._change(f"a.b={text}") == {"a": {"b": value}}
    assert type(recipes._change(f"a={text}")["a"]) is type(value)


def test_a_pattern_is_a_kind_and_has_no_k():
    assert load_recipe("digits-resnet-sgd", ["method.name=sparsefw", "method.kind=2:4"]).method.kind == "2:4"
    assert "2:4 itself defines how many may grow" in line(
        load_recipe, "digits-resnet-sgd", ["method.name=sparsefw", "method.kind=2:4", "method.k=0.3"]
    )


def test_settings_that_would_be_ignored_are_refused():
    assert "only a schedule of kind 'step' has it" in line(
        load_recipe, "digits-resnet-sgd", ["train.schedule.milestones=[0.3]"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('name="a\\e[31mred"', r"name='a\x1b[31mred': must be printable, in one line"),
        ('name="a\\nb"', r"name='a\nb': must be printable, in one line"),
        (f"train.epochs={10**20}", f"train.epochs={10**20}: input should be less than or equal to 1000000"),
        (f"seed={10**23}", f"seed={10**23}: input should be less than or equal to {2**63 - 1}"),
    ],
)
def test_values_that_no_training_and_no_terminal_takes_are_refused_by_key(change, message):
    assert line(load_recipe, "digits-resnet-sgd", [change]) == f"recipe digits-resnet-sgd: {message}"


def test_a_name_may_be_in_any_script():
    assert load_recipe("digits-resnet-sgd", ["name=日本"]).name == "日本"
