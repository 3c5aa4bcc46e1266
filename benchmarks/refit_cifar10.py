"""ResNet-18 on CIFAR-10: train once by SGD and by SFW on a GPU, then compress at many ratios, plain and refit.

    python benchmarks/refit_cifar10.py DATA [--epochs 100] [--seeds 0 1] [--json FILE]

DATA holds the Parquet files of the Hugging Face hub's `cifar10` (columns img, label); needs pyarrow and pillow. Batch 128, lr 0.1
linearly to 0, momentum 0.9, weight decay 5e-4 on what is unconstrained, crops and flips, bfloat16 autocast. Accuracies are of
the 10,000 test images; calibration: 4,096 training images without labels.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw import SFW, constrain, curve
from sparsefw.models import build

CURVES = {
    "filters, masked, l1": ("filters", [0.5, 0.6, 0.7, 0.8, 0.9], dict(form="masked")),
    "filters, removed, l1": ("filters", [0.5, 0.6, 0.7, 0.8, 0.9], dict(form="removed")),
    "filters, removed, activation": ("filters", [0.5, 0.6, 0.7, 0.8, 0.9], dict(form="removed", score="activation")),
    "rank": ("rank", [0.6, 0.7, 0.8, 0.9, 0.95], dict()),
    "weights": ("weights", [0.8, 0.9, 0.95, 0.97, 0.98, 0.99], dict()),
}


def shard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image
    from pyarrow import parquet

    table = parquet.read_table(path)
    images = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table["img"].to_pylist()]
    return np.stack(images), np.array(table["label"])


def read(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    with ProcessPoolExecutor() as pool:
        parts = list(pool.map(shard, sorted(folder.glob(f"{part}-*.parquet"))))
    x = torch.from_numpy(np.concatenate([images for images, _ in parts])).cuda().permute(0, 3, 1, 2).float() / 255
    mean, deviation = (
        torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
    )
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts])).cuda()
    return ((x - mean) / deviation).contiguous(memory_format=torch.channels_last), labels


def augmented(x: Tensor) -> Tensor:
    """Every image shifted by up to 4 pixels and mirrored at random."""
    n, i = len(x), torch.arange(32, device="cuda")
    dx, dy = torch.randint(9, (2, n, 1), device="cuda")
    mirrored = torch.rand(n, 1, device="cuda") < 0.5
    rows, columns = dy + i, dx + torch.where(mirrored, 31 - i, i)
    image = torch.arange(n, device="cuda").view(-1, 1, 1, 1)
    channel = torch.arange(3, device="cuda").view(1, -1, 1, 1)
    return functional.pad(x, (4, 4, 4, 4))[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def train(x: Tensor, y: Tensor, method: str, epochs: int, seed: int) -> nn.Module:
    """The whole step, forward to update, is one CUDA graph after 8 ordinary steps."""
    torch.manual_seed(seed)
    model = build("resnet18", classes=10, stem="cifar").cuda().to(memory_format=torch.channels_last).train()
    lr = torch.tensor(0.1, device="cuda")
    free = [{"params": list(model.named_parameters()), "region": None}]
    groups = free if method == "SGD" else constrain(model, "filters", k=0.2, w=20.0, report=None)
    optimizer = SFW(groups, lr=lr, momentum=0.9, weight_decay=5e-4)
    inputs, labels, net = (
        augmented(x[:128]).contiguous(memory_format=torch.channels_last),
        y[:128].clone(),
        torch.compile(model),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()

    graph, done, total = torch.cuda.CUDAGraph(), 0, epochs * (len(x) // 128)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), device="cuda").split(128)[: len(x) // 128]:
            inputs.copy_(augmented(x[batch]))
            labels.copy_(y[batch])
            lr.fill_(0.1 * (1 - done / total))
            if done < 8:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    step()
                torch.cuda.current_stream().wait_stream(side)
            else:
                if done == 8:
                    with torch.cuda.graph(graph):
                        step()
                graph.replay()
            done += 1
    return model.eval()


def accuracy_on(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        right = sum((model.eval()(a).argmax(1) == b).sum() for a, b in zip(x.split(1000), y.split(1000), strict=True))
        return 100 * float(right) / len(x)

    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    (x, y), accuracy = read(args.data, "train"), accuracy_on(*read(args.data, "test"))
    result = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "runs": [],
    }
    for seed in args.seeds:
        for method in ("SGD", "SFW filters k=0.2 w=20"):
            start = time.perf_counter()
            model = train(x, y, method.split()[0], args.epochs, seed)
            print(f"{method}, seed {seed}: trained in {time.perf_counter() - start:.0f} s", flush=True)
            calibration = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:4096].cuda()].split(256)
            for name, (kind, at, how) in CURVES.items():
                start = time.perf_counter()
                found = curve(model, kind, at, calibration=calibration, evaluate=accuracy, **how)
                print(f"{name} ({time.perf_counter() - start:.0f} s)\n{found}", flush=True)
                result["runs"].append({"method": method, "seed": seed, "curve": name, **found.to_json()})
            if args.json:
                args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
