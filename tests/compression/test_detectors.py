"""Detectors: certified whatever they choose among candidates, cut whole, and run on lists of images in every verb."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from compression.detectors import CLASSES, DETECTORS, Detr, Yolo, built, images
from compression.zoo import awake
from detector import Detector, detections
from sparsefw import Sizes, compress, curve, load, save
from sparsefw.compression import ArtifactError, costs, export_onnx
from sparsefw.compression.artifact.export import ExportError
from sparsefw.compression.reasons import Cause
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.passes import ResumedPasses
from sparsefw.compression.recovery.refit import _collect
from sparsefw.compression.sizes import smaller
from sparsefw.compression.structure import removal
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.compression.structure.removal import removable_channels, removal_edits
from vision import provide_operators, require_vision

# The layers that stay as they are: those that write scores, boxes, masks and the like.
LAST = {
    "Faster R-CNN": ("cls_logits", "bbox_pred", "cls_score"),
    "Mask R-CNN": ("cls_logits", "bbox_pred", "cls_score", "mask_fcn_logits"),
    "Keypoint R-CNN": ("cls_logits", "bbox_pred", "cls_score", "kps_score_lowres"),
    "RetinaNet": ("cls_logits", "bbox_reg"),
    "FCOS": ("cls_logits", "bbox_reg", "bbox_ctrness"),
    "SSD": ("regression_head", "classification_head"),
    "SSDLite": ("regression_head", "classification_head"),
    "DETR-like": ("scores", "boxes"),
    "YOLO-like": ("heads",),
}
TORCHVISION = [name for name in DETECTORS if "like" not in name]
SLOW = ("SSDLite",)


def detector(name: str) -> nn.Module:
    if name in TORCHVISION:
        require_vision("torchvision")
    return built(name)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in DETECTORS])
def test_all_but_the_last_layers_are_cut_and_certified(name):
    dense = detector(name)
    small = compress(dense, filters=0.5, example=images())
    assert small.parity < 1e-9
    assert small.costs.parameters < (0.7 if name == "FCOS" else 0.45) * small.dense.parameters
    # The towers of this narrow FCOS have one channel for each group of their norms.
    left = {u.layer for u in small.plan.untouched if not u.note and u.cause is not Cause.ONLY_ONE_OF_GROUP}
    assert all(any(word in layer for word in LAST[name]) for layer in left), left
    with evaluating(small.model):
        found = small.model(images(3))
    assert [set(of_image) for of_image in found] == [set(of_image) for of_image in dense(images(3))]


@pytest.mark.parametrize("name", ["Faster R-CNN", "RetinaNet", "DETR-like", "YOLO-like"])
def test_a_wrong_cut_is_seen_whatever_is_found(name, monkeypatch):
    """One set after the other loses other channels than were silenced; RetinaNet finds nothing here, so no box shows it."""
    dense = detector(name)
    sets = [channels for channels in removable_channels(dense, (images(),)) if channels.obstacle is None]
    edits_of = removal.removal_edits
    for channels in sets[:: max(1, len(sets) // 6)]:
        if channels.count < 4:
            continue
        edits = edits_of(dense, {channels: [0]})
        assert removal.parity(dense, edits, (images(),)) < 1e-9
        wrong = edits_of(dense, {channels: [1]})
        with monkeypatch.context() as patched:
            patched.setattr(removal, "cut", lambda model, _, wrong=wrong, cut=removal.cut: cut(model, wrong))
            assert removal.parity(dense, edits, (images(),)) > 1e-5, channels.name


class Divided(Yolo):
    """Finds nothing, and its head divides by the number of channels that it reads."""

    def forward(self, batch: list[Tensor]) -> list[Tensor]:
        stacked = torch.stack([nn.functional.interpolate(image[None], (64, 64))[0] for image in batch])
        features = self.network.fine(stacked)
        head = self.network.heads[0]
        boxes = head[1](head[0](features) / features.shape[1])
        return [of_image[of_image > 1e9] for of_image in boxes]


def test_code_that_counts_channels_is_seen_where_nothing_is_found():
    model = awake(Divided()).eval()
    assert not any(len(found) for found in model(images()))
    reasons = {c.name: c.obstacle and c.obstacle.cause for c in removable_channels(model, (images(),))}
    assert [cause for name, cause in reasons.items() if "fine.2.join" in name] == [Cause.REMOVAL_DIFFERS]
    assert [cause for name, cause in reasons.items() if "fine.0.0" in name] == [None]


def test_decisions_are_followed_and_what_they_look_at_is_kept():
    scores = torch.tensor([1.0, 1.0, 0.0])

    def choose(scores: Tensor) -> tuple[Tensor, Tensor, int]:
        best, places = scores.topk(2)
        return places, best[best > 0.5], len(scores[scores > 0.5])

    with Decisions() as leader:
        first = choose(scores)
    other = scores + torch.tensor([0.0, 1e-6, 0.0])  # a tie, broken
    assert choose(other)[0].tolist() == [1, 0] != first[0].tolist()
    with Decisions(leader) as own:
        assert choose(other)[0].tolist() == first[0].tolist()
    wanted, found = own.grounds
    assert [t.tolist() for t in wanted] == [[1, 1, 0], [1, 1], [1, 1, 0]]
    assert torch.equal(found[0], other)
    with Decisions(leader) as own:  # what the leader did not decide is decided anew
        assert (scores > 2).tolist() == [False] * 3
        assert choose(other)[0].tolist() == first[0].tolist()
    assert len(own.followed) == 3


def test_decisions_by_other_numbers_of_channels_are_made_anew():
    with Decisions() as leader:
        torch.tensor([1.0, 3.0, 2.0]).argmax()
    with Decisions(leader) as own:
        assert int(torch.tensor([1.0, 2.0]).argmax()) == 1
    assert not own.followed
    assert own.grounds == ([], [])


class Pair(nn.Module):
    """Runs with fewer channels in one of two layers, not in both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.o = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.a(x).relu(), self.b(x).relu(), self.c(x).relu()
        if a.shape[1] < 8 and b.shape[1] < 8:
            raise RuntimeError("one of them only")
        return self.o(torch.cat([a, b, c], 1))


def test_what_fails_only_together_is_cut_as_far_as_possible():
    small = compress(Pair(), filters=0.5, example=torch.randn(3, 4))
    assert {name: len(layer.weight) for name, layer in small.model.named_children()} == dict(a=4, b=8, c=4, o=2)
    left = {u.layer: u.reason for u in small.plan.untouched if not u.note}
    assert left["b"] == (
        "the model's code does not run with fewer of them: one of them only, "
        'in Pair.forward: raise RuntimeError("one of them only")'
    )


@pytest.mark.parametrize(
    "wrap", [list, tuple, lambda two: [two], lambda two: (two,)], ids=["list", "tuple", "[[]]", "([],)"]
)
def test_a_list_of_images_is_an_example_as_it_stands(wrap):
    model = built("DETR-like")
    small = compress(model, filters=0.5, example=wrap(images()))
    assert small.costs == compress(model, filters=0.5, example=(images(),)).costs
    assert small.dense.macs == costs(model, (images(1),)).macs  # of one image


def loader(batches: int, with_targets: bool = True) -> list[object]:
    lists = [images(4, seed=i) for i in range(batches)]
    return [(tuple(of_batch), ({},) * 4) if with_targets else of_batch for of_batch in lists]


def test_calibration_batches_are_lists_of_images_with_or_without_targets():
    """The statistics are those of all images, by hand: the means of what the first norm sees."""
    model = built("DETR-like")
    seen: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for of_batch in loader(3, with_targets=False):
            resized = [nn.functional.interpolate(image[None], (64, 64)) for image in of_batch]
            seen.append(model.backbone[0](torch.cat(resized)))
    expected = torch.cat(seen).mean((0, 2, 3))
    for with_targets in (True, False):
        small = compress(model, weights=0.5, calibration=loader(3, with_targets), refit=False, exclude="backbone.0")
        torch.testing.assert_close(small.model.backbone[1].running_mean, expected)


@pytest.mark.parametrize("name", ["Faster R-CNN", "DETR-like"])
def test_the_recovery_is_judged_by_boxes(name):
    small = compress(detector(name), filters=0.3, calibration=loader(12), refit="auto")
    recovery = small.plan.request["recovery"]["filters"]
    assert recovery["inputs"] == 12
    assert recovery["refit"] > recovery["plain"]


def test_refit_changes_nothing_where_nothing_is_removed():
    """Rows of inputs and outputs of the heads belong to the same boxes."""
    dense = detector("Faster R-CNN")
    whole = compress(dense, filters=0.01, calibration=loader(4), refit=True).model
    with torch.no_grad():
        for expected, found in zip(dense(images()), whole(images()), strict=True):
            torch.testing.assert_close(found["boxes"], expected["boxes"])


def test_rows_of_refit_belong_to_the_same_boxes():
    dense = detector("Faster R-CNN")
    small = compress(dense, filters=0.5, example=images(), include="backbone.*")
    head = "roi_heads.box_head.fc6"
    cut = CutNetwork(small.model, (), (), {}, lambda name, solution: solution.weight)
    passes = ResumedPasses(dense, [cut], [head], [(images(4, seed=i),) for i in range(3)])
    ((fitting, held),) = _collect(passes, head, 0)
    assert held is None
    assert float(fitting.count) == 3 * 4 * 20  # 20 boxes of every image
    x, y = fitting.means()
    assert x.shape[1] == small.model.get_submodule(head).in_features
    assert y.shape[1] == dense.get_submodule(head).out_features


FRESH = """
import sys
sys.path[:0] = {paths!r}
import torch
from compression.detectors import built, images
from sparsefw import load
found = load({folder!r}, lambda: built({name!r})).model(images())
torch.save([dict(of_image) for of_image in found], {out!r})
"""


@pytest.mark.parametrize("name", ["Faster R-CNN", "YOLO-like"])
def test_saved_and_loaded_in_another_process(name, tmp_path):
    dense = detector(name)
    small = compress(dense, filters=0.5, example=images())
    save(small, tmp_path / "small")
    root = Path(__file__).parents[2]
    out = tmp_path / "found.pt"
    paths = [str(root / part) for part in ("src", "tests", "examples")]
    code = FRESH.format(paths=paths, folder=str(tmp_path / "small"), name=name, out=str(out))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    with torch.no_grad():
        expected = small.model(images())
    for of_image, loaded in zip(expected, torch.load(out), strict=True):
        assert all(torch.equal(of_image[key], loaded[key]) for key in of_image)


class Wobbling(Yolo):
    """Another machine: scores that differ by rounding."""

    def forward(self, batch: list[Tensor]) -> list[dict[str, Tensor]]:
        with torch.no_grad():
            stacked = torch.stack([nn.functional.interpolate(image[None], (64, 64))[0] for image in batch])
            boxes, logits = self.network(stacked)
            generator = torch.Generator().manual_seed(0)
            logits = logits + 1e-6 * torch.randn(logits.shape, generator=generator)
        return detections((boxes, logits), least=0.01)


def test_a_loaded_detector_decides_as_the_saved_one(tmp_path):
    """Its probe has equally good candidates: without the stored choices, other boxes would be kept, and load would refuse."""

    def even(kind: type[nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        model = awake(kind()).eval()
        for head in model.network.heads:
            head[1].weight.data[4:] = 0
            head[1].bias.data[4:] = 0.5
        return model

    save(compress(even(Yolo), filters=0.5, example=images()), tmp_path / "small")
    assert load(tmp_path / "small", lambda: even(Wobbling)).model(images())

    def other() -> nn.Module:
        model = even(Yolo)
        model.network.heads[0][0][2] = nn.ReLU()  # a constructor that builds something else
        return model

    with pytest.raises(ArtifactError, match="does not compute what was saved"):
        load(tmp_path / "small", other)


def test_curve_smaller_and_sizes():
    model = built("YOLO-like")

    def boxes(net: nn.Module) -> float:
        with torch.no_grad():
            return float(sum(len(found["boxes"]) for found in net.eval()(images())))

    points = curve(model, "filters", [0.3, 0.5], form="removed", calibration=loader(3), evaluate=boxes, progress=False)
    assert points.dense_costs.parameters > points.points[0].costs.parameters > points.points[1].costs.parameters
    with smaller(model, filters=0.5, example=images()), evaluating(model):
        silenced = call_on_copy(model, (images(),))
    cut = compress(model, filters=0.5, example=images()).model(images())
    assert [len(of_image["boxes"]) for of_image in silenced] == [len(of_image["boxes"]) for of_image in cut]
    sizes = Sizes(model, "filters", example=images())
    assert "does not run on a larger batch" in str(sizes.needs_passes)  # a list of images is no batch
    with sizes.smaller(0.5):
        sum(found["scores"].sum() for found in model(images())).backward()


def test_lists_of_images_are_not_exported_and_the_network_of_the_example_is(tmp_path):
    pytest.importorskip("onnxruntime")
    yolo = built("YOLO-like")
    with pytest.raises(ExportError, match="takes a list of images") as caught:
        export_onnx(yolo, (images(),), tmp_path / "x.onnx")
    assert "\n" not in str(caught.value)
    small = compress(Detector(width=8).eval(), filters=0.5, example=torch.randn(2, 3, 64, 64))
    assert export_onnx(small.model, small.example, tmp_path / "y.onnx") < 1e-4


def test_the_last_layers_keep_their_outputs():
    small = compress(built("DETR-like"), filters=0.5, example=images())
    assert (small.model.scores.out_features, small.model.boxes.out_features) == (CLASSES, 4)
    assert isinstance(small.model, Detr)
    assert removal_edits(small.model, {}) == []


@pytest.mark.slow
def test_the_example_of_the_docs():
    require_vision("torchvision")
    provide_operators()
    text = (Path(__file__).parents[2] / "docs" / "compress.md").read_text()
    (code,) = re.findall(r"test_detectors.py -->\n```python\n(.*?)```", text, flags=re.DOTALL)
    made: dict[str, object] = {}
    exec(code, made)
    assert made["small"].costs.parameters < 0.27 * made["small"].dense.parameters
    assert made["boxes"].shape[1] == 4


def test_a_choice_by_rounding_is_not_taken_for_randomness():
    """On a GPU, sums in another order decide between candidates that are equally good."""

    class Wavering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o, self.calls = nn.Linear(4, 8), nn.Linear(8, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.o(self.a(x).relu())
            scores = torch.ones(len(y)) + y[:, 0] * 0
            scores[self.calls % len(y)] += 1e-7
            return y[scores.topk(2).indices]

    small = compress(Wavering(), filters=0.5, example=torch.randn(5, 4))
    assert small.model.a.out_features == 4


def test_random_choices_are_refused():
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.o(self.a(x).relu())
            return y * (torch.rand(3) > 0.5)

    with pytest.raises(ValueError, match="random in evaluation mode"):
        compress(Random(), filters=0.5, example=torch.randn(5, 4))
