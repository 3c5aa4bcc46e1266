"""The scripts in benchmarks/: their tables, theory and summaries, computed by hand."""

from __future__ import annotations

import json
import math
import statistics
import sys

import pytest

import oracle_quality
import report_speed
import scaling
import soak
import throughput
import transformer_sizes
from shared import CommandAnswer
from sparsefw.bench import measure_training_speed
from sparsefw.report import read_runs

ENVIRONMENT = {"versions": {"sparsefw": "0.1.0", "torch": "2.9"}, "date": "2026-01-02"}


def bench_answer(on_gpu: bool) -> dict:
    """Return a made-up answer of `sparsefw bench train`."""

    def row(label, rate, memory, engine="cuda:0, cuda_graph"):
        peak = memory << 20 if on_gpu else 0
        shares = {"share": rate / 20_000, "memory_share": memory / 400 if on_gpu else None}
        times = {"images_per_second": rate, "milliseconds": 128e3 / rate, "spread": [0.99, 1.02]}
        return {"label": label, "engine": engine, "peak_bytes": peak, **shares, **times}

    rows = {"sgd": row("SGD", 20_000, 400), "nuc": row("NUC (full SVD)", 500, 1000, "cuda:0")}
    about = {"recipe": "cifar10-resnet18", "images": "batches of 128 images, made up", "drift": -0.004}
    return {**about, "engine": "cuda:0, cuda_graph", "rows": rows, **ENVIRONMENT}


def rendered(**answers: dict) -> str:
    conditions = {"command": "sparsefw bench train x", "seconds": 1.0, "device": "NVIDIA H200"}
    return throughput.render({name: {**conditions, "answer": answer} for name, answer in answers.items()})


def test_the_throughput_table_names_command_machine_and_engine():
    text = rendered(x=bench_answer(on_gpu=True))
    assert "`sparsefw bench train x`: NVIDIA H200, 2026-01-02, sparsefw 0.1.0, torch 2.9; cuda:0, cuda_graph" in text
    assert "## x\n" in text
    assert "cuda:0, cuda_graph; batches of 128 images, made up. SGD" in text
    assert "start: -0.4%. NUC (full SVD) ran on cuda:0." in text
    assert "|  | images/s | share of SGD's | ms/step | spread | peak MiB | x SGD's |\n" in text
    assert "| SGD | 20,000 | 1.000 | 6.40 | 0.990 to 1.020 | 400 | 1.00 |\n" in text
    assert "| NUC (full SVD) | 500 | 0.025 | 256.00 | 0.990 to 1.020 | 1,000 | 2.50 |\n" in text


def test_the_throughput_table_of_a_cpu_has_no_memory():
    text = rendered(x=bench_answer(on_gpu=False))
    assert "peak" not in text
    assert "| SGD | 20,000 | 1.000 | 6.40 | 0.990 to 1.020 |\n" in text


def test_a_real_answer_of_bench_is_rendered():
    answer = measure_training_speed("digits-resnet", None, 0.0, ("model.arguments.width=4",), ["sgd", "rank-0.1"])
    assert "| SparseFW rank k=0.1 |" in rendered(x=answer, y=answer)


def test_the_work_of_a_step():
    setting = scaling.Setting(layers=3, n=20, m=50, k=0.1)
    assert setting.work("SGD") == setting.work("filters") == setting.work("weights") == 3000
    assert setting.work("rank") == 6000  # two columns
    assert scaling.Setting(1, 5, 5, 0.1).work("rank") == 25  # one at least
    assert math.isnan(scaling.Setting(1, 5, 5, 1.0).work("rank"))


def test_theory_goes_through_the_point_of_most_work():
    widths = [scaling.Setting(1, n, n, 0.1) for n in (10, 20, 40)]
    assert scaling.theory(widths, "SGD", [5, 6, 16]) == pytest.approx([1, 4, 16])
    assert scaling.theory(widths, "rank", [5, 6, 64]) == pytest.approx([1, 8, 64])
    shares = [scaling.Setting(1, 10, 10, k) for k in (0.1, 0.5, 1.0)]
    assert scaling.theory(shares, "SGD", [1, 2, 9]) == pytest.approx([2, 2, 2])
    assert scaling.theory(shares, "rank", [3, 5, 9]) == pytest.approx([1, 5, math.nan], nan_ok=True)


def test_scaling_writes_a_record_and_a_figure(tmp_path, monkeypatch):
    sizes = ["--widths", "8", "16", "--depths", "1", "2", "--shares", "0.05", "1.0"]
    monkeypatch.setattr(sys, "argv", ["", *sizes, "--rounds", "1", "--device", "cpu", "--out", str(tmp_path)])
    scaling.main()
    record = json.loads((tmp_path / "scaling-cpu.json").read_text())
    assert record["command"].startswith("python benchmarks/scaling.py --widths 8 16")
    assert set(record["panels"]["k"]["ms"]) == {"SGD", "filters", "weights", "rank"}
    assert all(len(ms) == 2 for panel in record["panels"].values() for ms in panel["ms"].values())
    assert (tmp_path / "scaling-cpu.png").read_bytes().startswith(b"\x89PNG")


def test_the_layers_of_a_setting_have_its_sizes():
    for setting in (scaling.Setting(2, 4, 6, 0.5), scaling.Setting(3, 4, 18, 0.5)):
        net = setting.network("cpu")
        assert [p.flatten(1).shape for p in net.parameters()] == [(setting.n, setting.m)] * setting.layers


def test_the_quality_of_every_layer_is_measured_every_few_steps():
    changes = ["train.epochs=1", "model.arguments.width=4", "method.k=0.5", "engine.device=cpu"]
    quality = oracle_quality.measure_quality("digits-resnet-rank", None, changes, every=4)
    assert quality["looked_at"] == [4, 8, 12, 16]  # of 19
    assert quality["layers"].keys() == quality["quality"].keys()
    assert "layer1.0.conv1.weight" in quality["layers"]
    assert 0.5 < quality["overall"]["min"] <= quality["overall"]["mean"] <= 1 + 1e-5


def test_unknown_qualities_are_left_out_of_the_summary():
    assert oracle_quality.summarize([1.0, math.nan, 0.5]) == {"mean": 0.75, "min": 0.5, "looks": 2}


def test_a_training_without_constraints_is_refused():
    changes = ["train.epochs=1", "model.arguments.width=4", "data.batch_size=600"]
    with pytest.raises(SystemExit, match="nothing was measured in 2 steps"):
        oracle_quality.measure_quality("digits-resnet-sgd", None, changes, every=1)


def test_the_made_up_runs_of_the_report_benchmark_are_complete(tmp_path):
    for number in (1, report_speed.SEEDS * len(report_speed.METHODS) + 1):
        report_speed.write_run(tmp_path / str(number), number)
    (tested, swept), damaged = read_runs([tmp_path])
    assert (damaged, tested.problems, swept.problems) == ([], (), ())
    assert {len(run.epochs) for run in (tested, swept)} == {100}
    assert {len(run.record.spectra.layers) for run in (tested, swept)} == {20}
    assert sorted((curve.kind, curve.split) for run in (tested, swept) for curve in run.curves) == [
        ("filters", "test"),
        ("filters", "validation"),
        ("rank", "test"),
        ("weights", "test"),
    ]


def test_a_new_throughput_table_replaces_only_that_of_its_recipe(monkeypatch, tmp_path):
    monkeypatch.setattr(throughput, "RESULTS", tmp_path)
    monkeypatch.setattr(throughput, "device_slug", lambda _: "x")
    monkeypatch.setattr(throughput, "device_name", lambda _: "a machine")
    for number, stem in enumerate(["a", "b", "a"]):
        answer = CommandAnswer(f"command {number}", 1.0, bench_answer(on_gpu=False))
        monkeypatch.setattr(throughput, "run_sparsefw", lambda *_, answer=answer: answer)
        monkeypatch.setattr("sys.argv", ["throughput.py", stem])
        throughput.main()
    kept = json.loads((tmp_path / "throughput-x.json").read_text())
    assert {stem: table["command"] for stem, table in kept.items()} == {"a": "command 2", "b": "command 1"}
    assert "`command 1`" in (tmp_path / "throughput-x.md").read_text()


@pytest.mark.slow
def test_a_long_training_takes_no_more_and_more(tmp_path):
    measured = soak.soak(tmp_path, 600, seconds_between=0.1)
    assert measured["steps"] >= 600
    assert measured["rounds"] >= 1
    samples = measured["samples"]
    late = (
        3 * len(samples["steps"]) // 4
    )  # by then all has started, also on a busy machine; what leaks grows to the end
    assert late >= 8
    for name, measure in [
        ("training", "handles"),
        ("training", "threads"),
        ("curves and reports", "handles"),
        ("curves and reports", "threads"),
        ("run folder", "files"),
        ("run folder", "MiB without metrics.jsonl"),
    ]:
        values = [taken[measure] for taken in samples[name]]
        assert statistics.median(values[late:]) <= max(values[:late]), (name, measure)


def test_early_and_late_medians_leave_the_warm_up_out():
    samples = [{"handles": value} for value in (100, 100, 4, 6, 7, 7, 5, 9)]
    assert soak.early_and_late(samples, "handles") == (5, 7)


def transformer_row(mode, seed, dense, smallest):
    sizes = [dense, dense, dense, dense, smallest]
    same = {"steps": 5, "tokens": 100, "lr": 0.01, "parameters": [9, 8, 7, 6, 5]}
    return {"mode": mode, "seed": seed, "plain": sizes, "chosen": sizes, **same}


def test_the_table_of_transformers_is_the_mean_over_seeds():
    rows = [
        transformer_row("AdamW", 0, 10.0, 20.0),
        transformer_row("AdamW", 1, 11.0, 22.0),
        transformer_row("SFW", 0, 9, 9),
    ]
    text = transformer_sizes.render({"tasks": {"gpt-neurons": rows}, **ENVIRONMENT, "hardware": {"cpu": "x"}})
    assert "perplexity, neurons removed; 5 steps, 100 tokens in each training, lr=0.01, seeds 0, 1" in text
    assert "| AdamW | 10.50 | 10.50 | 10.50 | 10.50 | 21.00 |" in text
    assert "| SFW | 9.00 | 9.00 | 9.00 | 9.00 | 9.00 |" in text


def test_transformers_are_trained_measured_and_drawn(tmp_path):
    """A few steps of each: finite numbers at every size, and no training that is in the record is repeated."""
    arguments = ["--tasks", "gpt-neurons", "--modes", "AdamW", "SFW over sizes", "--steps", "3", "--out", str(tmp_path)]
    transformer_sizes.main(arguments)
    record = json.loads((tmp_path / "transformers-cpu.json").read_text())
    rows = record["tasks"]["gpt-neurons"]
    assert [row["mode"] for row in rows] == ["AdamW", "SFW over sizes"]
    assert all(len(row["plain"]) == 5 and all(map(math.isfinite, row["plain"])) for row in rows)
    assert rows[0]["tokens"] == rows[1]["tokens"] == 3 * 32 * 64
    assert rows[0]["parameters"] == sorted(rows[0]["parameters"], reverse=True)
    assert (tmp_path / "transformers-cpu.png").read_bytes().startswith(b"\x89PNG")
    transformer_sizes.main(arguments)
    assert json.loads((tmp_path / "transformers-cpu.json").read_text())["tasks"] == record["tasks"]


def test_a_bert_is_trained_over_sizes():
    pytest.importorskip("transformers")
    row = transformer_sizes.measured(transformer_sizes.TASKS["bert-neurons"], "SFW over sizes", seed=0, steps=3)
    assert all(0 <= value <= 100 for value in row["plain"])
