"""One process of a torch.distributed job (test_side_by_side.py): python sliced_worker.py FOLDER RANK SIZE"""

from __future__ import annotations

import sys

import torch

from sparsefw import Sizes


def main(folder: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    results = []
    for model, example, ends, ratios, batches, compiled in torch.load(f"{folder}/tasks.pt", weights_only=False):
        sizes = Sizes(model, "filters", example=example)
        sizes.choose(*ratios)
        torch._dynamo.reset()
        net = torch.compile(model, backend="aot_eager") if compiled else model
        with sizes.side_by_side(ends):
            outputs = net(batches[rank])
            outputs.square().sum().backward()
        results.append((outputs.detach(), [p.grad for p in model.parameters()], dict(model.named_buffers())))
    torch.save(results, f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
