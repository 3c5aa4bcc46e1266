"""Training speed relative to SGD: the numbers of the table follow from the measured stretches."""

from __future__ import annotations

import pytest

from data.dataset_writers import write
from sparsefw.bench import costs_text, measure_training_speed, speeds_text, training_speed
from sparsefw.bench.step_times import StepTimes

SMALL = ("model.arguments.width=4",)


def test_real_images_are_used_where_a_folder_is_given(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)
    write("cifar10", tmp_path, images=8)
    changes = ("data.batch_size=4", "data.validation=0", *SMALL)
    assert not measure_training_speed("cifar10-resnet18", tmp_path, 0, changes, ["sgd"])["made_up"]
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    assert not measure_training_speed("cifar10-resnet18", None, 0, changes, ["sgd"])["made_up"]


def test_the_table_by_hand(monkeypatch):
    """SGD at 10 ms and 400 MiB first and at 12 ms last, filters at 22 ms and 600 MiB, NUC without a graph."""
    graph = "cuda:0, bfloat16, cuda_graph"
    plain = "cuda:0, bfloat16"
    answers = iter(
        [
            StepTimes([0.010, 0.009, 0.010], 400 << 20, graph),
            StepTimes([0.022, 0.020, 0.033], 600 << 20, graph),
            StepTimes([0.220, 0.220, 0.220], 800 << 20, plain),
            StepTimes([0.012, 0.012, 0.012], 400 << 20, graph),
        ]
    )
    monkeypatch.setattr(training_speed, "time_training", lambda *_: next(answers))
    record = measure_training_speed("digits-resnet", None, 1.0, (), ["sgd", "filters", "nuc-svd"])
    sgd, filters, nuc = record["rows"].values()
    assert sgd["milliseconds"] == pytest.approx(11)
    assert sgd["spread"] == pytest.approx([9 / 11, 12 / 11])
    assert record["drift"] == pytest.approx(0.2)
    assert (filters["share"], nuc["share"]) == pytest.approx((0.5, 0.05))
    assert (filters["memory_share"], nuc["memory_share"]) == (1.5, 2.0)
    assert filters["spread"] == pytest.approx([20 / 22, 1.5])
    lines = speeds_text(record).splitlines()
    assert any("+20.0%; this machine was busy" in line for line in lines)
    assert "busy" not in costs_text({**record, "drift": -0.02})
    assert lines[0] == f"digits-resnet on {graph}"
    figures = ["2,909", "0.500", "22.00", "0.909..1.500", "600", "1.50"]
    assert lines[4].split() == ["SparseFW", "filters", "k=0.2", *figures]
    assert lines[-1] == f"NUC (full SVD) ran on {plain}"
