"""The command line as users type it: one small run is trained, drawn, compressed and reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sparsefw import cli, load
from sparsefw.cli import app, verbs

TINY = ["--set", "train.epochs=3", "--set", "model.arguments.width=8"]


def sparsefw(*arguments: str | Path, code: int = 0) -> str:
    """Run a command, and return its standard output."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def refused(*arguments: str | Path) -> str:
    """Run a command that is refused, and return the line that says why."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_network_that_does_not_fit_into_memory_fails_in_one_line(tmp_path):
    arguments = ["train", "digits-resnet-sgd", "--set", f"model.arguments.width={10**12}", "--out", str(tmp_path / "a")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert done.stderr == "failed: model resnet_digits: the network does not fit into memory\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "filters"
    sparsefw("train", "digits-resnet-filters", "--out", folder, *TINY, "--quiet")
    return folder


def test_train_writes_a_run_folder(run):
    names = {path.name for path in run.iterdir()}
    files = {"config.yaml", "metrics.jsonl", "model.safetensors", "result.json", "environment.json"}
    assert files | {"training.png", "training.svg"} <= names
    assert (run / "training.png").read_bytes().startswith(b"\x89PNG")
    assert "renewed" in (run / "training.svg").read_text()
    assert [json.loads(line)["epoch"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3]
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["torch"]
    assert len(environment["code"]["sha256"]) == 64


def test_the_same_training_again_is_finished_at_once(run):
    before = (run / "model.safetensors").stat().st_mtime_ns
    answer = json.loads(sparsefw("train", "digits-resnet-filters", "--out", run, *TINY, "--json"))
    assert answer["test"] == json.loads((run / "result.json").read_text())["test"]
    assert answer["picture"] == str(run / "training.png")
    assert answer["warnings"] == []
    assert (run / "model.safetensors").stat().st_mtime_ns == before


def test_warnings_are_printed_after_the_figures(tmp_path):
    """With such a learning rate nothing is learned."""
    words = ["train", "digits-resnet-sgd", "--out", tmp_path / "run", *TINY, "--set", "train.lr=100", "--quiet"]
    for _ in range(2):  # the second time, the training is finished already
        figures, warning, picture, after = sparsefw(*words).splitlines()
        assert figures.startswith("digits-resnet-sgd: accuracy validation ")
        assert re.match(
            r"warning: after 3 of 3 epochs the training accuracy is [\d.]+ %, where chance is 10.5 %", warning
        )
        assert picture == str(tmp_path / "run" / "training.png")
        assert after.startswith(f"{tmp_path / 'run'}: next, ")


def test_the_default_run_folder_names_recipe_and_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = sparsefw("train", "digits-resnet-sgd", "--seed", 3, *TINY, "--set", "train.epochs=1", "--quiet")
    assert (tmp_path / "runs" / "digits-resnet-sgd-seed3" / "result.json").exists()
    assert "sparsefw curve runs/digits-resnet-sgd-seed3" in output


def test_show_prints_the_whole_configuration_and_trains_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = sparsefw("train", "cifar10-resnet18-rank", "--show", "--set", "method.k=0.3")
    assert "k: 0.3" in text
    assert "checkpoint_seconds: 60.0" in text
    assert not list(tmp_path.iterdir())


def test_the_output_of_show_is_a_recipe(tmp_path):
    (tmp_path / "own.yaml").write_text(sparsefw("train", "digits-resnet-filters", *TINY, "--show"))
    own = json.loads(sparsefw("train", tmp_path / "own.yaml", "--show", "--json"))
    assert own == json.loads(sparsefw("train", "digits-resnet-filters", *TINY, "--show", "--json"))


@pytest.mark.parametrize("form", ["masked", "removed"])
def test_curve_prints_writes_and_draws_a_curve(run, form):
    answer = json.loads(sparsefw("curve", run, "--at", "0.5,0.8", "--form", form, "--json", "--quiet"))
    assert [point["ratio"] for point in answer["points"]] == [0.5, 0.8]
    written = json.loads((run / "curves" / f"filters-{form}.json").read_text())
    agreements = [point.pop("agreements") for point in answer["points"]]
    assert written["points"] == answer["points"]
    assert written["refit"] == "auto"
    for point, agreement in zip(answer["points"], agreements, strict=True):
        assert point["chosen"] == ("refit" if agreement["refit"] > agreement["plain"] else "plain")
    assert (run / "curves" / f"filters-{form}.png").read_bytes().startswith(b"\x89PNG")
    assert answer["dense"] == pytest.approx(json.loads((run / "result.json").read_text())["test"]["accuracy"], abs=3)


def test_curves_on_validation_images_have_their_own_folder(run):
    sparsefw("curve", run, "--at", "0.3", "--split", "validation", "--quiet")
    assert json.loads((run / "curves-validation" / "filters-removed.json").read_text())["split"] == "validation"


def test_compress_saves_a_network_that_can_be_loaded(run, tmp_path):
    answer = json.loads(
        sparsefw("compress", run, "--filters", 0.5, "-o", tmp_path / "s", "--onnx", "--json", "--quiet")
    )
    small = load(tmp_path / "s")
    assert sum(p.numel() for p in small.model.parameters()) == answer["costs"]["compressed"]["parameters"]
    assert (tmp_path / "s" / "model.onnx").exists()
    assert small.certificate["metrics"]["compressed"] == answer["test"]["compressed"]["accuracy"]
    assert answer["milliseconds"]["onnxruntime"][1] > 0


def test_compress_exports_for_other_runtimes_and_quantises(run, tmp_path):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'sparsefw[openvino]'")
    words = (
        "compress",
        run,
        "--filters",
        0.5,
        "--refit",
        "no",
        "-o",
        tmp_path / "s",
        "--openvino",
        "--program",
        "--int8",
    )
    answer = json.loads(sparsefw(*words, "--json", "--quiet"))
    written = {path.name: path.stat().st_size for path in (tmp_path / "s").iterdir() if path.suffix != ".json"}
    assert answer["files"] == written
    assert set(written) == {"model.safetensors", "model.pt2", "model.xml", "model.bin", "model.int8.onnx"}
    assert answer["milliseconds"]["openvino"][1] > 0
    (int8,) = answer["int8"].values()
    assert int8["metric"]["float"] == answer["test"]["compressed"]["accuracy"]
    assert abs(int8["metric"]["int8"] - int8["metric"]["float"]) < 5


def test_help_says_that_torch_may_unpickle_a_program():
    text = " ".join(re.sub(r"[^\w.,-]+", " ", sparsefw("compress", "--help")).split())
    assert "torch may unpickle what is in such a file" in text


@pytest.mark.parametrize("answer, refit", [("yes", True), ("no", False)])
def test_refit_can_be_set(run, tmp_path, answer, refit):
    text = sparsefw("compress", run, "--filters", 0.5, "--refit", answer, "-o", tmp_path / "s", "--json", "--quiet")
    assert json.loads(text)["request"]["refit"] is refit


def test_a_drop_is_measured_on_validation_images(run, tmp_path):
    answer = json.loads(sparsefw("compress", run, "--target", "drop=5", "-o", tmp_path / "s", "--json", "--quiet"))
    dense, small = answer["request"]["metric"]
    assert dense - small <= 5
    # 140 validation images: every accuracy is a multiple of 100 / 140.
    assert small * 1.4 == pytest.approx(round(small * 1.4), abs=1e-6)


def test_compress_by_weights_rank_and_target(run, tmp_path):
    for arguments in (
        ("--weights", "0.9"),
        ("--weights", "2:4"),
        ("--rank", "0.5"),
        ("--target", "params=0.5", "--by", "rank"),
    ):
        sparsefw("compress", run, *arguments, "-o", tmp_path / "s", "--quiet")
        assert (tmp_path / "s" / "plan.json").exists()


def test_report_writes_a_page(run, tmp_path):
    sparsefw("curve", run, "--at", "0.5,0.7", "--quiet")
    output = sparsefw("report", run.parent, "-o", tmp_path / "r.html")
    assert "SparseFW" in output
    assert 'data-explorer="' in (tmp_path / "r.html").read_text()
    assert f"{tmp_path / 'r.html'}, {tmp_path / 'r_files'}" in output
    written = {file.name for file in (tmp_path / "r_files").iterdir()}
    assert {"filters-removed.png", "filters-removed.tex", "spectra-filters.svg", "runs.csv", "training.png"} <= written


def test_a_closed_pipe_is_no_failure():
    """As in `sparsefw list recipes | head -1`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "sparsefw", "list", "recipes"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_verb_has_a_file_of_its_name():
    files = {path.stem for path in Path(verbs.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(typer.main.get_command(app).commands)


@pytest.mark.parametrize(
    "verb",
    [
        ["demo"],
        ["train"],
        ["finetune"],
        ["retrain"],
        ["curve"],
        ["compress"],
        ["report"],
        ["sweep"],
        ["reproduce"],
        ["list"],
    ]
    + [["bench", name] for name in ("train", "methods", "data")],
    ids=" ".join,
)
def test_help_shows_an_example(verb):
    text = sparsefw(*verb, "--help")
    description = text.split("Options")[0].split("Usage", 1)[1].split("\n", 1)[1]
    assert f"sparsefw {' '.join(verb)}" in description
    assert "--json" in text


def test_every_verb_prints_json():
    group = typer.main.get_command(app)
    commands = {**group.commands, **group.commands["bench"].commands}
    del commands["bench"]
    assert {name for name, command in commands.items() if "json" not in {p.name for p in command.params}} == set()


def test_help_does_not_import_torch():
    code = "import sys, sparsefw.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_shell_completion_completes_a_verb():
    environment = {**os.environ, "_SPARSEFW_COMPLETE": "complete_bash", "COMP_WORDS": "sparsefw co", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).with_name("sparsefw"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert re.findall(r"\w+", done.stdout) == ["compress"]


def test_bad_input_ends_in_one_line(run, tmp_path):
    damaged = tmp_path / "elsewhere" / "damaged"
    damaged.mkdir(parents=True)
    (damaged / "config.yaml").write_text("a: [")
    (tmp_path / "empty").mkdir()
    for arguments, message in [
        (["train", "digits-resnet-filter"], "did you mean 'digits-resnet-filters'"),
        (["train", "digits-resnet-sgd", "--set", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", "digits-resnet-sgd", "--set", "train.epochs"], "KEY=VALUE"),
        (["train", "digits-resnet-sgd", "--set", "train.epochs=0"], "train.epochs=0"),
        (["train", tmp_path / "none.yaml"], "no such file"),
        (["train", "cifar10-resnet18-sgd", "--data", tmp_path, "--out", tmp_path / "r"], "cifar-10-python.tar.gz"),
        (["train", "digits-resnet-sgd", "--out", run, *TINY], "holds a run with method"),
        (["curve", tmp_path], "is not a run folder"),
        (["curve", run, "--at", "0.5;0.7"], "such as 0.5,0.7,0.9"),
        (["curve", run, "--at", "1.5"], "must be in [0, 1)"),
        (["curve", run, "--refit", "maybe"], "--refit 'maybe': must be auto, yes, no"),
        (["compress", run, "--filters", "0.5", "--refit", "True"], "--refit 'True': must be auto, yes, no"),
        (["curve", run, "--kind", "colours"], "unknown kind 'colours'"),
        (["curve", run, "--split", "train"], "must be one of test, validation"),
        (["curve", run, "--device", "cuda:99"], "cuda:99"),
        (["compress", run], "give the fraction to remove"),
        (["compress", run, "--filters", "1.5"], "must be in [0, 1)"),
        (["compress", run, "--filters", "0.5", "-o", run], "holds files of your own"),
        (["report", tmp_path / "empty"], "it is not a run folder, and contains none"),
        (["report", tmp_path / "none"], "no such folder"),
        (["report", damaged], "no run can be read; "),
        (["report", run, "-o", run / "config.yaml" / "page.html"], "cannot write"),
        (["list", "colours"], "there are models"),
        (["list", "methods", "sll"], "did you mean 'ssl'?"),
        (["list", "recipes", "ssl"], "only methods and grids are described one by one"),
        (["train", "digits-resnet-sgd", "--set", "method=ssl"], "given as method.name=ssl"),
        (["bench", "train", "colours"], "such as digits-resnet"),
        (["bench", "train", "digits-resnet", "--rows", "sgd,rnak-0.1"], "did you mean 'rank-0.1'"),
        (["bench", "train", "camvid-pspnet"], "cannot be made up; give --data"),
    ]:
        assert message in refused(*arguments), arguments
    assert not (tmp_path / "r").exists()


def test_an_interrupt_before_a_verb_begins_ends_in_one_line(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsefw.cli.main.app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.run([])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
