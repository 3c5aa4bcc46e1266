"""Losses and figures by hand, and sums that add up whatever the batches were."""

from __future__ import annotations

import math

import pytest
import torch

from sparsefw.train.tasks import Classification, Segmentation, task_for


def figures(task, output, targets):
    return task.metrics(task.sums(output, targets, task.loss(output, targets)))


def test_top_1_counts_the_largest_score_and_top_5_the_five_largest():
    """Seven classes, scores falling from class 0 to class 6: the targets 0, 4, 5 are first, fifth and sixth."""
    output = torch.arange(7, 0, -1.0).repeat(3, 1)
    found = figures(Classification(7), output, torch.tensor([0, 4, 5]))
    assert found["accuracy"] == pytest.approx(100 / 3)
    assert found["top5"] == pytest.approx(200 / 3)


def test_the_loss_is_minus_the_logarithm_of_the_target_probability_averaged():
    """Scores log 1, log 3: probabilities 1/4 and 3/4."""
    output = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])
    found = figures(Classification(2), output, torch.tensor([0, 1]))
    assert found["loss"] == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)


def test_label_smoothing_gives_a_part_of_the_target_to_all_classes_alike():
    """With 0.2 of two classes the target is 0.9 and 0.1."""
    output = torch.tensor([[0.0, math.log(3)]])
    loss = Classification(2, label_smoothing=0.2).loss(output, torch.tensor([1]))
    assert float(loss) == pytest.approx(0.9 * math.log(4 / 3) + 0.1 * math.log(4))


def test_probabilities_as_targets_are_weighted_in_the_loss_and_count_as_their_likeliest_class():
    output = torch.tensor([[0.0, math.log(3)]])
    found = figures(Classification(2), output, torch.tensor([[0.3, 0.7]]))
    assert found["loss"] == pytest.approx(0.3 * math.log(4) + 0.7 * math.log(4 / 3))
    assert found["accuracy"] == 100


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_with_fewer_than_five_classes_every_answer_is_among_the_first_five(classes):
    found = figures(Classification(classes), torch.randn(6, classes), torch.zeros(6, dtype=torch.long))
    assert found["top5"] == 100


def test_half_precision_outputs_have_a_float32_loss():
    loss = Classification(3).loss(torch.zeros(2, 3, dtype=torch.bfloat16), torch.tensor([0, 1]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log(3))


def test_sums_of_no_images_give_figures_and_not_a_division_by_zero():
    assert Classification(3).metrics(torch.zeros(4, dtype=torch.float64)) == {"loss": 0, "accuracy": 0, "top5": 0}
    none = Segmentation(3).metrics(torch.zeros(11, dtype=torch.float64))
    assert none == {"loss": 0, "mean_iou": 0, "pixel_accuracy": 0}


def predicted(classes: list[list[int]], count: int = 3) -> torch.Tensor:
    """Scores (1, count, h, w) whose largest is at these classes."""
    return torch.nn.functional.one_hot(torch.tensor(classes), count).permute(2, 0, 1)[None].float()


def test_mean_iou_by_hand_with_ignored_pixels():
    """Truth 0 0 1 | 1 2 -, answers 0 1 1 | 1 2 0: unions 2, 3, 1, intersections 1, 2, 1; 4 of 5 pixels right."""
    truth = torch.tensor([[[0, 0, 1], [1, 2, 255]]])
    task = Segmentation(3)
    output = predicted([[0, 1, 1], [1, 2, 0]])
    sums = task.sums(output, truth, task.loss(output, truth))
    assert sums[:9].tolist() == [1, 1, 0, 0, 2, 0, 0, 0, 1]
    found = task.metrics(sums)
    assert found["mean_iou"] == pytest.approx(100 * (1 / 2 + 2 / 3 + 1) / 3)
    assert found["pixel_accuracy"] == pytest.approx(80)


def test_a_class_that_neither_occurs_nor_is_answered_is_no_part_of_the_mean():
    """Class 2 is nowhere; class 1 is answered once, wrongly: its intersection over union is 0, and counts."""
    found = figures(Segmentation(3), predicted([[0, 1]]), torch.tensor([[[0, 0]]]))
    assert found["mean_iou"] == pytest.approx(100 * (1 / 2 + 0) / 2)


def test_the_segmentation_loss_is_the_mean_over_labelled_pixels():
    output = torch.tensor([0.0, math.log(3)]).view(1, 2, 1, 1).expand(1, 2, 1, 3)
    loss = Segmentation(2).loss(output, torch.tensor([[[0, 1, 255]]]))
    assert float(loss) == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)


def test_a_batch_without_a_labelled_pixel_has_loss_zero_and_a_finite_gradient():
    output = torch.randn(2, 3, 4, 4, requires_grad=True)
    truth = torch.full((2, 4, 4), 255)
    loss = Segmentation(3).loss(output, truth)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(output.grad, torch.zeros_like(output))
    assert figures(Segmentation(3), output.detach(), truth)["mean_iou"] == 0


def test_the_auxiliary_output_adds_four_tenths_of_its_own_loss_and_no_prediction():
    truth = torch.tensor([[[0, 1]]])
    right, wrong = predicted([[0, 1]]), predicted([[2, 2]])
    task = Segmentation(3)
    alone = [float(task.loss(output, truth)) for output in (right, wrong)]
    assert float(task.loss((right, wrong), truth)) == pytest.approx(alone[0] + 0.4 * alone[1])
    assert figures(task, (right, wrong), truth)["mean_iou"] == 100


def test_another_label_may_be_the_one_that_is_ignored():
    task = task_for("segmentation", 3, 0.0, 2)
    assert figures(task, predicted([[0, 1]]), torch.tensor([[[0, 2]]]))["pixel_accuracy"] == 100
    assert isinstance(task_for("classification", 3, 0.0, None), Classification)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (6,), (2, 4), (5, 1)])
def test_sums_of_batches_add_up_to_the_sums_of_the_whole(sizes):
    torch.manual_seed(0)
    task, output, targets = Classification(7), torch.randn(6, 7), torch.randint(7, (6,))
    parts = zip(output.split(sizes), targets.split(sizes), strict=True)
    total = sum(task.sums(o, t, task.loss(o, t)) for o, t in parts)
    assert total.dtype == torch.float64
    torch.testing.assert_close(total, task.sums(output, targets, task.loss(output, targets)), rtol=1e-6, atol=0)
    assert torch.equal(total[1:], task.sums(output, targets, task.loss(output, targets))[1:])


def test_confusion_matrices_of_batches_add_up_exactly():
    torch.manual_seed(0)
    task, output, targets = Segmentation(4), torch.randn(5, 4, 3, 3), torch.randint(4, (5, 3, 3))
    targets[0, 0] = 255
    zero = torch.zeros(())
    total = sum(task.sums(o, t, zero) for o, t in zip(output.split(2), targets.split(2), strict=True))
    assert torch.equal(total, task.sums(output, targets, zero))
    assert float(total[:16].sum()) == 5 * 9 - 3
