"""A small anchor-free detector of circles, squares and triangles: network, images, loss, mAP; trained and shrunk in minutes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw import SFW, Sizes, compress, constrain

SIZE, SHAPES, STRIDES = 64, ("circle", "square", "triangle"), (4, 8)
SMALL = 20  # pixels: the finer level finds the shapes up to this side, the coarser one the others


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class Bottlenecks(nn.Module):
    """Two branches of convolutions side by side, the second one through a residual block, joined by a third (as in YOLO)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.left, self.right = conv(inputs, half, 1), conv(inputs, half, 1)
        self.block = nn.Sequential(conv(half, half), conv(half, half))
        self.join = conv(3 * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.left(x), self.right(x)
        return self.join(torch.cat([left, right, right + self.block(right)], 1))


class Detector(nn.Module):
    """Backbone, neck and a head per level; every cell of two feature maps predicts one box and a score per shape."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.fine = nn.Sequential(conv(3, w, 3, 2), conv(w, 2 * w, 3, 2), Bottlenecks(2 * w, 2 * w))
        self.coarse = nn.Sequential(conv(2 * w, 4 * w, 3, 2), Bottlenecks(4 * w, 4 * w))
        self.down_path = Bottlenecks(6 * w, 2 * w)
        self.reduce = conv(2 * w, 2 * w, 3, 2)
        self.up_path = Bottlenecks(6 * w, 4 * w)
        self.heads = nn.ModuleList(
            nn.Sequential(conv(c, 2 * w), nn.Conv2d(2 * w, 4 + len(SHAPES), 1)) for c in (2 * w, 4 * w)
        )
        for head in self.heads:
            nn.init.constant_(head[1].bias[4:], -4.0)  # nearly all cells are empty

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes (images, cells, 4) as left, top, right, bottom in pixels, and logits (images, cells, shapes)."""
        fine = self.fine(images)
        coarse = self.coarse(fine)
        fine = self.down_path(torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], 1))
        coarse = self.up_path(torch.cat([coarse, self.reduce(fine)], 1))
        maps = [head(x).flatten(2).mT for head, x in zip(self.heads, (fine, coarse), strict=True)]
        centres, strides = cells(images.shape[-1])
        reach = torch.cat([m[..., :4] for m in maps], 1).clamp(-6, 4).exp() * strides[:, None].to(images)
        centres = centres.to(images)
        boxes = torch.cat([centres - reach[..., :2], centres + reach[..., 2:]], -1)
        return boxes, torch.cat([m[..., 4:] for m in maps], 1)


def cells(size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Return the centres (cells, 2) of all cells in pixels, and the stride of each."""
    centres, strides = [], []
    for stride in STRIDES:
        at = torch.arange(size // stride) * stride + stride / 2
        y, x = torch.meshgrid(at, at, indexing="ij")
        centres.append(torch.stack([x, y], -1).flatten(0, 1))
        strides.append(torch.full((x.numel(),), float(stride)))
    return torch.cat(centres), torch.cat(strides)


def draw(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, boxes (count, 3, 4) and shapes (count, 3), -1 where there is none: one to three shapes per image."""
    g = torch.Generator().manual_seed(seed)

    def random(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    images = random(count, 3, 1, 1, low=-1, high=1).expand(count, 3, SIZE, SIZE)
    images = images + 0.25 * torch.randn(count, 3, SIZE, SIZE, generator=g)
    quadrant = torch.rand(count, 4, generator=g).argsort(1)[:, :3]  # shapes in different quadrants hardly overlap
    radius = random(count, 3, low=5, high=14)
    corner = torch.stack([quadrant % 2, quadrant // 2], -1) * (SIZE / 2)
    centre = (corner + random(count, 3, 2, low=8, high=SIZE / 2 - 8)).clamp(14, SIZE - 14)
    shapes = torch.randint(len(SHAPES), (count, 3), generator=g)
    shapes[torch.arange(3) >= torch.randint(1, 4, (count, 1), generator=g)] = -1
    colour = random(count, 3, 3, 1, 1, low=-2, high=2)
    grid = torch.arange(SIZE) + 0.5
    for i in range(3):
        dx = grid - centre[:, i, 0, None, None]
        dy = grid[:, None] - centre[:, i, 1, None, None]
        r, shape = radius[:, i, None, None], shapes[:, i, None, None]
        square = (dx.abs() < r) & (dy.abs() < r)
        inside = torch.where(shape == 0, dx**2 + dy**2 < r**2, square)
        inside = torch.where(shape == 2, square & (2 * dx.abs() < dy + r), inside) & (shape >= 0)
        images = torch.where(inside[:, None], colour[:, i] + 0.1 * images, images)
    return images, torch.cat([centre - radius[..., None], centre + radius[..., None]], -1), shapes


def overlap(a: Tensor, b: Tensor, generalised: bool = False) -> Tensor:
    """Return the intersection of boxes over their union; generalised, less the share of the hull that is in neither."""
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - shared
    if not generalised:
        return shared / union
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return shared / union - (hull - union) / hull


def loss(predicted: tuple[Tensor, Tensor], boxes: Tensor, shapes: Tensor) -> Tensor:
    """Return the focal loss of all scores plus that of the boxes of the cells near the centre of a shape."""
    (found, logits), (centres, strides) = predicted, cells()
    middle = (boxes[..., :2] + boxes[..., 2:]) / 2
    near = ((centres[:, None] - middle[:, None]).abs().amax(-1) < 1.2 * strides[:, None]) & (shapes >= 0)[:, None]
    is_small = (boxes[..., 2] - boxes[..., 0] <= SMALL)[:, None]
    near &= torch.where(is_small, strides[:, None] == STRIDES[0], strides[:, None] == STRIDES[1])
    which = near.float().argmax(-1)  # (images, cells): the shape that a cell is responsible for
    busy = near.any(-1)
    wanted = F.one_hot(shapes.gather(1, which).clamp(min=0), len(SHAPES)) * busy[..., None]
    entropy = F.binary_cross_entropy_with_logits(logits, wanted.float(), reduction="none")
    focal = ((wanted - logits.sigmoid()).abs() ** 2 * entropy).sum()
    boxes_of_cells = boxes.gather(1, which[..., None].expand(-1, -1, 4))
    apart = (1 - overlap(found, boxes_of_cells, generalised=True))[busy].sum()
    return (focal + 2 * apart) / busy.sum().clamp(min=1)


def suppressed(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the boxes that non-maximum suppression keeps, best first."""
    order = scores.argsort(descending=True, stable=True)
    overlaps = overlap(boxes[order, None], boxes[order]) > threshold
    alive = torch.ones(len(order), dtype=torch.bool)
    for i, row in enumerate(overlaps):
        if alive[i]:
            alive[i + 1 :] &= ~row[i + 1 :]
    return order[alive]


def detections(predicted: tuple[Tensor, Tensor], least: float = 0.05, most: int = 50) -> list[dict[str, Tensor]]:
    """Return boxes, scores and labels of every image: the best `most` that score at least `least`, without duplicates."""
    found = []
    for boxes, logits in zip(*predicted, strict=True):
        scores, places = logits.sigmoid().flatten().topk(min(most, logits.numel()))
        places = places[scores > least]
        scores = scores[scores > least]
        labels = places % len(SHAPES)
        boxes = boxes[places // len(SHAPES)]
        kept = suppressed(boxes + 1e4 * labels[:, None], scores, 0.5)  # shapes of other kinds are far away
        found.append({"boxes": boxes[kept], "scores": scores[kept], "labels": labels[kept]})
    return found


def mean_average_precision(
    found: list[dict[str, Tensor]], boxes: Tensor, shapes: Tensor, least_overlap: float = 0.5
) -> float:
    """Return the mean over the shapes of the area under precision against recall, precision made to fall."""
    areas = []
    for shape in range(len(SHAPES)):
        hits: list[tuple[float, bool]] = []
        for one, true, of in zip(found, boxes, shapes, strict=True):
            left = true[of == shape]
            chosen = one["labels"] == shape
            order = one["scores"][chosen].argsort(descending=True)
            for box, score in zip(one["boxes"][chosen][order], one["scores"][chosen][order], strict=True):
                fits = overlap(box, left) if len(left) else torch.zeros(1)
                hit = float(fits.max()) >= least_overlap
                hits.append((float(score), hit))
                if hit:  # every true box is found once
                    left = torch.cat([left[: int(fits.argmax())], left[int(fits.argmax()) + 1 :]])
        total = int((shapes == shape).sum())
        right = torch.tensor([hit for _, hit in sorted(hits, key=lambda pair: -pair[0])], dtype=torch.float64).cumsum(0)
        precision = right / torch.arange(1, len(right) + 1)
        falling = precision.flip(0).cummax(0).values.flip(0) if len(right) else precision
        recall = torch.cat([right.new_zeros(1), right / max(total, 1)])
        areas.append(float((recall.diff() * falling).sum()))
    return sum(areas) / len(areas)


def train(method: str, images: Tensor, boxes: Tensor, shapes: Tensor, steps: int, width: int = 16) -> Detector:
    """Return a detector trained by "SGD", or by "SFW over sizes": the whole network and a smaller one see every image."""
    torch.manual_seed(0)
    net = Detector(width)
    usual = dict(lr=0.05, momentum=0.9, weight_decay=5e-4)
    optimizer: torch.optim.Optimizer
    if method == "SGD":
        optimizer = torch.optim.SGD(net.parameters(), **usual)
    else:
        groups = constrain(net, "filters", example=images[:2], steps=steps, renewals=8, report=None)
        optimizer = SFW(groups, **usual)
        sizes = Sizes(net, "filters", example=images[:2], distribution="logarithm")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, usual["lr"], steps, pct_start=0.1, cycle_momentum=False)
    for step in range(steps):
        net.train().zero_grad()
        chosen = torch.randint(len(images), (32,))
        x, true = images[chosen], (boxes[chosen], shapes[chosen])
        if method == "SGD":
            loss(net(x), *true).backward()
        else:
            with sizes.mixed(step, draws=2):
                small, whole = zip(*(part.chunk(2) for part in net(x.repeat(2, 1, 1, 1))), strict=True)
                (loss(small, *true) / 2 + loss(whole, *true) / 2).backward()
        optimizer.step()
        schedule.step()
    return net.eval()


def main(steps: int = 400) -> None:
    net = train("SFW over sizes", *draw(2000, seed=1), steps=steps)
    images, *true = draw(200, seed=2)
    small = compress(net, filters=0.5, calibration=draw(500, seed=1)[0].split(100))
    print(small)
    with torch.no_grad():
        for name, model in (("dense", net), ("half of the filters removed", small.model)):
            print(f"mAP@0.5, {name}: {100 * mean_average_precision(detections(model(images)), *true):.1f} %")


if __name__ == "__main__":
    main()
