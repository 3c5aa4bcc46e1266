"""Small detectors: those of torchvision on a narrow backbone, one in the manner of DETR, and the one of the examples."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from compression.zoo import awake
from detector import Detector, detections
from sparsefw.models import import_torchvision
from vision import provide_operators

CLASSES, WIDTH = 5, 16
SIZES = dict(min_size=64, max_size=96)
FEW = dict(rpn_pre_nms_top_n_test=60, rpn_post_nms_top_n_test=20, box_detections_per_img=10)


def _detection(name: str) -> Any:
    import_torchvision()
    provide_operators()
    return importlib.import_module(f"torchvision.models.detection.{name}")


def _backbone(width: int = WIDTH, levels: int = 3) -> nn.Module:
    """A narrow backbone of convolutions with frozen batch norms, and a pyramid of its levels, as torchvision builds it."""
    utils = _detection("backbone_utils")
    frozen = importlib.import_module("torchvision.ops").FrozenBatchNorm2d
    widths = [2 ** (i + 3) for i in range(levels)]
    stages = nn.Sequential()
    inputs = 3
    for i, outputs in enumerate(widths):
        stem = nn.Conv2d(inputs, outputs, 3, 4 if i == 0 else 2, 1, bias=False)
        stages.add_module(f"layer{i}", nn.Sequential(stem, frozen(outputs), nn.ReLU()))
        inputs = outputs
    layers = {f"layer{i}": str(i) for i in range(levels)}
    return utils.BackboneWithFPN(stages, layers, widths, width)


def _anchors(levels: int) -> Any:
    generator = _detection("anchor_utils").AnchorGenerator
    return generator(tuple((2 ** (i + 4),) for i in range(levels)), ((0.5, 1.0, 2.0),) * levels)


def _two_stages(name: str, **parts: Any) -> nn.Module:
    faster = _detection("faster_rcnn")
    align = importlib.import_module("torchvision.ops").MultiScaleRoIAlign
    maps = ["0", "1", "2"]
    kind = getattr(_detection(name), {"faster_rcnn": "FasterRCNN", "mask_rcnn": "MaskRCNN"}.get(name, "KeypointRCNN"))
    return kind(
        _backbone(),
        rpn_anchor_generator=_anchors(4),
        box_roi_pool=align(maps, 4, 2),
        box_head=faster.TwoMLPHead(WIDTH * 16, 32),
        box_predictor=faster.FastRCNNPredictor(32, CLASSES),
        **parts,
        **SIZES,
        **FEW,
    )


def faster_rcnn() -> nn.Module:
    return _two_stages("faster_rcnn")


def mask_rcnn() -> nn.Module:
    mask = _detection("mask_rcnn")
    align = importlib.import_module("torchvision.ops").MultiScaleRoIAlign
    heads = mask.MaskRCNNHeads(WIDTH, (16, 16), 1)
    return _two_stages(
        "mask_rcnn",
        mask_roi_pool=align(["0", "1", "2"], 6, 2),
        mask_head=heads,
        mask_predictor=mask.MaskRCNNPredictor(16, 16, CLASSES),
    )


def keypoint_rcnn() -> nn.Module:
    keypoint = _detection("keypoint_rcnn")
    align = importlib.import_module("torchvision.ops").MultiScaleRoIAlign
    return _two_stages(
        "keypoint_rcnn",
        keypoint_roi_pool=align(["0", "1", "2"], 6, 2),
        keypoint_head=keypoint.KeypointRCNNHeads(WIDTH, (16, 16)),
        keypoint_predictor=keypoint.KeypointRCNNPredictor(16, 4),
    )


def retinanet(**arguments: Any) -> nn.Module:
    return _detection("retinanet").RetinaNet(
        _backbone(), CLASSES, anchor_generator=_anchors(4), **SIZES, topk_candidates=50, **arguments
    )


def fcos() -> nn.Module:
    anchors = _detection("anchor_utils").AnchorGenerator(((8,), (16,), (32,), (64,)), ((1.0,),) * 4)
    return _detection("fcos").FCOS(_backbone(32), CLASSES, anchor_generator=anchors, **SIZES, topk_candidates=50)


def ssd() -> nn.Module:
    anchors = _detection("anchor_utils").DefaultBoxGenerator([[2], [2, 3], [2], [2]])
    backbone = _backbone()
    backbone.out_channels = [WIDTH] * 4
    return _detection("ssd").SSD(backbone, anchors, (64, 64), CLASSES, topk_candidates=50)


def ssdlite() -> nn.Module:
    models = import_torchvision().models
    provide_operators()
    build = models.detection.ssdlite320_mobilenet_v3_large
    return build(weights=None, weights_backbone=None, num_classes=CLASSES, topk_candidates=50)


class Detr(nn.Module):
    """A backbone, a transformer whose queries become boxes, and the choice of the best of them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 4, 1)
        )
        self.queries = nn.Parameter(torch.randn(1, 8, 32))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.hidden, self.out = nn.Linear(32, 64), nn.Linear(64, 32)
        self.scores, self.boxes = nn.Linear(32, CLASSES), nn.Linear(32, 4)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        x = self.backbone(torch.stack([nn.functional.interpolate(i[None], (64, 64))[0] for i in images]))
        x = x.flatten(2).transpose(1, 2)
        queries = self.queries.expand(len(x), -1, -1)
        y = self.norm(queries + self.attention(queries, x, x)[0])
        y = y + self.out(self.hidden(y).relu())
        scores, labels = self.scores(y).softmax(-1).max(-1)
        boxes = self.boxes(y).sigmoid()
        kept = [of_image > 0.3 for of_image in scores]
        return [
            {"boxes": b[k], "scores": s[k], "labels": c[k]}
            for b, s, c, k in zip(boxes, scores, labels, kept, strict=True)
        ]


class Yolo(nn.Module):
    """The detector of the examples, with the choice of the boxes inside."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Detector(width=8)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        size = (64, 64)
        stacked = torch.stack([nn.functional.interpolate(image[None], size)[0] for image in images])
        return detections(self.network(stacked), least=0.01)


DETECTORS: dict[str, Callable[[], nn.Module]] = {
    "Faster R-CNN": faster_rcnn,
    "Mask R-CNN": mask_rcnn,
    "Keypoint R-CNN": keypoint_rcnn,
    "RetinaNet": retinanet,
    "FCOS": fcos,
    "SSD": ssd,
    "SSDLite": ssdlite,
    "DETR-like": Detr,
    "YOLO-like": Yolo,
}


def built(name: str) -> nn.Module:
    """The detector in evaluation mode, the same every time, as if it had been trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return awake(DETECTORS[name]()).eval()


def images(count: int = 2, seed: int = 1) -> list[Tensor]:
    """Images of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, 64, 64 + 16 * (i % 2), generator=generator) for i in range(count)]
