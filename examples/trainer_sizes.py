"""Train the BERT of bert_classifier.py by the Trainer of transformers: by AdamW and by SFW over sizes. A minute on a CPU core."""

# Before transformers, which imports a torchvision that may not fit this torch:
from sparsefw.integrations.transformers import SparseFWTrainer

# isort: split
import torch
from transformers import Trainer, TrainingArguments

from bert_classifier import LR, SHARES, TRAIN, accuracy, calibration, network
from sparsefw import curve

STEPS, BATCH = 400, 32
DATA = [{"input_ids": piece, "labels": label} for piece, label in zip(*TRAIN, strict=True)]


def train(method: str, steps: int = STEPS, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    net = network()
    arguments = TrainingArguments(
        output_dir="runs/trainer", max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=LR[method.split()[0]],
        warmup_steps=steps // 10, weight_decay=0.01, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    if method == "AdamW":
        trainer: Trainer = Trainer(net, arguments, train_dataset=DATA)
    else:
        trainer = SparseFWTrainer(
            net, arguments, train_dataset=DATA, kind="neurons", example=TRAIN[0][:2], constrained={"report": None}
        )
    trainer.train()
    return net


if __name__ == "__main__":
    for method in ("AdamW", "SFW over sizes"):
        net = train(method)
        print(f"trained once by {method}, hidden units removed, never retrained: accuracy in % and size")
        print(curve(net, "neurons", SHARES, form="removed", calibration=calibration(), evaluate=accuracy))
