"""Stochastic Frank-Wolfe as a PyTorch optimizer.

For each constrained block, with C its feasible region and m its momentum:

    v     = argmin_{u in C} <u, m>            a vertex: few filters, directions or weights
    eta   = by a rule of rescale.py           in [0, 1]: a share of the way, in units of the training's length or of the gradient
    theta = (1 - eta) theta + eta v           what v leaves out decays: the only regulariser

reference.py has this in a dozen lines per parameter. Here it runs on stacks of equal blocks (stacks.py) by the kernels of
kernels.py; on GPUs on all layers at once, by those of fused/. Param groups without a region take SGD or AdamW steps in the same
object: one step, one state_dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim import kernels
from sparsefw.optim.diagnostics import LayerReports, Progress, progress, total
from sparsefw.optim.diagnostics import oracle_quality as quality
from sparsefw.optim.diagnostics import report as diagnose
from sparsefw.optim.groups import (
    Group,
    axes_of,
    blocks_of,
    check_arguments,
    check_group,
    check_keys,
    pull_inside,
    readable_groups,
)
from sparsefw.optim.master_weights import working_weight, write_back
from sparsefw.optim.nonfinite import Health, NonFiniteGradientError
from sparsefw.optim.planner import Planner
from sparsefw.optim.rescale import Gradient, Rescale
from sparsefw.optim.rest import rest_step
from sparsefw.optim.stacks import Run, Stack, block_lengths, stacks_of
from sparsefw.optim.stickiness import averaged
from sparsefw.optim.training_warnings import (
    Watch,
    note_first_step,
    warn_if_made_anew,
    warn_if_nothing_is_constrained,
    warn_of_scaled,
)


class SFW(torch.optim.Optimizer):
    """Stochastic Frank-Wolfe on the param groups that have a region; SGD or AdamW on those that have none.

    Param group keys, each with the argument of the same name as default:
        region         a Ball, or None for an unconstrained group
        coupled        True: all tensors of the group form ONE block, with `axes` their group axes (default 0 each)
        lr, momentum, dampening   as in torch.optim.SGD
        rescale        how lr becomes a step size: Horizon(steps, renewals), which constrain(..., steps=) puts into its groups;
                       Gradient(), the paper's, where nothing is said: steps of SGD's length lr ||m||; FastGradient(), Diameter(),
                       Unscaled()
        score_momentum   filters are chosen by their momenta's norms averaged over steps with this decay (scores.py); 0: not
        rest           "sgd" or "adamw", for groups without a region, with
        weight_decay, nesterov, adam_betas, adam_eps; `rest_lr` is the default learning rate of these groups

    Weights outside of their region are scaled onto its boundary when their group is added, with an SFWWarning, or is given
    another region. On constrained groups there is no weight decay: the step itself decays what it does not choose. bfloat16 and
    float16 weights get a float32 copy in the state, since steps of 1e-3 vanish in their rounding.

    A step with a non-finite gradient changes nothing: on_nonfinite="raise" names the parameter, at once on a CPU, on other
    devices when `check_every` steps have passed; "skip" only counts (see `nonfinite_counts`).

    fused: all layers in a handful of launches. None: where there are kernels (float32 on NVIDIA GPUs, by Triton).
    False: never. True: as None, but an error on a device without.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        *,
        dampening: float = 0.0,
        rescale: Rescale | None = None,
        rest: str = "sgd",
        rest_lr: float | Tensor | None = None,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        adam_betas: tuple[float, float] = (0.9, 0.999),
        adam_eps: float = 1e-8,
        score_momentum: float = 0.0,
        on_nonfinite: str = "raise",
        check_every: int = 100,
        fused: bool | None = None,
    ) -> None:
        if on_nonfinite not in ("raise", "skip"):
            raise ValueError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
        if isinstance(check_every, bool) or not isinstance(check_every, int) or check_every < 1:
            raise ValueError(f"check_every must be a whole number of at least 1, got {check_every!r}")
        if fused not in (None, True, False):
            raise ValueError(f"fused must be True, False or None, got {fused!r}")
        if isinstance(params, torch.nn.Module) or not isinstance(params, Iterable):
            raise TypeError(f"params must be those of constrain(model, ...), got {type(params).__name__}")
        params = params if isinstance(params, Tensor) else list(params)
        check_arguments(params, rescale, momentum)
        warn_if_nothing_is_constrained(params)
        self._on_nonfinite, self._check_every, self._fused = on_nonfinite, check_every, fused
        self._rest_lr = lr if rest_lr is None else rest_lr
        self._prepare()
        self._scaled: dict[str, float] | None = {}  # the weights scaled onto regions so far, until it is told
        defaults = dict(
            lr=lr, momentum=momentum, dampening=dampening, rescale=rescale or Gradient(), rest=rest, weight_decay=weight_decay,
            nesterov=nesterov, adam_betas=adam_betas, adam_eps=adam_eps, score_momentum=score_momentum,
            region=None, coupled=False, axes=None,
        )  # fmt: skip
        super().__init__(params, defaults)
        scaled, self._scaled = self._scaled, None
        constrained = [group for group in self.param_groups if group["region"] is not None]
        warn_of_scaled(scaled, sum(len(blocks_of(group)) for group in constrained))
        warn_if_made_anew(self.param_groups)

    def _prepare(self) -> None:
        self._health = Health()
        self._unread = 0
        self._watch = Watch()
        self._stacks: dict[int, list[Stack]] = {}
        self._planner = Planner(self._fused)
        self._entered: dict[int, Ball | None] = {}  # the region that each group's weights are known to be in
        self._given: dict[
            int, list[int]
        ] = {}  # versions of each group's weights when it was added, until its first step

    @torch.no_grad()
    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its weights are scaled into its region where they start outside. A refused group changes nothing."""
        check_keys(param_group, self.defaults)
        named = [group for group in self.param_groups if "param_names" in group]
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        if named and params and not isinstance(params[0], tuple):
            params = [(f"group{len(self.param_groups)}.{i}", p) for i, p in enumerate(params)]
        lr = self._rest_lr if param_group.get("region") is None else self.defaults["lr"]
        super().add_param_group({"lr": lr, **param_group, "params": params})
        try:
            scaled = self._enter_region(len(self.param_groups) - 1)
            added = self.param_groups[-1]
            added["rescale"] = added["rescale"].starting_at(float(added["lr"]))
        except BaseException:  # an interrupt must not leave a half-added group either
            self.param_groups.pop()
            raise
        self._given[len(self.param_groups) - 1] = [p._version for p in added["params"]]
        if self._scaled is None:
            warn_of_scaled(scaled, len(blocks_of(added)))
        else:
            self._scaled |= scaled

    @torch.no_grad()
    def enter_regions(self) -> None:
        """Scale weights into regions that were given to their groups since the last step; every step begins with it.

        So are weights that were loaded between the making of the optimizer and the first step, with an SFWWarning.
        """
        for index, group in enumerate(self.param_groups):
            given = self._given.pop(index, None)
            if self._entered.setdefault(index, group["region"]) != group["region"]:
                self._enter_region(index)
            elif given is not None and given != [p._version for p in group["params"]]:
                warn_of_scaled(self._enter_region(index), len(blocks_of(group)))

    def _enter_region(self, index: int) -> dict[str, float]:
        group, names = self.param_groups[index], self._names(index)
        check_group(group, names)
        scaled = pull_inside(group, names)
        self._entered[index] = group["region"]
        return scaled

    def _names(self, index: int) -> list[str]:
        group = self.param_groups[index]
        return list(group.get("param_names") or (f"group{index}.{i}" for i in range(len(group["params"]))))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params, names = self._with_gradients()
        if not params:
            return loss
        self.enter_regions()
        self._catch_up()
        plan = self._planner.plan(
            self.param_groups, self._current_stacks, params, names, self.state.__getitem__, self._health
        )
        try:
            healthy, norms = plan.check() if plan else self._health.check([p.grad for p in params], names)  # type: ignore[misc]
        except NonFiniteGradientError as error:
            if self._on_nonfinite == "raise":
                raise
            self._health.note(error.names)
            return loss
        lengths = dict(zip(params, norms, strict=True))
        if plan:
            plan.step()
        for index, group in enumerate(self.param_groups):
            if plan and index in plan.covered:
                continue
            if group["region"] is None:
                rest_step(group, self.state.__getitem__, healthy)
            else:
                for stack in self._current_stacks(index):
                    for run in stack.runs():
                        self._constrained_step(group, run, lengths, healthy)
        self._look_back(healthy)
        return loss

    @torch.compiler.disable
    def _catch_up(self) -> None:
        """A layer that is unfrozen in the course of training is as far in it as all others."""
        if self._watch.is_first:
            note_first_step(self.param_groups)
        for index, taken in self._watch.latecomers(self.param_groups):
            for stack in self._current_stacks(index):
                stack.figures.taken.fill_(taken)

    def _with_gradients(self) -> tuple[list[Tensor], list[str]]:
        params, names = [], []
        for index, group in enumerate(self.param_groups):
            found = [
                (p, name) for p, name in zip(group["params"], self._names(index), strict=True) if p.grad is not None
            ]
            for p, name in found:
                had = self.state[p]["momentum"].shape if "momentum" in self.state[p] else p.shape
                if had != p.shape:
                    raise ValueError(f"{name}: had the shape {tuple(had)}, now {tuple(p.shape)}; make a new optimizer")
                if p.grad.is_sparse:
                    raise TypeError(f"{name}: SFW needs dense gradients; make the layer with sparse=False")
                if p.grad.requires_grad:
                    raise TypeError(
                        f"{name}: SFW's step is not differentiable; call backward() without create_graph=True"
                    )
            if group["coupled"] and 0 < len(found) < len(group["params"]):
                missing = sorted(set(self._names(index)) - {name for _, name in found})
                raise ValueError(
                    f"a coupled block moves as one, but {', '.join(missing)} has no gradient while {found[0][1]} has one"
                )
            params += [p for p, _ in found]
            names += [name for _, name in found]
        return params, names

    def _current_stacks(self, index: int) -> list[Stack]:
        """The group's stacks; built anew where its parameters or their state were changed from outside."""
        group = self.param_groups[index]
        stacks = self._stacks.get(index)
        if stacks is None or not all(
            stack.region.view == group["region"].view and stack.current(self.state) for stack in stacks
        ):
            blocks = blocks_of(group)
            states = [[self.state[p] for p in block] for block in blocks]
            stacks = self._stacks[index] = stacks_of(group["region"], blocks, axes_of(group), states)
        return stacks

    def _constrained_step(self, group: Group, run: Run, lengths: dict[Tensor, Tensor], healthy: Tensor | None) -> None:
        stack, where, region = run.stack, run.where, group["region"]
        blocks, buffers, momentum = stack.blocks[where], stack.buffers[where], stack.momentum[where]
        params = [p for block in blocks for p in block]
        states = [state for block in stack.states[where] for state in block]
        theta = [[working_weight(p, self.state[p]) for p in block] for block in blocks]
        fine = None if healthy is None else healthy.to(momentum.device)
        gradients = kernels.masked([p.grad for p in params], fine)  # type: ignore[misc]
        m = [buffer for block in buffers for buffer in block]
        kernels.momentum_update(m, gradients, group["momentum"], group["dampening"], run.first, fine)
        batch = block_lengths(lengths, blocks).to(momentum.dtype)
        diameter = region.diameter(stack.layout.shape)
        taken = stack.figures.taken[where]
        setting = kernels.Setting(group["lr"], group["rescale"], region.radius, diameter, batch, taken, fine)
        if stack.by_rows:
            rows = [stack.layout.rows(block) for block in theta]
            norms, rho = region.view.magnitudes(momentum), group["score_momentum"]
            scores = averaged([block[0] for block in stack.states[where]], norms, rho, fine) if rho else None
            step = kernels.rows_update(rows, stack.row_buffers[where], norms, scores, region.gauge, setting)
        else:
            if group["score_momentum"]:
                raise ValueError(f"score_momentum needs rows that lie together in memory: {stack.layout.shape} do not")
            length = torch.linalg.vector_norm(momentum.flatten(1), dim=-1)
            vertex = run.vertex(region, fine)
            step = kernels.dense_update(
                theta, length, vertex, [stack.layout.views(v) for v in vertex.unbind()], setting
            )
        run.record(step.eta, step.clamped, fine)
        write_back(params, states)

    @torch.compiler.disable
    def _look_back(self, healthy: Tensor | None) -> None:
        """After a step: count it, and now and then read from the device what the steps since the last time were like."""
        self._unread += 1
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        self._watch.stepped(self.param_groups, capturing)
        if capturing:
            return
        self._watch.ended(self.param_groups, self.state)
        if self._unread >= self._check_every and (self._on_nonfinite == "raise" or healthy is None):
            self._unread = 0
            if healthy is not None:
                self._health.raise_if_any()
            self._watch.look(self._labelled_stacks())

    def check_finite(self) -> None:
        """Raise NonFiniteGradientError where a step since the last check was skipped on the device; syncs. For captured steps."""
        self._health.raise_if_any()

    def nonfinite_counts(self) -> dict[str, int]:
        """Parameter name -> steps skipped because its gradient was not finite, since the last call; syncs with the device."""
        return self._health.read()

    def step_sizes(self) -> Tensor | None:
        """eta of every constrained block in the last step, as it lies on the device; None before any."""
        found = [stack.figures.eta for stacks in self._stacks.values() for stack in stacks]
        return torch.cat([eta.flatten().float() for eta in found]) if found else None

    @torch.no_grad()
    def progress(self) -> Progress | None:
        """How often weights were renewed so far, how many have decayed, how compressible they are; reads the device."""
        found = [
            part
            for region, stack, _ in self._labelled_stacks()
            for part in progress(stack, region, self._weights_of(stack))
        ]
        return total(found) if found else None

    @torch.no_grad()
    def diagnostics(self) -> LayerReports:
        """Frank-Wolfe gap, step size, norms, oracle quality and compressibility of every constrained block; reads the device."""
        reports = LayerReports()
        for region, stack, names in self._labelled_stacks():
            reports += diagnose(stack, region, names, self._weights_of(stack))
        return reports

    def _weights_of(self, stack: Stack) -> list[list[Tensor]]:
        return [[self.state[p].get("master", p) for p in block] for block in stack.blocks]

    @torch.no_grad()
    def oracle_quality(self) -> dict[str, float]:
        """Name of each constrained block -> <vertex, m> / <best vertex, m> of the last step, exactly; reads the device."""
        found = self._labelled_stacks()
        return {
            n: q for region, stack, names in found for n, q in zip(names, quality(stack, region).exact, strict=True)
        }

    def _labelled_stacks(self) -> Iterator[tuple[Ball, Stack, list[str]]]:
        for index, group in enumerate(self.param_groups):
            if group["region"] is not None:
                names = dict(zip(group["params"], self._names(index), strict=True))
                for stack in self._current_stacks(index):
                    yield group["region"], stack, [" + ".join(names[p] for p in block) for block in stack.blocks]

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors only: regions and rules as dictionaries, so that it loads with weights_only=True."""
        state = super().state_dict()
        state["param_groups"] = [
            {**group, "region": group["region"] and group["region"].plain(), "rescale": group["rescale"].plain()}
            for group in state["param_groups"]
        ]
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over state, hyperparameters and regions as saved, as torch's optimizers do; weights are not touched.

        A state_dict that does not fit is refused whole, in one line.
        """
        names = [self._names(index) for index in range(len(self.param_groups))]
        groups = readable_groups(state_dict, self.param_groups, names, self.defaults)
        super().load_state_dict({**state_dict, "param_groups": groups})
        # The base class casts state to the dtype of the parameter: take float32 values of half-precision ones as saved.
        saved = state_dict["state"]
        ids = (i for group in groups for i in group["params"])
        for p, i in zip((p for group in self.param_groups for p in group["params"]), ids, strict=True):
            for key, value in saved.get(i, {}).items():
                if isinstance(value, Tensor) and value.shape == p.shape:  # lying in memory as the weight does
                    self.state[p][key] = torch.empty_like(p, dtype=value.dtype).copy_(value)
                elif isinstance(value, Tensor):
                    self.state[p][key] = value.to(device=p.device, copy=True)
        self._stacks = {}
        self._watch = Watch.of(self.param_groups, self.state)
        self._entered = {index: group["region"] for index, group in enumerate(self.param_groups)}

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: getattr(self, key) for key in ("_on_nonfinite", "_check_every", "_rest_lr", "_fused")}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it here, and no group of ours has it
        self._scaled = None
        self._prepare()
        self._watch = Watch.of(self.param_groups, self.state)
