"""Train a small BERT to tell from which package of src/ code comes, by AdamW and by SFW, and remove its hidden units."""

import contextlib
import re
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparsefw import SFW, Sizes, constrain, curve
from sparsefw.models import import_torchvision

with contextlib.suppress(ModuleNotFoundError):
    import_torchvision()  # transformers imports it, and its usual wheel does not fit a torch for CPUs
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH, WIDTH = 1000, 24, 64
STEPS, BATCH, SHARES = 500, 32, (0.3, 0.5, 0.7, 0.9)
LR = {"AdamW": 1e-3, "SFW": 2e-3}  # the best of each
PACKAGES = ("compression", "geometry", "models", "optim", "report", "reproduce", "sweep", "train")
SOURCE = Path(__file__).parents[1] / "src" / "sparsefw"


def read() -> tuple[Tensor, Tensor]:
    """Return pieces of code as numbers of words, and the package of each."""
    texts = ["\n".join(path.read_text() for path in sorted((SOURCE / name).rglob("*.py"))) for name in PACKAGES]
    words = [re.findall(r"\w+|[^\w\s]", text) for text in texts]
    common = Counter(word for of_package in words for word in of_package).most_common(WORDS - 1)
    number = {word: i + 1 for i, (word, _) in enumerate(common)}
    coded = [torch.tensor([number.get(word, 0) for word in of_package]) for of_package in words]
    pieces = [codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH) for codes in coded]
    return torch.cat(pieces), torch.cat([torch.full((len(of),), i) for i, of in enumerate(pieces)])


PIECES, LABELS = read()
IS_TEST = torch.arange(len(PIECES)) % 5 == 0
TRAIN, TEST = (PIECES[~IS_TEST], LABELS[~IS_TEST]), (PIECES[IS_TEST], LABELS[IS_TEST])


def network() -> nn.Module:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH, num_labels=len(PACKAGES), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    return 100 * float((net.eval()(TEST[0]).logits.argmax(1) == TEST[1]).float().mean())


def train(method: str, kind: str = "neurons", over_sizes: bool = False, steps: int = STEPS, seed: int = 0) -> nn.Module:
    """Return a network trained by "AdamW" or "SFW"; over sizes, half of every batch sees a network without some of its units."""
    torch.manual_seed(seed)
    net, example = network(), TRAIN[0][:2]
    if method == "AdamW":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=LR[method])
    else:  # what is constrained by SFW, the rest by AdamW
        groups = constrain(net, kind, example=example, steps=steps, report=None)
        optimizer = SFW(groups, lr=LR[method], rest="adamw", weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(10 * (i + 1) / steps, 1 - i / steps)
    )  # warm-up
    sizes = Sizes(net, kind, example=example) if over_sizes else None
    for step in range(steps):
        chosen = torch.randint(len(TRAIN[1]), (BATCH,))
        net.train().zero_grad()
        if sizes is None:
            cross_entropy(net(TRAIN[0][chosen]).logits, TRAIN[1][chosen]).backward()
        else:
            with sizes.mixed(step):
                cross_entropy(net(TRAIN[0][chosen]).logits, TRAIN[1][chosen]).backward()
        optimizer.step()
        schedule.step()
    return net


def calibration() -> list[Tensor]:
    return list(TRAIN[0][:: len(TRAIN[0]) // 500].split(100))


if __name__ == "__main__":
    for method in ("AdamW", "SFW"):
        net = train(method)
        print(f"trained once by {method}, hidden units removed, never retrained: accuracy in % and size")
        print(curve(net, "neurons", SHARES, form="removed", calibration=calibration(), evaluate=accuracy))
