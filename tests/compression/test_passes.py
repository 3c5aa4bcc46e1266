"""Resumed passes: the numbers of whole ones, bit for bit, from a number of calls that grows with the depth and not its square."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sparsefw.compression import compress
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery import moments, passes, refit
from sparsefw.compression.recovery.calibration import NotFiniteError
from sparsefw.compression.recovery.passes import ResumedPasses, WholePasses
from sparsefw.compression.settings import Settings
from sparsefw.kinds import kind_of

WIDTH = 12


class Net(nn.Module):
    """Named parts, and a function of the network and its input."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def linear(outputs: int = WIDTH) -> nn.Linear:
    return nn.Linear(WIDTH, outputs)


def chain(depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(linear(), nn.ReLU()) for _ in range(depth)), linear(3))


def network(run: Callable[..., Any], names: str = "ab", **others: Callable[[], nn.Module]) -> Net:
    """A network of linear layers of these names, a last one and other parts."""
    torch.manual_seed(0)
    return Net(run, **{name: linear() for name in names}, head=linear(3), **{n: make() for n, make in others.items()})


def twice(net: Any, x: Tensor) -> Tensor:
    """One activation and one norm called at several places."""
    return net.head(net.act(net.norm(net.b(net.act(net.norm(net.a(x)))))))


def in_place(net: Any, x: Tensor) -> Tensor:
    """What a layer read and what it gave is changed afterwards, and used again."""
    y = net.a(x)
    y += x
    z = net.b(y.relu_())
    y[:, 0] = 0
    return net.head(functional.relu(z.add_(y), inplace=True))


def by_name(net: Any, x: Tensor) -> dict[str, Any]:
    """Dicts and tuples between modules."""
    states = net.split(x)
    return {"out": (net.head(states["all"][0] * states["gate"].sigmoid()), states)}


def split(net: Any, x: Tensor) -> dict[str, Any]:
    return {"all": (net.a(x).tanh(), None), "gate": net.b(x)}


def attention(net: Any, x: Tensor) -> Tensor:
    x = x.unflatten(1, (3, 4)).repeat(1, 1, 3)
    q, k, v = (part(x).unflatten(2, (2, -1)).transpose(1, 2) for part in (net.q, net.k, net.v))
    y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return net.head((x + net.o(y)).mean(1))


def checkpointed(net: Any, x: Tensor) -> Tensor:
    y = checkpoint(lambda t: net.b(net.a(t).relu()), x, use_reentrant=False)
    return net.head(y.relu())


def dropped(net: Any, x: Tensor) -> Tensor:
    y = functional.dropout(net.a(x).relu(), 0.5, net.training)
    return net.head(net.drop(net.b(y)).relu())


def normed_by_batch(net: Any, x: Tensor) -> Tensor:
    return net.head(net.n2(net.b(net.n1(net.a(x)).relu())).relu())


def made_on_the_way(net: Any, x: Tensor) -> Tensor:
    """A constant that operations in place change."""
    bias = torch.tensor([0.5])
    bias += net.a(x).mean()
    return net.head(net.b(x + bias).relu())


def by_number(net: Any, x: Tensor) -> Tensor:
    """What runs depends on activations."""
    y = net.a(x).relu()
    return net.head(net.b(y).relu() if y[0, 0] > 0.1 else net.b(y.tanh()))


def learned(net: Any, x: Tensor) -> Tensor:
    """A layer reads a parameter."""
    queries = net.a(net.table.weight)
    return net.head(net.b(x @ queries.T).relu())


def decides(net: Any, x: Tensor) -> Tensor:
    """The largest activations go on: the cut network follows the dense one in this."""
    y = net.a(x)
    best = y.square().sum(0).topk(6).indices
    return net.head(net.b(x * y[:, best].mean(1, keepdim=True)).relu())


def writes(net: Any, x: Tensor) -> Tensor:
    """The state of the network changes in every pass."""
    y = net.a(x).relu()
    net.norm.running.copy_(y.mean(0))
    return net.head(net.b(y - net.norm.running).relu())


def reads_early(net: Any, x: Tensor) -> Tensor:
    """A copy of a weight is made before its layer is reached."""
    early = net.b.weight.double().mean().float()
    return net.head(net.b(net.a(x).relu()).relu() + early)


def escapes(net: Any, x: Tensor) -> Tensor:
    """Numbers leave torch, and come back."""
    y = net.a(x).relu()
    scale = torch.tensor(y.detach().tolist()).mean()
    return net.head(net.b(y * scale).relu())


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(WIDTH))


NORM = partial(nn.BatchNorm1d, WIDTH)
NETWORKS = {
    "a module called twice": partial(network, twice, act=nn.GELU, norm=partial(nn.LayerNorm, WIDTH)),
    "operations in place": partial(network, in_place),
    "dicts and tuples": partial(network, by_name, "", split=lambda: Net(split, a=linear(), b=linear())),
    "attention": partial(network, attention, "qkvo"),
    "checkpoints": partial(network, checkpointed),
    "dropout": partial(network, dropped, drop=nn.Dropout),
    "batch norms": partial(network, normed_by_batch, n1=NORM, n2=NORM),
    "learned queries": partial(network, learned, table=partial(nn.Embedding, WIDTH, WIDTH)),
    "a constant changed in place": partial(network, made_on_the_way),
}
WHOLE = {
    "numbers that leave torch": partial(network, escapes),
    "decisions": partial(network, decides),
    "numbers read from activations": partial(network, by_number),
    "state that changes": partial(network, writes, norm=Running),
}
DIFFERENT = {
    "a weight read early": partial(network, reads_early),
}


def batches(count: int = 9) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6 + i % 2, WIDTH, generator=generator) for i in range(count)]


def stage_of(net: nn.Module, calibration: Any, kind: str, ratio: float = 0.5) -> tuple[Pipeline, Callable[[], Any]]:
    pipeline = Pipeline(net.eval(), Settings(calibration=calibration, progress=False))
    stage = pipeline.stage(kind_of(kind), pipeline.dense)
    counts = stage.counts_for(ratio)
    return pipeline, lambda: stage.cut(counts)


@pytest.fixture
def watched(monkeypatch):
    """Both ways to recover by name, and whether resumed passes agreed, how many batches had a tape, how many there were."""
    seen: list[tuple[bool, int, int]] = []

    class Watched(ResumedPasses):
        def agree(self) -> bool:
            agree = super().agree()
            seen.append((agree, sum(waiting.has_tape for waiting in self._waiting), len(self._waiting)))
            return agree

    monkeypatch.setattr(passes, "ResumedPasses", Watched)
    return seen


def whole(dense, cuts, order, calibration, recover, following=True) -> None:
    recover(WholePasses(dense, cuts, calibration, following))


def recovered(pipeline: Pipeline, cut: Any, refitting: bool, monkeypatch, how: Any) -> dict[str, Tensor]:
    with monkeypatch.context() as patch:
        for module in (refit, moments):
            patch.setattr(module, "recover_in_passes", how)
        pipeline.recover(pipeline.dense, [cut], refitting)
    return cut.model.state_dict()


def assert_same(
    build: Callable[[], nn.Module], kind: str, refitting: bool, monkeypatch, calibration: list[Tensor] | None = None
) -> None:
    pipeline, make = stage_of(build(), calibration or batches(), kind)
    cut = make().model.state_dict()
    expected = recovered(pipeline, make(), refitting, monkeypatch, whole)
    got = recovered(pipeline, make(), refitting, monkeypatch, passes.recover_in_passes)
    assert any(not torch.equal(cut[name], value) for name, value in expected.items())
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("refitting", [True, False], ids=["refit", "plain"])
@pytest.mark.parametrize("kind", ["rank", "weights"])
@pytest.mark.parametrize("name", NETWORKS)
def test_resumed_passes_give_the_numbers_of_whole_ones(name, kind, refitting, watched, monkeypatch):
    assert_same(NETWORKS[name], kind, refitting, monkeypatch)
    assert watched == [(True, 9, 9)] * (refitting or name != "batch norms")


@pytest.mark.parametrize("refitting", [True, False], ids=["refit", "plain"])
@pytest.mark.parametrize("kind", ["rank", "filters", "weights"])
def test_images_whose_layers_lose_channels(small_resnet, kind, refitting, watched, monkeypatch):
    images = [torch.randn(3 + i % 2, 1, 8, 8) for i in range(5)]
    assert_same(lambda: small_resnet, kind, refitting, monkeypatch, images)
    assert watched == [(True, 5, 5)] * refitting


@pytest.mark.parametrize("name", WHOLE)
def test_batches_that_no_tape_repeats_are_run_whole(name, watched, monkeypatch):
    assert_same(WHOLE[name], "rank", True, monkeypatch)
    assert watched == [(True, 0, 9)]


@pytest.mark.parametrize("name", DIFFERENT)
def test_whole_passes_are_made_where_resumed_ones_differ(name, watched, monkeypatch):
    assert_same(DIFFERENT[name], "rank", True, monkeypatch)
    assert watched == [(False, 9, 9)]


@pytest.mark.parametrize("kept_bytes", [0, 1500, 2**30])
def test_passes_beyond_the_limit_start_anew(kept_bytes):
    pipeline, make = stage_of(chain(4), batches(), "rank")
    cut = make()
    order = [name for name, module in pipeline.dense.named_modules() if isinstance(module, nn.Linear)]
    limited = ResumedPasses(pipeline.dense, [cut], order, pipeline.calibration, kept_bytes=kept_bytes)
    plain = WholePasses(pipeline.dense, [cut], pipeline.calibration)
    most = 0
    for name in order:
        for resumed, expected in zip(limited.at(name), plain.at(name), strict=True):
            assert resumed.number == expected.number
            assert torch.equal(resumed.output, expected.output)
            assert torch.equal(*(next(reached.inputs) for reached in (resumed, expected)))
        most = max(most, sum(playback.bytes for waiting in limited._waiting for playback in waiting.playbacks))
    waiting = [len(waiting.playbacks) for waiting in limited._waiting]
    assert most <= kept_bytes
    assert sum(waiting) > 0 or not kept_bytes
    assert (0 in waiting) == (kept_bytes < 2**30)


def calls_of_layers(depth: int, refitting: bool, calibration: list[Tensor]) -> tuple[int, int]:
    """How often linear layers are run in a recovery, and how often the batches are read."""
    read = []

    class Loader:
        def __iter__(self):
            for batch in calibration:
                read.append(batch)
                yield batch

    pipeline, make = stage_of(chain(depth), Loader(), "rank")
    cut = make()
    read.clear()
    with Products() as products:
        pipeline.recover(pipeline.dense, [cut], refitting)
    return products.count, len(read)


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts products in single precision, which those of layers are: sums are made in double."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm) and out.dtype == torch.float32
        return out


@pytest.mark.parametrize("refitting", [True, False], ids=["refit", "plain"])
def test_calls_grow_with_the_depth(refitting):
    """Of layers: by as many for every layer more. Batches are read as often for any depth."""
    calibration = [torch.randn(8, WIDTH) for _ in range(6)]
    counts, reads = zip(*(calls_of_layers(depth, refitting, calibration) for depth in (2, 4, 6, 12)), strict=True)
    assert counts[1] - counts[0] == counts[2] - counts[1]
    assert counts[3] - counts[2] == 3 * (counts[2] - counts[1])
    assert len(set(reads)) == 1


def test_what_fails_leaves_the_network_as_it_is():
    """Also the statistics of its batch norms, which passes replace by those of the batch."""
    net = NETWORKS["batch norms"]().eval()
    before = copy.deepcopy(net.state_dict())
    pipeline, make = stage_of(net, batches(), "rank")
    statistics = copy.deepcopy(pipeline.dense.state_dict())
    cut = make()
    with torch.no_grad():
        cut.model.get_submodule("n1").weight.fill_(torch.nan)
    with pytest.raises(NotFiniteError):
        pipeline.recover(pipeline.dense, [cut], True)
    for state, known in ((net.state_dict(), before), (pipeline.dense.state_dict(), statistics)):
        assert all(torch.equal(state[name], value) for name, value in known.items())
    hooked = [m for m in (*pipeline.dense.modules(), *cut.model.modules()) if m._forward_hooks or m._forward_pre_hooks]
    assert not hooked


def test_a_batch_that_does_not_fit_says_so():
    pipeline, make = stage_of(chain(2), batches(), "rank")
    pipeline.calibration._batches.append(torch.zeros(4, WIDTH + 1))
    with pytest.raises(ValueError, match="calibration does not fit the model"):
        pipeline.recover(pipeline.dense, [make()], True)


def assert_whole_after_rank(net: nn.Module, calibration: list[Any], monkeypatch) -> None:
    """Compress as users do; the weights are those of whole passes."""
    got = compress(net.eval(), rank=0.5, calibration=calibration, refit=True).model.state_dict()
    with monkeypatch.context() as patch:
        for module in (refit, moments):
            patch.setattr(module, "recover_in_passes", whole)
        expected = compress(net, rank=0.5, calibration=calibration, refit=True).model.state_dict()
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def by_lengths(net: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Python counts; the numbers come out of the input without an operation."""
    mask = torch.zeros(x.shape[:2])
    for i, length in enumerate(lengths.tolist()):
        mask[i, :length] = 1
    return net.head(net.b(net.a(x).relu() * mask[..., None]).relu().sum(1))


def test_numbers_of_inputs_that_leave_torch(monkeypatch):
    """The first batches look like all others, and their numbers are the same."""
    lengths = [[6] * 8] * 2 + [[1, 2, 1, 3, 1, 2, 1, 1]] * 4
    calibration = [{"x": torch.randn(8, 6, WIDTH), "lengths": torch.tensor(each)} for each in lengths]
    assert_whole_after_rank(network(by_lengths), calibration, monkeypatch)


class Graph:
    """Prints alike for many graphs."""

    def __init__(self, edges: Tensor) -> None:
        self.edges = edges

    def __repr__(self) -> str:
        return "Graph()"


def test_objects_among_the_inputs(monkeypatch):
    def run(net: Any, x: Tensor, graph: Graph) -> Tensor:
        edges = graph.edges[: len(x), : len(x)]
        return net.head((edges @ net.b((edges @ net.a(x)).relu())).relu())

    graphs = [Graph((torch.rand(8, 8) > 0.7).float()) for _ in range(5)]
    calibration = [
        {"x": torch.randn(8, WIDTH), "graph": graph} for graph in (graphs[0], *graphs)
    ]  # two alike come first
    assert_whole_after_rank(network(run), calibration, monkeypatch)


def test_state_that_only_short_batches_leave(monkeypatch):
    """In a tensor that is no buffer: the check looks at batches of every length."""
    kept = torch.zeros(WIDTH)

    def run(net: Any, x: Tensor) -> Tensor:
        y = net.a(x).relu()
        if len(x) < 8:
            kept.copy_(y.mean(0))
            y = y - kept.numpy().mean()
        return net.head(net.b(y).relu())

    assert_whole_after_rank(network(run), [torch.randn(n, WIDTH) for n in (8, 8, 8, 5, 5, 5)], monkeypatch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_that_are_read_early_in_half_precision(dtype, monkeypatch):
    def run(net: Any, x: Tensor) -> Tensor:
        early = net.b.weight.float().square().mean().to(x.dtype)
        return net.head(net.b(net.a(x).relu()).relu() + early)

    calibration = [torch.randn(8, WIDTH, dtype=dtype) for _ in range(6)]
    assert_whole_after_rank(network(run).to(dtype), calibration, monkeypatch)


def test_recovery_within_autocast(monkeypatch):
    """Autocast keeps casts of weights, which are those of the weights before their recovery."""
    net = chain(3).requires_grad_(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_whole_after_rank(net, [torch.randn(8, WIDTH) for _ in range(6)], monkeypatch)
        assert torch.is_autocast_cache_enabled()


def test_whole_numbers_that_are_read_from_inputs(watched):
    """Tapes of batches that look alike differ by the numbers; each batch gets one that fits."""

    def run(net: Any, ids: Tensor, mask: Tensor) -> Tensor:
        y = net.a(net.table(ids)) * mask.unsqueeze(-1)
        for _ in range(int(ids[0, 0]) % 3):
            y = y + 0.5 * y.sin()
        if mask.all():
            y = y.relu()
        return net.head(y[mask].relu())

    net = network(run, "a", table=partial(nn.Embedding, 20, WIDTH))
    generator = torch.Generator().manual_seed(0)
    calibration = [
        {"ids": torch.randint(20, (8, length), generator=generator), "mask": torch.ones(8, length, dtype=torch.bool)}
        for length in (5, 6, 5, 5, 5, 5)
    ]
    for batch in calibration[2:4]:
        batch["mask"][1:3, -2:] = False
    compress(net.eval(), rank=0.5, calibration=calibration, refit=True)
    assert watched == [(True, 6, 6)]
