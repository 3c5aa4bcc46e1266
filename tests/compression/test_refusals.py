"""Refusals: one line that says what is wrong and what would be right."""

from __future__ import annotations

import math
import threading
import warnings

import pytest
import torch
from torch import nn

from compression.networks import IMAGES, ROWS, X, cnn, mlp, normed
from sparsefw import Sizes, compress, curve, load, recalibrate, save, save_elastic
from sparsefw.compression import ArtifactError, NotRunWarning, export_onnx, measure
from sparsefw.compression.artifact.export import ExportError

BAD = [-0.1, 1.0, 1.5, math.nan, math.inf, True, False, [0.5], None.__class__]


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
@pytest.mark.parametrize("value", [*BAD, "0.5", "half"], ids=str)
def test_a_value_that_is_not_a_fraction_is_refused(kind, value):
    with pytest.raises(ValueError, match=rf"^{kind}=[^\n]*(must be in \[0, 1\)|a pattern is N:M)[^\n]*$"):
        compress(normed(), example=X, **{kind: value})


@pytest.mark.parametrize("value", ["2:", ":4", "4:2", "4:4", "0:4", "2:4:8", "a:b", "-1:4", "2.0:4"])
def test_a_text_that_is_not_a_pattern_is_refused(value):
    with pytest.raises(ValueError, match=rf"^unknown kind {value!r}: a pattern is N:M with 0 < N < M, such as 2:4$"):
        compress(normed(), example=X, weights=value)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"score": "l3"}, "score='l3': there are l1, l2, bn, activation"),
        ({"form": "cut"}, "form='cut': there are removed, masked"),
        ({"allocation": "fair"}, "allocation='fair': there are uniform, global, energy, worst, sensitivity"),
        ({"round_to": 0}, "round_to=0: must be a whole number of at least 1"),
        ({"round_to": 2.5}, "round_to=2.5: must be"),
        ({"round_to": True}, "round_to=True: must be"),
        ({"example": None}, "calibration="),
        ({"example": None, "calibration": []}, "calibration is empty"),
        (
            {"filters": None},
            "give the fraction to remove, with one of filters=, neurons=, heads=, rank=, weights=, or a target",
        ),
        ({"include": "layer*"}, "include='layer*' matches no layer"),
        ({"exclude": "head"}, "exclude='head' matches no layer"),
    ],
    ids=str,
)
def test_unknown_settings_are_refused(wrong, says):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        compress(normed(), **{"filters": 0.5, "example": X, **wrong})
    assert says in str(error.value)


@pytest.mark.parametrize("thing", [None, 3, normed().state_dict(), nn.Linear, lambda x: x], ids=range(5))
def test_a_thing_that_is_not_a_model_is_refused(thing):
    with pytest.raises(ValueError, match=r"^compress needs a torch.nn.Module, got \w+$"):
        compress(thing, filters=0.5, example=X)


@pytest.mark.parametrize(
    "net, x",
    [
        (nn.Sequential(nn.ReLU()), X),
        (nn.Sequential(nn.Linear(3, 2)), torch.randn(1, 3)),
        (nn.Sequential(nn.LayerNorm(3)), torch.randn(1, 3)),
    ],
)
def test_nothing_to_compress(net, x):
    for how in ({"filters": 0.5}, {"rank": 0.5}, {"filters": 0.5, "form": "masked"}):
        with pytest.raises(ValueError, match=r"^there is nothing to compress by [^\n]*$"):
            compress(net, example=x, **how)


@pytest.mark.parametrize(
    "name, bad", [("0.weight", math.nan), ("3.weight", math.inf), ("8.bias", -math.inf), ("4.running_var", math.nan)]
)
@pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)
def test_models_that_are_not_finite(name, how, bad):
    net = normed()
    net.state_dict()[name].view(-1)[0] = bad
    with pytest.raises(ValueError, match=rf"^{name} contains NaN or inf[^\n]*$"):
        compress(net, example=X, **how)


@pytest.mark.parametrize(
    "example", [torch.randn(2, 4, 10, 10), torch.randn(2, 3, 2, 2), (X, X), {"y": X}], ids=range(4)
)
@pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)
def test_an_example_that_does_not_fit(example, how):
    with pytest.raises(ValueError, match=r"^example does not fit the model: inputs of shape [^\n]*$"):
        compress(normed(), example=example, **how)


@pytest.mark.parametrize("act", [lambda *a, **k: compress(*a, filters=0.5, **k), Sizes], ids=["compress", "Sizes"])
def test_an_example_with_labels(act):
    with pytest.raises(ValueError, match=r"^[^\n]*example[^\n]*; an example holds no labels$"):
        act(normed(), example=(X, torch.zeros(len(X), dtype=torch.long)))
    with pytest.raises(ValueError, match=r"^[^\n]*example[^\n]*(?<!no labels)$"):
        act(normed(), example=X[:, :1])


@pytest.mark.parametrize("example", ["picture", 3, X.numpy(), (1, 3, 10, 10), {"x": None}], ids=range(5))
def test_an_example_without_tensors(example):
    with pytest.raises(ValueError, match=r"^example has no tensor in it: \w+; give torch tensors, with a batch axis$"):
        compress(normed(), filters=0.5, example=example)


def test_a_model_that_cannot_be_copied():
    net = normed()
    net.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"^the model cannot be copied, and compress works on a copy: [^\n]*$"):
        compress(net, filters=0.5, example=X)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"filters": 0.5, "by": "rank"}, "by='rank' names the kinds to remove for a target=; give target= too"),
        ({"rank": 0.5, "form": "masked"}, "form='masked' removes filters, neurons or heads; give one of them"),
        ({"filters": 0.5, "refit": "yes"}, "refit='yes': must be True, False or \"auto\""),
        ({"filters": 0.5, "include": 3}, "include and exclude take names with * and ?, or a list of them, got 3"),
        ({"target": "latency=0.5", "by": "weights"}, "zeros stay in place, so latency cannot fall; use bytes="),
        ({"target": "params=0.5", "form": "masked"}, "cannot fall; use bytes=, or form='removed'"),
    ],
    ids=str,
)
def test_contradictory_requests_are_refused(wrong, says):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        compress(cnn(), example=IMAGES[0], **wrong)
    assert says in str(caught.value)


def test_a_target_by_no_kind_is_refused():
    with pytest.raises(ValueError, match=r"by=\[\] names no kind; leave it out for filters, or give one of filters, "):
        compress(cnn(), target="params=0.5", by=[], example=IMAGES[0])


def test_include_and_exclude_are_blamed_only_where_they_are_given():
    with pytest.raises(ValueError, match=r"nothing to compress by heads: there is no attention of several heads$"):
        compress(cnn(), heads=0.5, example=IMAGES[0])


def test_measure_export_and_curve_refuse_wrong_arguments(tmp_path):
    small = compress(cnn(), filters=0.5, example=IMAGES[0])
    with pytest.raises(ValueError, match=r"^backend='tflite': there are eager, onnxruntime$"):
        measure(small.model, IMAGES[0], backend="tflite")
    with pytest.raises(ValueError, match=r"^measure needs a torch.nn.Module, got Compressed; [^\n]*\.model$"):
        measure(small, IMAGES[0])
    with pytest.raises(ValueError, match=r"^only a torch.nn.Module can be exported, got Compressed; [^\n]*\.model$"):
        export_onnx(small, IMAGES[0], tmp_path / "x.onnx")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match=r"^cannot write [^\n]*file: File exists$"):
        export_onnx(small.model, IMAGES[0], tmp_path / "file" / "x.onnx")
    with pytest.raises(ValueError, match=r"^latency=True needs form='removed'"):
        curve(cnn(), "filters", [0.5], calibration=IMAGES, evaluate=lambda net: 1.0, latency=True)
    with pytest.raises(ValueError, match=r"^at=\['2:4'\]: ratios to remove must be in \[0, 1\), at least one$"):
        curve(cnn(), "weights", ["2:4"], calibration=IMAGES, evaluate=lambda net: 1.0)


@pytest.mark.parametrize("value, says", [(math.nan, "nan"), (math.inf, "inf"), (None, "None"), ("x", "'x'")])
def test_evaluate_must_return_a_finite_number(value, says):
    for run in (
        lambda: compress(mlp(), target="drop=1", calibration=ROWS, evaluate=lambda net: value),
        lambda: curve(mlp(), "filters", [0.5], calibration=ROWS, evaluate=lambda net: value, form="removed"),
    ):
        with pytest.raises(ValueError, match=rf"^evaluate (gives|returned) {says}[^\n]* larger is better$"):
            run()
    with pytest.raises(ValueError, match=r"^evaluate must be a function from a model to a number"):
        curve(mlp(), "filters", [0.5], calibration=ROWS, evaluate=3)


@pytest.mark.parametrize("value", [math.nan, math.inf, "good", None, True])
def test_metrics_are_numbers(value, tmp_path):
    with pytest.raises(ValueError, match=r"^metrics\['acc'\] = [^\n]*: must be a finite number$"):
        save(compress(mlp(), rank=0.5, calibration=ROWS), tmp_path / "a", metrics={"acc": value})


@pytest.mark.parametrize("ratio", [math.nan, 2, -0.1, 1.0])
def test_ratios_that_cannot_be_loaded(ratio, tmp_path):
    save_elastic(mlp(), tmp_path / "e", "filters", [0.5], calibration=ROWS)
    with pytest.raises(ArtifactError, match=r"^filters=[^\n]*: the fraction to remove must be in \[0, 1\)$"):
        load(tmp_path / "e", mlp, filters=ratio)


def test_extra_state_is_refused_when_saving(tmp_path):
    class Extra(nn.Identity):
        def get_extra_state(self) -> dict[str, int]:
            return {"k": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    net = nn.Sequential(nn.Conv2d(3, 16, 3), Extra(), nn.Conv2d(16, 4, 3))
    with pytest.raises(ArtifactError, match=r"^1\._extra_state is not a tensor: [^\n]*$"):
        save(compress(net, filters=0.5, example=IMAGES[0]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


HOW = pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)


@HOW
def test_models_without_values(how):
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    with pytest.raises(ValueError, match=r"^0\.weight is on the device meta and has no values: [^\n]*$"):
        compress(net, example=IMAGES[0], **how)
    with pytest.raises(ValueError, match=r"^0\.weight is on the device meta and has no values: [^\n]*$"):
        Sizes(net, "filters", example=X)
    net = cnn()
    net.register_buffer("table", torch.ones(4, device="meta"))
    with pytest.raises(ValueError, match=r"^table is on the device meta and has no values: [^\n]*$"):
        compress(net, example=IMAGES[0], **how)


class Graph(nn.Module):
    """Mixes rows by a matrix: an input, or a buffer."""

    def __init__(self, matrix: torch.Tensor | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.last = nn.Linear(16, 3)
        self.register_buffer("matrix", matrix)

    def forward(self, x: torch.Tensor, matrix: torch.Tensor | None = None) -> torch.Tensor:
        return self.last(((self.matrix if matrix is None else matrix) @ self.first(x)).relu())


@HOW
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors(layout, how):
    x = torch.randn(6, 6)
    matrix = torch.eye(6).to_sparse(layout=layout)
    advice = rf"is sparse \({layout}\), which cannot be followed: give tensor\.to_dense\(\), and multiply with it by @$"
    with pytest.raises(ValueError, match=rf"^example holds a tensor of shape \(6, 6\) that {advice}"):
        compress(Graph(), example=(x, matrix), **how)
    with pytest.raises(ValueError, match=rf"^calibration holds a tensor of shape \(6, 6\) that {advice}"):
        compress(Graph(), calibration=[((x, matrix),)], **how)
    with pytest.raises(ValueError, match=rf"^matrix {advice}"):
        compress(Graph(matrix), example=x, **how)
    assert compress(Graph(matrix.to_dense()), example=x, **how).plan.edits


@HOW
def test_lazy_layers_that_have_seen_nothing(how):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.LazyBatchNorm2d(), nn.LazyConv2d(4, 3))
    with pytest.raises(ValueError, match=r"^1\.weight belongs to a lazy layer that has not seen an input: [^\n]*$"):
        compress(net, example=IMAGES[0], **how)


@HOW
@pytest.mark.parametrize("make", [lambda net: torch.jit.script(net), lambda net: torch.jit.trace(net, IMAGES[0])])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_part_that_is_scripted(make, how):
    net = nn.Sequential(make(cnn().eval()), nn.Conv2d(4, 4, 1))
    with pytest.raises(ValueError, match=r"^0 is a TorchScript module, which cannot be taken apart: [^\n]*$"):
        compress(net, example=IMAGES[0], **how)


class Int8(nn.Linear):
    """A linear layer as other libraries quantise it."""

    def __init__(self) -> None:
        super().__init__(32, 4)
        self.weight = nn.Parameter(torch.ones(4, 32, dtype=torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.float(), self.bias)


def dynamically_quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(*mlp()), {"2"})


@HOW
@pytest.mark.parametrize("make", [dynamically_quantised, lambda: nn.Sequential(*mlp()[:2], Int8())])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_layers(make, how):
    with pytest.raises(ValueError, match=r"^2 is quantised \((Linear|Int8)\): compress the model first[^\n]*$"):
        compress(make(), example=ROWS[0], **how)


class Drawing(nn.Module):
    """Draws random numbers in evaluation mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5)


@HOW
def test_models_that_are_random_in_evaluation_mode(how):
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Drawing(), nn.Linear(32, 4))
    with pytest.raises(ValueError, match=r"^the model is random in evaluation mode: [^\n]*$"):
        compress(net, example=ROWS[0], **how)
    net[2] = nn.Dropout(0.5)
    compress(net, example=ROWS[0], **how)


@pytest.mark.parametrize("empty", [[IMAGES[0], IMAGES[0][:0]], [IMAGES[0][:0]]])
def test_an_empty_batch(empty):
    with pytest.raises(ValueError, match=r"^calibration has an empty batch$"):
        compress(cnn(), filters=0.5, calibration=empty)


@pytest.mark.parametrize("refit, batches", [(False, 3), (True, 4), (True, 3), ("auto", 4), ("auto", 3)])
def test_activations_that_are_not_finite(refit, batches):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[2].weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"^[024]: calibration gives activations that are not finite[^\n]*$"):
        compress(net, weights=0.5, calibration=ROWS[:batches], refit=refit)


def test_statistics_that_are_not_finite():
    net = cnn()
    with torch.no_grad():
        net[0].weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"^calibration gives activations that are not finite[^\n]*$"):
        recalibrate(net, IMAGES)


def test_compiled_and_scripted_models():
    net = cnn().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the age of TorchScript
        scripted, compiled = torch.jit.trace(net, IMAGES[0]), torch.compile(net, backend="eager")
    small = compress(compiled, filters=0.5, example=IMAGES[0])
    assert list(dict(small.model.named_modules())) == list(dict(net.named_modules()))
    with pytest.raises(ValueError, match=r"^the model is a TorchScript module, which cannot be taken apart: [^\n]*$"):
        compress(scripted, filters=0.5, example=IMAGES[0])


class Branches(nn.Module):
    """Its middle depends on the input; `aux` runs in training only, and `spare` never."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.small = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())
        self.large = nn.Conv2d(8, 8, 3, padding=1)
        self.aux = nn.Conv2d(8, 2, 1)
        self.spare = nn.Linear(4, 4)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        x = self.stem(x)
        x = self.large(x) if x.shape[-1] > 8 else self.small(x)
        return (self.last(x), self.aux(x)) if self.training else self.last(x)


def test_what_the_example_does_not_run_is_named_in_one_warning_at_the_line_of_the_user():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small = compress(Branches().eval(), filters=0.5, example=torch.randn(2, 3, 16, 16))
    (warning,) = caught
    assert warning.category is NotRunWarning
    assert warning.filename == __file__
    assert str(warning.message).startswith("small, spare: not run by the example")
    assert "\n" not in str(warning.message)
    listed = {entry.layer: entry.reason for entry in small.plan.untouched}
    assert listed["small"].startswith("not run by the example")
    assert listed["spare"].startswith("never called as a layer")
    assert "not run" not in listed.get("aux", "")


def test_a_branch_that_the_example_does_not_run_fits_if_the_layers_named_in_the_warning_are_excluded():
    model, one_image = Branches().eval(), torch.randn(2, 3, 16, 16)
    model.stem = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 8, 1))
    with pytest.warns(NotRunWarning) as caught:
        small = compress(model, filters=0.5, example=one_image)
    assert str(caught[0].message).endswith("or leave whole what it may read: exclude=['stem.1', 'large']")
    assert (
        "note: small: not run by the example, and takes 8 channels, as many as stem.1, large had before: if it reads these, it "
        "no longer fits; give an example that runs it, or exclude them" in str(small)
    )
    with pytest.raises(RuntimeError):
        small.model(torch.randn(2, 3, 8, 8))
    with pytest.warns(NotRunWarning):
        whole = compress(model, filters=0.5, example=one_image, exclude=["stem.1", "large"])
    assert "no longer fits" not in str(whole)
    assert whole.model(torch.randn(2, 3, 8, 8)).shape == (2, 2, 8, 8)


class Sharing(nn.Module):
    """The embedding is used by its weight alone, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.encoder, self.last = nn.Embedding(5, 4), nn.Embedding(5, 4), nn.Linear(4, 2)
        self.encoder.weight = self.shared.weight

    def forward(self, tokens):
        return self.last(self.encoder(tokens))


def test_a_module_all_of_whose_weights_others_use_is_no_branch():
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotRunWarning)
        compress(Sharing(), weights=0.5, example=torch.zeros(2, 3, dtype=torch.long))


def test_there_is_no_warning_where_all_runs():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compress(normed(), filters=0.5, example=X)
