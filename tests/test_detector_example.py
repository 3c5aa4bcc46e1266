"""examples/detector.py: its mAP by hand, its images, and that it learns; and the benchmark that shrinks it."""

from __future__ import annotations

import pytest
import torch

import detection
from detector import Detector, cells, detections, draw, loss, mean_average_precision, overlap, suppressed

BOX = [0.0, 0.0, 10.0, 10.0]
FAR = [50.0, 50.0, 60.0, 60.0]


def found(*rows: tuple[list[float], float, int]) -> dict[str, torch.Tensor]:
    boxes, scores, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        "boxes": torch.tensor(boxes).reshape(-1, 4),
        "scores": torch.tensor(scores),
        "labels": torch.tensor(labels, dtype=torch.long),
    }


def precision(*images: dict[str, torch.Tensor], true: list[list[tuple[list[float], int]]]) -> float:
    boxes = torch.tensor([[box for box, _ in of_image] for of_image in true])
    return mean_average_precision(list(images), boxes, torch.tensor([[s for _, s in of_image] for of_image in true]))


def test_overlaps_by_hand():
    half = torch.tensor([0.0, 0.0, 10.0, 5.0])
    assert float(overlap(torch.tensor(BOX), half)) == 0.5
    assert float(overlap(torch.tensor(BOX), torch.tensor(FAR))) == 0
    # The hull has 60 x 60 pixels, 200 of them in one of the boxes.
    assert float(overlap(torch.tensor(BOX), torch.tensor(FAR), generalised=True)) == pytest.approx(-3400 / 3600)


def test_precision_by_hand():
    one = [[(BOX, 0), (FAR, 0), (BOX, -1)]]
    third = 1 / 3  # of the shapes is drawn: the others have no area
    assert precision(found((BOX, 0.9, 0), (FAR, 0.8, 0)), true=one) == pytest.approx(third)
    assert precision(found(), true=one) == 0
    assert precision(found((BOX, 0.9, 1)), true=one) == 0  # another shape
    # Precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1: made to fall, the area is 1/2 * 1 + 1/2 * 2/3.
    wrong = [20.0, 20.0, 30.0, 30.0]
    rows = [(BOX, 0.9, 0), (wrong, 0.8, 0), (FAR, 0.7, 0)]
    assert precision(found(*rows), true=one) == pytest.approx(third * 5 / 6)
    # A box that is found twice is right once: precisions 1, 1/2, 2/3.
    assert precision(found((BOX, 0.9, 0), (BOX, 0.8, 0), (FAR, 0.7, 0)), true=one) == pytest.approx(third * 5 / 6)
    # Scores are compared over all images: the wrong one of the second image comes first.
    two = [[(BOX, 0)], [(FAR, 0)]]
    assert precision(found((BOX, 0.5, 0)), found((BOX, 0.9, 0)), true=two) == pytest.approx(third * 0.5 * 0.5)


def test_suppression_by_hand():
    boxes = torch.tensor([BOX, [0.0, 0.0, 10.0, 9.0], FAR, [0.0, 0.0, 10.0, 4.0]])
    assert suppressed(boxes, torch.tensor([0.5, 0.9, 0.7, 0.6]), 0.5).tolist() == [1, 2, 3]
    assert suppressed(boxes[:0], torch.zeros(0), 0.5).tolist() == []


def test_shapes_are_where_their_boxes_say():
    images, boxes, shapes = draw(40, seed=3)
    assert images.shape == (40, 3, 64, 64)
    assert boxes.min() >= 0 <= 64 - boxes.max()
    assert set(shapes.unique().tolist()) == {-1, 0, 1, 2}
    assert bool((shapes[:, 0] >= 0).all())
    again = draw(40, seed=3)[0]
    assert torch.equal(images, again)


def test_perfect_scores_and_boxes_are_found_and_cost_little():
    _, boxes, shapes = draw(8, seed=5)
    centres, _ = cells()
    logits = torch.full((8, len(centres), 3), -20.0)
    predicted = torch.zeros(8, len(centres), 4)
    for i in range(8):
        for box, shape in zip(boxes[i], shapes[i], strict=True):
            near = (centres - (box[:2] + box[2:]) / 2).abs().amax(1).argmin()
            if shape >= 0:
                predicted[i, near], logits[i, near, shape] = box, 20.0
    found = detections((predicted, logits))
    assert mean_average_precision(found, boxes, shapes) == pytest.approx(1)
    assert sum(len(of_image["boxes"]) for of_image in found) == int((shapes >= 0).sum())


def test_a_step_lowers_the_loss():
    images, *true = draw(16, seed=7)
    torch.manual_seed(0)
    net = Detector(width=8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        value = loss(net(images), *true)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_benchmark_in_small():
    figures = {name: detection.precisions(name, 96, 16, steps=4, width=4) for name in detection.METHODS}
    assert all(len(of[form]) == 1 + len(detection.AT) for of in figures.values() for form in detection.FORMS)
    parameters = figures["SGD"]["parameters"]
    assert parameters == sorted(parameters, reverse=True) == figures["SFW over sizes"]["parameters"]
    assert len(detection.render(figures).splitlines()) == 2 + 2 * 3
    assert len(detection.chart_of(figures, "").lines) == 4
