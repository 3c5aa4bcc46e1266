"""What a network of SGD learns about its sizes in a few epochs: from the labels, or from its own outputs.

    python benchmarks/finetuning.py digits-resnet --seeds 0 1 2 --set model.arguments.width=16

Trains SGD, and fine-tunes it over sizes by `sparsefw finetune`, untaught and taught, for several numbers of epochs; taught ones
cost twice as much. Filters are then physically removed, and nothing is trained again. Prints a table, and writes it with all
figures and commands. Run folders are under runs/; finished trainings are not repeated, and killed ones continue.
"""

from __future__ import annotations

import argparse
import json

from shared import RESULTS, write_record
from sizes import Study, render
from sparsefw.train.config import TAUGHT

UNTAUGHT = {"both": False, "targets": "labels", "draws": 1, "distribution": "width"}
OBJECTIVES = {"untaught": UNTAUGHT, "taught": TAUGHT}
EPOCHS = {"untaught": (5, 10, 20), "taught": (5, 10)}


def add_seed(study: Study, seed: int) -> None:
    run = study.train(f"{study.recipe}-sgd", f"finetuning/{study.recipe}-sgd-seed{seed}", seed)
    study.add_curve("SGD", run)
    for objective, settings in OBJECTIVES.items():
        changes = [f"sizes.{key}={json.dumps(value)}" for key, value in settings.items()]
        for epochs in EPOCHS[objective]:
            tuned = study.finetune(run, epochs, f"{run}-{objective}{epochs}", *changes)
            study.add_curve(f"then {epochs} epochs, {objective}", tuned)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="without its variant, such as digits-resnet")
    parser.add_argument("--data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    args = parser.parse_args()
    study = Study(args.recipe, args.data, args.changes)
    stem = RESULTS / f"finetuning-{args.recipe}"
    for count, seed in enumerate(args.seeds, 1):
        add_seed(study, seed)
        seeds = f"mean over {count} seeds" if count > 1 else "one seed"
        text = render(study.figures, f"{args.recipe}: SGD, then a few epochs over sizes; {seeds}")
        stem.with_suffix(".md").write_text(f"# {text}")
        write_record(stem.with_suffix(".json"), study.record())
        print(text, flush=True)


if __name__ == "__main__":
    main()
