"""Accuracy at every size, by `sparsefw` commands: one training for all sizes, beside networks of each size trained alone.

    python benchmarks/sizes.py digits-resnet --width 32 --seeds 0 1 2
    python benchmarks/sizes.py cifar10-resnet18 --width 64 --data DIR --seeds 0 1 --set train.epochs=100

Rows: SGD and SparseFW; both over sizes; both over sizes, taught by the outputs of the whole network, at twice the cost; the
network of SGD after 5, 10 and 20 epochs of fine-tuning over sizes; and, as the limit, narrow networks, each trained alone by SGD.

Filters are physically removed, the same share of every layer, and nothing is trained again. Prints a table, and writes it with
all figures and commands as JSON, and as a picture. Run folders are under runs/; finished trainings are not repeated, and killed
ones continue.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from shared import RESULTS, CommandAnswer, markdown_table, run_sparsefw, write_record
from sparsefw.environment import environment
from sparsefw.plotting.charts import Axis, Chart, Line, spread_of
from sparsefw.plotting.figure_io import save_figure
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.plotting.palette import line_styles

AT = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
# Row -> variant of the recipe, and changes of its settings. The variants over sizes are taught by the whole network's outputs.
VARIANTS: dict[str, tuple[str, Sequence[str]]] = {
    "SGD": ("sgd", ()),
    "SparseFW": ("filters", ()),
    "SGD over sizes": ("sgd", ("sizes={}",)),
    "SparseFW over sizes": ("filters", ("sizes={}",)),
    "SGD over sizes, taught": ("sgd-sizes", ()),
    "SparseFW over sizes, taught": ("sizes", ()),
}
FINETUNED = (5, 10, 20)  # epochs over sizes, from the network of SGD
LIMIT = "each size trained alone"
DENSE = 0.0

# Row -> ratio (0 for dense) -> form ("plain", "refit") -> accuracy of every seed.
Figures = dict[str, dict[float, dict[str, list[float]]]]


class Study:
    """The trainings of one recipe with one seed after the other; figures are added up."""

    def __init__(self, recipe: str, data: str | None, changes: Sequence[str]) -> None:
        self.recipe = recipe
        self._data = ["--data", data] if data else []
        self._changes = [word for change in changes for word in ("--set", change)]
        self.commands: list[CommandAnswer] = []
        self.figures: Figures = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))

    def add_seed(self, seed: int, width: int) -> None:
        """Add all rows; width: the base width of the recipe's network."""
        for row, (variant, changes) in VARIANTS.items():
            name = f"{self.recipe}-{variant}" + "-untaught" * bool(changes)
            self.add_curve(row, self.train(f"{self.recipe}-{variant}", f"{name}-seed{seed}", seed, *changes))
        source = f"runs/{self.recipe}-sgd-seed{seed}"
        for epochs in FINETUNED:
            tuned = self.finetune(source, epochs, f"{source}-finetuned{epochs}")
            self.add_curve(f"SGD, then {epochs} epochs over sizes", tuned)
        self.figures[LIMIT][DENSE]["plain"] += self.figures["SGD"][DENSE]["plain"][-1:]
        for ratio in AT:
            narrow = max(1, round(width * (1 - ratio)))
            name = f"{self.recipe}-width{narrow}-seed{seed}"
            self.train(f"{self.recipe}-sgd", name, seed, f"model.arguments.width={narrow}")
            answer = self.commands[-1].answer
            self.figures[LIMIT][ratio]["plain"].append(answer["test"][answer["metric"]])

    def train(self, recipe: str, folder: str, seed: int, *changes: str) -> str:
        further = [word for change in changes for word in ("--set", change)]
        words = ["train", recipe, "--out", f"runs/{folder}", "--seed", str(seed), *self._data, *self._changes]
        self.commands.append(run_sparsefw(*words, *further, "--quiet"))
        return f"runs/{folder}"

    def finetune(self, source: str, epochs: int, folder: str, *changes: str) -> str:
        further = [word for change in changes for word in ("--set", change)]
        words = ["finetune", source, "--epochs", str(epochs), "--out", folder, *self._data]
        self.commands.append(run_sparsefw(*words, *further, "--quiet"))
        return folder

    def add_curve(self, row: str, run: str) -> None:
        at = ",".join(map(str, AT))
        words = ["curve", run, "--kind", "filters", "--form", "removed", "--at", at, *self._data, "--quiet"]
        self.commands.append(run_sparsefw(*words))
        curve = self.commands[-1].answer
        self.figures[row][DENSE]["plain"].append(curve["dense"])
        for point in curve["points"]:
            for form in ("plain", "refit"):
                self.figures[row][point["ratio"]][form].append(point[form])

    def record(self) -> dict[str, Any]:
        return {"figures": self.figures, "commands": [c._asdict() for c in self.commands], **environment()}


def render(figures: Figures, title: str) -> str:
    """Return the table in Markdown: plain / refit, means over the seeds."""
    header = ["filters removed, plain / refit", "dense", *(f"{ratio:.0%}" for ratio in AT)]
    rows = [[row, *(_cell(of_row[ratio]) for ratio in (DENSE, *AT))] for row, of_row in figures.items()]
    return f"{title}\n\n{markdown_table(header, rows)}\n"


def _cell(forms: Mapping[str, Sequence[float]]) -> str:
    return " / ".join(f"{statistics.fmean(values):.1f}" for values in forms.values() if values)


def chart_of(figures: Figures, title: str, subtitle: str) -> Chart:
    """Return the plain figures over the share of the filters that is removed."""
    styles = line_styles(
        {row: {"SGD": "sgd", "SparseFW over sizes, taught": "sparsefw"}.get(row, row) for row in figures}
    )
    lines = []
    for row, of_row in figures.items():
        ratios = sorted(of_row)
        spreads = [spread_of(of_row[ratio]["plain"]) for ratio in ratios]
        lines.append(Line(row, row, "plain", styles[row], row != LIMIT, {"ratio": [100 * r for r in ratios]}, spreads))
    axis = Axis("ratio", "filters removed from every layer, in %", unit="%")
    return Chart(tuple(lines), (axis,), "test accuracy", title=title, subtitle=subtitle)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="without its variant, such as digits-resnet")
    parser.add_argument("--width", type=int, required=True, help="the base width of the recipe's network")
    parser.add_argument("--data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--name", help="of the results; default: sizes-RECIPE")
    args = parser.parse_args()
    study = Study(args.recipe, args.data, args.changes)
    stem = RESULTS / (args.name or f"sizes-{args.recipe}")
    for count, seed in enumerate(args.seeds, 1):
        study.add_seed(seed, args.width)
        seeds = f"mean over {count} seeds" if count > 1 else "one seed"
        write_record(stem.with_suffix(".json"), study.record())
        title = f"{args.recipe}: one training, all sizes, nothing retrained; {seeds}"
        text = render(study.figures, title)
        stem.with_suffix(".md").write_text(f"# {text}")
        print(text, flush=True)
        save_figure(
            draw_chart(chart_of(study.figures, "One training, all sizes", f"{args.recipe}, plain, {seeds}")), stem
        )


if __name__ == "__main__":
    main()
