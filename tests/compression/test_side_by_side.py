"""One pass over a batch of several sizes computes, and learns, what a pass for each size would."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from compression.networks import ROWS, X, mlp, normed, unnormed
from compression.test_sizes import FAST, grouped, is_unchanged, scaled, state, vit
from compression.zoo import ZOO, Architecture, Net, outputs
from sparsefw import SFW, Sizes
from sparsefw.compression.in_place.side_by_side import MOST_PARTS
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.models import build

# The last slice sees the whole network. Thirds and the like are no equal parts of a batch of 16.
ENDS = {"halves": ([0.5], [0.6]), "quarters": ([0.25, 0.5], [0.3, 0.8]), "odd": ([3 / 16, 0.57], [0.8, 0.1])}


def plain() -> nn.Module:
    """Convolutions without biases before norms; the last norm has no scales."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, bias=False),
        nn.BatchNorm2d(12, affine=False), nn.ReLU(), nn.Conv2d(12, 4, 1, bias=False), nn.InstanceNorm2d(4, affine=True),
    )  # fmt: skip


NETWORKS = {"normed": normed, "unnormed": unnormed, "grouped": grouped, "plain": plain}


def many(images: int = 16) -> Tensor:
    return torch.randn(images, *X.shape[1:], generator=torch.Generator().manual_seed(1)).double()


def slices(x: Tensor, ends: list[float]) -> tuple[Tensor, ...]:
    return x.tensor_split([round(end * len(x)) for end in ends])


def one_by_one(model: nn.Module, sizes: Sizes, ends: list[float], ratios: list[float], x: Tensor) -> Tensor:
    """Outputs of the slices, each in a pass of its own; gradients of the sum of their squares are added up."""
    *small, whole = slices(x, ends)
    found = []
    for part, ratio in zip(small, ratios, strict=True):
        with sizes.smaller(ratio):
            found.append(model(part))
            found[-1].square().sum().backward()
    found.append(model(whole))
    found[-1].square().sum().backward()
    return torch.cat(found)


def side_by_side(net: nn.Module, sizes: Sizes, ends: list[float], ratios: list[float], x: Tensor) -> Tensor:
    sizes.choose(*ratios)
    with sizes.side_by_side(ends):
        found = net(x)
        found.square().sum().backward()
    return found


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("cut", ENDS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_gradients_and_statistics_are_those_of_a_pass_for_each_size(network, training, cut):
    ends, ratios = ENDS[cut]
    model = NETWORKS[network]().double().train(training)
    apart = copy.deepcopy(model)
    sizes = Sizes(model, "filters", example=X.double())
    assert sizes.needs_passes is None
    expected = one_by_one(apart, Sizes(apart, "filters", example=X.double()), ends, ratios, many())
    found = side_by_side(model, sizes, ends, ratios, many())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(model), gradients(apart), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(dict(model.named_buffers()), dict(apart.named_buffers()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("network", [plain, unnormed])
def test_masked_filters(network, training):
    """Their norms and their biases stay: behind a filter that is 0 a norm gives its offset."""
    model = network().double().train(training)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.3)
    apart = copy.deepcopy(model)
    expected = one_by_one(apart, Sizes(apart, "filters", form="masked", example=X.double()), [0.5], [0.7], many())
    found = side_by_side(model, Sizes(model, "filters", form="masked", example=X.double()), [0.5], [0.7], many())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(model), gradients(apart), rtol=1e-8, atol=1e-9)


def ranked() -> nn.Module:
    """Wide and tall layers, pointwise or not, in groups, transposed, with and without biases."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, bias=False), nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 12, 3, groups=2), nn.ReLU(),
        nn.Conv2d(12, 30, 1), nn.BatchNorm2d(30), nn.ReLU(), nn.ConvTranspose2d(30, 10, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 5),
    )  # fmt: skip


def sequences() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 4)
    )


RANKED = {"ranked": (ranked, X), "sequences": (sequences, torch.zeros(2, 3, 12)), "normed": (normed, X)}


@pytest.mark.parametrize("cut", ENDS)
@pytest.mark.parametrize("network", RANKED)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_ranks_of_several_sizes(network, training, cut):
    ends, ratios = ENDS[cut]
    make, example = RANKED[network]
    model = make().double().train(training)
    apart = copy.deepcopy(model)
    sizes = Sizes(model, "rank", example=example.double())
    assert sizes.needs_passes is None
    x = torch.randn(16, *example.shape[1:], generator=torch.Generator().manual_seed(1)).double()
    expected = one_by_one(apart, Sizes(apart, "rank", example=example.double()), ends, ratios, x)
    found = side_by_side(model, sizes, ends, ratios, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(model), gradients(apart), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(dict(model.named_buffers()), dict(apart.named_buffers()), rtol=1e-9, atol=1e-9)


def test_the_leading_directions_of_weights_that_move_are_followed():
    """After 50 steps of a training, the outputs at half of the ranks are those of a new decomposition."""
    torch.manual_seed(0)
    model = normed().train()
    sizes = Sizes(model, "rank", example=X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(50):
        optimizer.zero_grad()
        with sizes.mixed(step):
            (model(many().float()) - 1).square().mean().backward()
        optimizer.step()
    model.eval()
    sizes.choose(0.5)
    with sizes.side_by_side([0.5]):
        followed = model(many().float())[:8]
    with sizes.smaller(0.5):
        exact = model(many().float()[:8])
    assert relative_gap(exact.detach(), followed.detach()) < 1e-2


def test_a_saved_state_continues_to_the_bit():
    torch.manual_seed(0)
    model = normed().eval()
    sizes = Sizes(model, "rank", example=X)
    with sizes.mixed(0):
        model(many().float())
    saved = copy.deepcopy(sizes.state_dict())
    again = Sizes(model, "rank", example=X)
    again.load_state_dict(saved)
    outputs_of = []
    for these in (sizes, again):
        with torch.no_grad(), these.mixed(1):
            outputs_of.append(model(many().float()))
    assert torch.equal(*outputs_of)
    with pytest.raises(
        ValueError, match=r"^the saved state is of other sizes: was the model, the kind, or what is included"
    ):
        Sizes(model, "filters", example=X).load_state_dict(saved)


def test_numbers_of_a_whole_batch_are_not_compared():
    """A network that is given labels answers with its loss, too."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = normed()

        def forward(self, x, target=None):
            output = self.net(x)
            return {"loss": None if target is None else (output.mean(1) - target).square().mean(), "output": output}

    model = WithLoss()
    assert Sizes(model, "filters", example={"x": X[:2], "target": X.new_zeros(2)}).needs_passes is None

    class LossAlone(WithLoss):
        def forward(self, x):
            return super().forward(x, 0)["loss"]

    refusal = Sizes(LossAlone(), "filters", example=X[:2]).needs_passes
    assert refusal.startswith("its outputs for several sizes at once differ")


@pytest.mark.parametrize("cut", ENDS)
@pytest.mark.parametrize("kind", ["filters", "rank"])
def test_compiled_graphs_compute_the_same_by_another_expression(cut, kind):
    torch._dynamo.reset()
    ends, ratios = ENDS[cut]
    model = plain().double().train()
    other = copy.deepcopy(model)
    expected = side_by_side(model, Sizes(model, kind, example=X.double()), ends, ratios, many())
    sizes = Sizes(other, kind, example=X.double())
    net = torch.compile(other, backend="aot_eager", fullgraph=True)
    found = side_by_side(net, sizes, ends, ratios, many())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(other), gradients(model), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(dict(other.named_buffers()), dict(model.named_buffers()), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net(many()), model(many()))  # outside of the block it is the whole network again


def test_half_precision_under_autocast():
    model = plain().train()
    net = torch.compile(model, backend="aot_eager")
    sizes = Sizes(model, "filters", example=X)
    sizes.choose(0.5)
    found = []
    for network in (model, net):
        with sizes.side_by_side([0.5]), torch.autocast("cpu", torch.bfloat16):
            found.append(network(many().float()).detach())
    eager, compiled = found
    assert compiled.dtype == eager.dtype
    assert float((compiled - eager).abs().mean()) < 0.02 * float(eager.abs().mean())


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(a, id=a.name, marks=[] if a.name.startswith(FAST) and not a.slow else [pytest.mark.slow])
        for a in ZOO
        if "filters" in a.kinds
    ],
)
def test_the_zoo(architecture: Architecture):
    """Every network has several sizes in one pass and computes what each would alone, or says why it has not."""
    if architecture.missing:
        pytest.skip(architecture.missing)
    model, inputs = architecture.make().eval(), architecture.inputs()
    sizes = Sizes(model, "filters", example=inputs)
    before = state(model)
    if sizes.needs_passes is not None:
        assert len(sizes.needs_passes) > 10
        return
    with sizes.smaller(0.4):
        small = outputs(model, inputs)
    sizes.choose(0.4)
    doubled = torch.utils._pytree.tree_map(lambda t: torch.cat([t, t]) if isinstance(t, Tensor) else t, inputs)
    with sizes.side_by_side([0.5]):
        found = outputs(model, doubled)
    whole = outputs(model, inputs)
    both = torch.utils._pytree.tree_map(lambda s, w: torch.cat([s, w]) if isinstance(s, Tensor) else s, small, whole)
    assert relative_gap(both, found) < 1e-4
    assert is_unchanged(model, before)


def test_networks_of_ours_need_one_pass_only():
    assert Sizes(build("resnet18", stem="cifar", width=8), example=torch.zeros(2, 3, 16, 16)).needs_passes is None
    assert Sizes(build("resnet_digits", width=8), example=torch.zeros(2, 1, 8, 8)).needs_passes is None


# Several processes

SHARES = (16, 32)  # images of each process


def cumulative() -> nn.Module:
    """Running statistics are plain averages of those of all batches."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.Conv2d(8, 4, 3),
        nn.BatchNorm2d(4, track_running_stats=False),
    )  # fmt: skip


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Networks with synchronised norms in two processes, which have unequally many images; and what each of them computed."""
    folder = tmp_path_factory.mktemp("ranks")
    tasks = {}
    for network, make in {**NETWORKS, "cumulative": cumulative}.items():
        for cut, (ends, ratios) in ENDS.items():
            for compiled in [False, True] if network == "plain" else [False]:
                model = make().double().train()
                batches = [many(images) * (1 + images) for images in SHARES]
                tasks[network, cut, compiled] = model, X.double(), ends, ratios, batches, compiled
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    torch.save([(convert(copy.deepcopy(model)), *rest) for model, *rest in tasks.values()], folder / "tasks.pt")
    worker = Path(__file__).with_name("sliced_worker.py")
    path = os.pathsep.join([str(worker.parents[1]), os.environ.get("PYTHONPATH", "")])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(folder), str(rank), "2"],
            stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
        )
        for rank in range(2)
    ]  # fmt: skip
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    results = [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]
    return {key: (task, found) for (key, task), found in zip(tasks.items(), zip(*results, strict=True), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("cut", ENDS)
@pytest.mark.parametrize(
    ("network", "compiled"), [*((network, False) for network in (*NETWORKS, "cumulative")), ("plain", True)], ids=str
)
def test_synchronised_norms_see_the_slices_of_all_processes(two_processes, network, cut, compiled):
    """Outputs, gradients and running statistics are those of one process with all images."""
    (model, example, ends, ratios, batches, _), found = two_processes[network, cut, compiled]
    pairs = zip(*(slices(batch, ends) for batch in batches), strict=True)
    expected = side_by_side(
        model, Sizes(model, "filters", example=example), ends, ratios, torch.cat([torch.cat(pair) for pair in pairs])
    )
    (first, of_first, buffers), (second, of_second, others) = found
    pairs = zip(slices(first, ends), slices(second, ends), strict=True)
    torch.testing.assert_close(torch.cat([torch.cat(pair) for pair in pairs]), expected.detach(), rtol=1e-9, atol=1e-9)
    sums = [None if a is None else a + b for a, b in zip(of_first, of_second, strict=True)]
    torch.testing.assert_close(sums, gradients(model), rtol=1e-8, atol=1e-8)
    for statistics in (buffers, others):
        torch.testing.assert_close(statistics, dict(model.named_buffers()), rtol=1e-9, atol=1e-9)


# What is drawn


@pytest.mark.parametrize("distribution", ["width", "parameters", "logarithm"])
def test_one_size_is_drawn_from_each_of_several_equal_parts(distribution):
    sizes = Sizes(normed(), "filters", example=X, distribution=distribution)
    singles = sorted(sizes.draw(step) for step in range(400))
    thirds = [singles[0], singles[133], singles[266], singles[399]]
    for step in range(20):
        assert sizes.draws(step, 1) == [sizes.draw(step)]
        drawn = sizes.draws(step, 3)
        assert drawn == sorted(drawn)
        for ratio, low, high in zip(drawn, thirds, thirds[1:], strict=False):
            assert low - 0.05 < ratio < high + 0.05


def test_an_ordinary_loop_in_two_more_lines():
    """The loop of the documentation, with the optimizer's step inside of the block: the weights stay as they are."""
    torch.manual_seed(0)
    model = normed().train()
    sizes = Sizes(model, "filters", example=X)
    optimizer = SFW(model.parameters(), lr=0.05)
    losses = []
    for step in range(30):
        optimizer.zero_grad()
        with sizes.mixed(step, draws=2):
            losses.append((model(many().float()) - 1).square().mean())
            losses[-1].backward()
            optimizer.step()
    assert float(losses[-1].detach()) < 0.7 * float(losses[0].detach())


# How it ends


def test_everything_is_as_before_after_an_error():
    model = normed().train()
    sizes = Sizes(model, "filters", example=X)
    before, classes = state(model), [type(module) for module in model.modules()]
    attributes = [set(vars(module)) for module in model.modules()]
    with pytest.raises(RuntimeError), sizes.mixed(0):
        model(X[:, :1])
    assert is_unchanged(model, before)
    assert [type(module) for module in model.modules()] == classes
    assert [set(vars(module)) for module in model.modules()] == attributes


def encoder() -> nn.Module:
    """Layers that torch computes by a fused kernel, in evaluation mode without gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(nn.Linear(8, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["neurons", "filters", "rank"])
def test_transformer_layers_that_would_be_fused(kind, training):
    model, x = encoder(), torch.randn(8, 5, 8)
    sizes = Sizes(model, kind, example=x[:2])
    assert sizes.needs_passes is None
    model.train(training)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.MultiheadAttention)):
            module.eval()
    with torch.no_grad():
        with sizes.mixed(1):
            found = model(x)
        with sizes.smaller(sizes.draw(1)):
            expected = model(x[:4])
        torch.testing.assert_close(found, torch.cat([expected, model(x[4:])]), rtol=1e-4, atol=1e-5)
    assert relative_gap(expected, model(x[:4])) > 0.1


@pytest.mark.parametrize("fused", [True, False])
def test_whether_transformer_layers_are_fused_is_as_before_after_an_error(fused):
    model, x = encoder(), torch.randn(8, 5, 8)
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        sizes = Sizes(model, "neurons", example=x)
        with pytest.raises(RuntimeError), sizes.mixed(0):
            model(x[:, :, :3])
        assert torch.backends.mha.get_fastpath_enabled() == fused
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_a_block_within_a_block_is_refused():
    model = normed()
    sizes, others = Sizes(model, "filters", example=X), Sizes(model, "filters", example=X)
    with sizes.mixed(0):
        with pytest.raises(ValueError, match="already has several sizes"), others.mixed(1):
            pass
        model(X)


# What needs a pass for each size


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def mixing() -> nn.Module:
    """Images see each other without a batch norm."""
    return Net(
        lambda net, x: net.b(torch.relu(net.a(x - x.mean(0, keepdim=True)))), a=nn.Conv2d(3, 8, 3), b=nn.Conv2d(8, 4, 3)
    )


def heads() -> tuple[nn.Module, str, Tensor]:
    return vit(), "heads", X


def test_heads_are_silent_for_some_images_where_values_are_written():
    model, kind, example = heads()
    sizes = Sizes(model, kind, example=example)
    assert sizes.needs_passes is None


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: (scaled(), "filters", X), "scale is a parameter outside of layers"),
        (lambda: (mixing(), "filters", X), "outputs for several sizes at once differ from those one by one"),
        (lambda: (normed(), "weights", X), "only channels and ranks can be lowered for some images"),
        (
            lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), OwnNorm(8), nn.Conv2d(8, 4, 3)), "filters", X),
            "1 is a OwnNorm, which is no batch norm of torch",
        ),
    ],
    ids=["parameter", "mixing", "weights", "own norm"],
)
def test_where_one_pass_is_not_possible_it_says_why(make, reason):
    model, kind, example = make()
    sizes = Sizes(model, kind, example=example)
    assert reason in sizes.needs_passes
    with pytest.raises(ValueError, match=r"needs a pass for each size, by sizes\.smaller\(\.\.\.\): "), sizes.mixed(0):
        pass
    with sizes.smaller(0.5):
        model(example)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"share": 0}, "share=0: must be above 0 and below 1"),
        ({"share": 1.0}, "share=1.0: must be above 0 and below 1"),
        ({"share": "half"}, "share='half'"),
        ({"draws": 0}, "draws=0: must be a whole number of at least 1"),
        ({"draws": 1.5}, "draws=1.5"),
    ],
    ids=str,
)
def test_bad_arguments(arguments, message):
    sizes = Sizes(mlp(), "neurons", example=ROWS[0])
    with pytest.raises(ValueError) as caught, sizes.mixed(0, **arguments):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_as_many_slices_as_sizes():
    sizes = Sizes(mlp(), "neurons", example=ROWS[0])
    sizes.choose(0.5, 0.6)
    with pytest.raises(ValueError, match="there are 2 chosen sizes, and ends of 1 slices"), sizes.side_by_side([0.5]):
        pass


def test_batches_are_divided_wherever_they_end():
    """A slice may be empty, and parts of equal length need not exist."""
    model = mlp()
    sizes = Sizes(model, "neurons", example=ROWS[0])
    sizes.choose(0.5)
    with sizes.smaller(0.5):
        half = model(ROWS[0])
    whole = model(ROWS[0])
    sizes.choose(0.5)
    for end in (0.0, 1 / len(ROWS[0]), 0.5 + 1 / (3 * MOST_PARTS)):
        n = round(end * len(ROWS[0]))
        with sizes.side_by_side([end]):
            torch.testing.assert_close(model(ROWS[0]), torch.cat([half[:n], whole[n:]]))


def test_a_network_that_sees_one_image_of_a_batch_is_named():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    sizes = Sizes(model, "neurons", example=torch.randn(4, 4))
    with (
        sizes.mixed(0),
        pytest.raises(ValueError, match=r"of a batch of 3, one of 2 networks sees one image.*drop_last"),
    ):
        model(torch.randn(3, 4))
    with sizes.mixed(0):
        model(torch.randn(4, 4))


def test_one_size_within_several_and_several_within_one_are_refused():
    model = normed()
    sizes = Sizes(model, "filters", example=X)
    with sizes.mixed(0), pytest.raises(ValueError, match="already has several sizes"), sizes.smaller(0.5):
        pass
    with sizes.smaller(0.5), pytest.raises(ValueError, match="already has one size"), sizes.mixed(0):
        pass
    with sizes.smaller(0.5), sizes.smaller(0.2):  # the same as one
        model(X)
    with sizes.mixed(0):
        model(X)


@pytest.mark.parametrize("step", [-1, 2.5, "a", torch.tensor(1)])
def test_a_step_is_a_whole_number(step):
    with pytest.raises(ValueError, match=r"step=.*: must be a whole number of at least 0"):
        Sizes(mlp(), "neurons", example=ROWS[0]).draw(step)


def test_a_mistake_of_ours_is_no_reason_for_passes(monkeypatch):
    monkeypatch.setattr("sparsefw.compression.in_place.side_by_side.relative_gap", None)
    with pytest.raises(TypeError):
        Sizes(mlp(), "neurons", example=ROWS[0])
