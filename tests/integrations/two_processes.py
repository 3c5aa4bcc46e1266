"""Run by test_accelerate.py through torchrun: trains in every process, and writes down what each ends with."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from integrations.plain_loop import EPOCHS
from integrations.test_accelerate import Training
from sparsefw.integrations.accelerate import training_steps


def main(folder: Path) -> None:
    training = Training()
    accelerator = training.accelerator
    training.train()
    steps = training_steps(accelerator, training.loader, EPOCHS)
    planned = {group["rescale"].steps for group in training.optimizer.param_groups if group["region"]}
    state = accelerator.unwrap_model(training.net).state_dict()
    parameters = {name: value for name, value in state.items() if "running" not in name}
    torch.save(
        {"steps": steps, "planned": planned, "parameters": parameters},
        folder / f"{accelerator.process_index}.pt",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
