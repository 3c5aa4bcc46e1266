"""Stochastic Frank-Wolfe as a PyTorch optimizer.

For each constrained block, with C its feasible region and m its momentum:

    v     = argmin_{u in C} <u, m>            a vertex: few filters, directions or weights
    eta   = by a rule of rescale.py           in [0, 1]: the share of the way to the vertex
    theta = (1 - eta) theta + eta v           what v leaves out decays: the only regulariser

reference.py has this in a dozen lines per parameter. Here it runs on stacks of equal blocks (stacks.py, constrained.py) by the
kernels of kernels.py; on GPUs on all layers at once, by those of fused/. Param groups without a region take SGD or AdamW steps in
the same optimizer (unconstrained.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim.constrained import constrained_step
from sparsefw.optim.diagnostics import (
    ConstraintProgress,
    LayerReports,
    mean_progress,
    oracle_quality,
    progress_of_blocks,
    report_blocks,
)
from sparsefw.optim.fused_cache import FusedStepCache
from sparsefw.optim.gauge_by_rest import take_gauge_beside
from sparsefw.optim.gradientless import GradientlessSteps
from sparsefw.optim.groups import (
    DEFAULT_LR,
    Group,
    axes_of,
    blocks_of,
    check_arguments,
    check_group,
    check_keys,
    params_with_gradients,
    pull_inside,
    sized_momentum,
)
from sparsefw.optim.nonfinite import GradientCheck, NonFiniteGradientError
from sparsefw.optim.radius import MOMENTUM
from sparsefw.optim.rescale import Gradient, Rescale
from sparsefw.optim.stacks import Stack, build_stacks
from sparsefw.optim.state_dicts import copy_exact_tensors, plain_groups, restored_groups
from sparsefw.optim.training_warnings import (
    TrainingWatch,
    count_optimizer,
    warn_if_many_optimizers,
    warn_if_scaled,
    warn_if_unconstrained,
)
from sparsefw.optim.unconstrained import unconstrained_step
from sparsefw.scalars import is_int


class SFW(torch.optim.Optimizer):
    """Stochastic Frank-Wolfe on the param groups that have a region; SGD or AdamW on those that have none.

    Weights outside of their region are scaled onto its boundary, with an SFWWarning, when their group is added or is given
    another region. Constrained groups have no weight decay: the step itself decays what it does not choose. bfloat16 and float16
    weights get a float32 copy in the state, since steps of 1e-3 vanish. A step with a non-finite gradient changes nothing.

    Args:
        params: param groups, usually those of `constrain`. Beside the keys below, each of which defaults to the argument of the
            same name, a group has `region`: a Ball, or None for an unconstrained group; `coupled`: whether all tensors of the
            group form ONE block; and `axes`: the group axes of the tensors of a block, 0 by default.
        lr: the learning rate; None: 0.1, or 0.002 with rest="adamw".
        momentum: the decay of the momentum buffer, as in torch.optim.SGD; None: that of `constrain`, or 0.9.
        dampening: as in torch.optim.SGD.
        rescale: how lr becomes a step size: Horizon(steps, renewals), which constrain(..., steps=) puts into its groups; None:
            Gradient(), the paper's, with steps of SGD's length lr ||m||; or FastGradient(), Diameter(), Unscaled().
        rest: "sgd" or "adamw", for groups without a region, with weight_decay, nesterov, adam_betas and adam_eps.
        rest_lr: the default learning rate of these groups; None: lr.
        score_momentum: choose filters by the norms of their momenta averaged over steps with this decay (stickiness.py).
        on_nonfinite: "raise" an error that names the parameter, at once on a CPU, on other devices when `check_every` steps
            have passed; or "skip" the step and count it (see `nonfinite_counts`).
        check_every: after how many steps the device is read.
        fused: step all layers in a handful of launches. None: where there are kernels (float32 on NVIDIA GPUs, by Triton).
            False: never. True: as None, but an error on a device without kernels.

    >>> from sparsefw.geometry import GroupKSupportBall
    >>> weight = torch.nn.Parameter(torch.ones(4, 3))
    >>> optimizer = SFW([{"params": [weight], "region": GroupKSupportBall(k=1, radius=10.0)}], lr=0.1)
    >>> weight.grad = torch.eye(4, 3)
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor | None = None,
        momentum: float | None = None,
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
        if not is_int(check_every) or check_every < 1:
            raise ValueError(f"check_every must be a whole number of at least 1, got {check_every!r}")
        if fused not in (None, True, False):
            raise ValueError(f"fused must be True, False or None, got {fused!r}")
        if isinstance(params, torch.nn.Module) or not isinstance(params, Iterable):
            raise TypeError(f"params must be those of constrain(model, ...), got {type(params).__name__}")
        params = params if isinstance(params, Tensor) else list(params)
        check_arguments(params, rescale, momentum)
        if momentum is None:
            sized = sized_momentum(params)
            momentum = MOMENTUM if sized is None else sized
        warn_if_unconstrained(params)
        self._on_nonfinite = on_nonfinite
        self._check_every = check_every
        self._fused = fused
        lr = DEFAULT_LR.get(rest, 0.1) if lr is None else lr  # an unknown rest is refused with its group
        self._rest_lr = lr if rest_lr is None else rest_lr
        self._prepare()
        # The factors of weights that were scaled onto regions, until one warning names them all; None: warn at once.
        self._scaled: dict[str, float] | None = {}
        defaults = dict(
            lr=lr, momentum=momentum, dampening=dampening, rescale=rescale or Gradient(), rest=rest, weight_decay=weight_decay,
            nesterov=nesterov, adam_betas=adam_betas, adam_eps=adam_eps, score_momentum=score_momentum,
            region=None, coupled=False, axes=None,
        )  # fmt: skip
        super().__init__(params, defaults)
        constrained = [group for group in self.param_groups if group["region"] is not None]
        warn_if_scaled(self._scaled, sum(len(blocks_of(group)) for group in constrained))
        self._scaled = None
        warn_if_many_optimizers(self.param_groups)

    def _prepare(self) -> None:
        self._gradient_check = GradientCheck()
        self._gradientless = GradientlessSteps()
        self._steps_since_check = 0
        self._watch = TrainingWatch()
        self._stacks: dict[int, list[Stack]] = {}
        self._fused_steps = FusedStepCache(self._fused)
        # By index of the group: the region that its weights are known to be in; and until its first step, the versions that its
        # weights had when it was added.
        self._entered: dict[int, Ball | None] = {}
        self._versions_when_added: dict[int, list[int]] = {}

    @torch.no_grad()
    def add_param_group(self, param_group: Group) -> None:
        """Add a group, and scale its weights into its region where they are outside. A refused group changes nothing."""
        check_keys(param_group, self.defaults)
        has_names = any("param_names" in group for group in self.param_groups)
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        if has_names and params and not isinstance(params[0], tuple):
            params = [(f"group{len(self.param_groups)}.{i}", p) for i, p in enumerate(params)]
        lr = self._rest_lr if param_group.get("region") is None else self.defaults["lr"]
        super().add_param_group({"lr": lr, **param_group, "params": params})
        try:
            added = self.param_groups[-1]
            take_gauge_beside(self.defaults["rest"], added)
            scaled = self._enter_region(len(self.param_groups) - 1)
            added["rescale"] = added["rescale"].starting_at(float(added["lr"]), self.defaults["rest"])
        except BaseException:  # an interrupt must not leave a half-added group either
            self.param_groups.pop()
            raise
        self._versions_when_added[len(self.param_groups) - 1] = [p._version for p in added["params"]]
        if self._scaled is None:
            warn_if_scaled(scaled, len(blocks_of(added)))
        else:
            self._scaled |= scaled

    @torch.no_grad()
    def enter_regions(self) -> None:
        """Scale weights into regions that were given to their groups since the last step; every step begins with it.

        Weights that were loaded after the optimizer was made and before its first step are scaled, too, with an SFWWarning.
        """
        for index, group in enumerate(self.param_groups):
            versions = self._versions_when_added.pop(index, None)
            if self._entered.setdefault(index, group["region"]) != group["region"]:
                self._enter_region(index)
            elif versions is not None and versions != [p._version for p in group["params"]]:
                warn_if_scaled(self._enter_region(index), len(blocks_of(group)))

    def _enter_region(self, index: int) -> dict[str, float]:
        """Check a group and scale its weights into its region; return the factor of each scaled block, by name."""
        group = self.param_groups[index]
        names = self._names(index)
        check_group(group, names)
        scaled = pull_inside(group, names)
        self._entered[index] = group["region"]
        return scaled

    def _names(self, index: int) -> list[str]:
        group = self.param_groups[index]
        return list(group.get("param_names") or (f"group{index}.{i}" for i in range(len(group["params"]))))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step on all parameters that have gradients.

        Args:
            closure: computes the loss and its gradients again, as in torch.optim.

        Returns:
            The loss that the closure returned, or None.

        Raises:
            NonFiniteGradientError: a gradient is not finite, and on_nonfinite="raise".
            RuntimeError: the model no longer has some of the parameters, or none had a gradient in three steps.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params, names = self._params_with_gradients()
        self._gradientless.count_step(self.param_groups, self._names)
        if not params:
            return loss
        self.enter_regions()
        self._catch_up()
        state_of = self.state.__getitem__
        fused = self._fused_steps.step_for(
            self.param_groups, self._current_stacks, params, names, state_of, self._gradient_check
        )
        healthy: Tensor | None
        try:
            if fused:
                healthy, norms = fused.check()
            else:
                healthy, norms = self._gradient_check.check([p.grad for p in params], names)  # type: ignore[misc]
        except NonFiniteGradientError as error:
            if self._on_nonfinite == "raise":
                raise
            self._gradient_check.count(error.names)
            return loss
        if fused:
            fused.step()
        norm_of = dict(zip(params, norms, strict=True))
        for index, group in enumerate(self.param_groups):
            if fused and index in fused.covered:
                continue
            if group["region"] is None:
                unconstrained_step(group, state_of, healthy)
                continue
            for stack in self._current_stacks(index):
                for part in stack.slices():
                    constrained_step(group, part, norm_of, healthy)
        self._check_after_step(healthy)
        return loss

    @torch.compiler.disable
    def _catch_up(self) -> None:
        """Give layers that were unfrozen in the course of training the horizon of all others."""
        if self._watch.has_not_started:
            count_optimizer(self.param_groups)
        for index, taken in self._watch.late_groups(self.param_groups):
            for stack in self._current_stacks(index):
                stack.figures.taken.fill_(taken)

    def _params_with_gradients(self) -> tuple[list[Tensor], list[str]]:
        params: list[Tensor] = []
        names: list[str] = []
        for index, group in enumerate(self.param_groups):
            some_params, some_names = params_with_gradients(group, self._names(index), self.state.__getitem__)
            params += some_params
            names += some_names
        return params, names

    def _current_stacks(self, index: int) -> list[Stack]:
        """Return the group's stacks, built again where its parameters or their state were changed from outside."""
        group = self.param_groups[index]
        region = group["region"]
        stacks = self._stacks.get(index)
        if stacks is None or not all(s.region.view == region.view and s.is_current(self.state) for s in stacks):
            blocks = blocks_of(group)
            states = [[self.state[p] for p in block] for block in blocks]
            stacks = build_stacks(region, blocks, axes_of(group), states)
            self._stacks[index] = stacks
        return stacks

    @torch.compiler.disable
    def _check_after_step(self, healthy: Tensor | None) -> None:
        """Count the step; every `check_every` steps, read from the device how they went, and raise or warn."""
        self._steps_since_check += 1
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        self._watch.count_step(self.param_groups, capturing)
        if capturing:
            return
        self._watch.check_renewals(self.param_groups, self.state)
        is_due = self._steps_since_check >= self._check_every
        if is_due and (self._on_nonfinite == "raise" or healthy is None):
            self._steps_since_check = 0
            if healthy is not None:
                self._gradient_check.raise_if_any()
            self._watch.check_layers((stack, names) for _, stack, names in self._labelled_stacks())

    def check_finite(self) -> None:
        """Raise NonFiniteGradientError where the device has skipped a step since the last check; syncs. For captured steps."""
        self._gradient_check.raise_if_any()

    def nonfinite_counts(self) -> dict[str, int]:
        """Return parameter name -> steps skipped since the last call because its gradient was not finite; syncs."""
        return self._gradient_check.read_counts()

    def step_sizes(self) -> Tensor | None:
        """Return eta of every constrained block in the last step, on the device; None before any step."""
        etas = [stack.figures.eta for stacks in self._stacks.values() for stack in stacks]
        return torch.cat([eta.flatten().float() for eta in etas]) if etas else None

    @torch.no_grad()
    def progress(self) -> ConstraintProgress | None:
        """Return how often weights were renewed, how many have decayed and how compressible they are; reads the device.

        None where nothing is constrained.
        """
        parts = list(self.progress_of_layers().values())
        return mean_progress(parts) if parts else None

    @torch.no_grad()
    def progress_of_layers(self) -> dict[str, tuple[int, ConstraintProgress]]:
        """Return how many weights each constrained block has, and its progress, by name; reads the device."""
        found: dict[str, tuple[int, ConstraintProgress]] = {}
        for region, stack, names in self._labelled_stacks():
            found.update(zip(names, progress_of_blocks(stack, region, self._weights_of(stack)), strict=True))
        return found

    @torch.no_grad()
    def diagnostics(self) -> LayerReports:
        """Return gap, step size, norms, oracle quality and compressibility of every constrained block; reads the device."""
        reports = LayerReports()
        for region, stack, names in self._labelled_stacks():
            reports += report_blocks(stack, region, names, self._weights_of(stack))
        return reports

    def _weights_of(self, stack: Stack) -> list[list[Tensor]]:
        """Return the weights of each block, in float32 where they have a float32 copy."""
        return [[self.state[p].get("master", p) for p in block] for block in stack.blocks]

    @torch.no_grad()
    def oracle_quality(self) -> dict[str, float]:
        """Return <vertex, m> / <best vertex, m> of the last step, by the name of each constrained block; reads the device."""
        qualities: dict[str, float] = {}
        for region, stack, names in self._labelled_stacks():
            qualities |= zip(names, oracle_quality(stack, region).exact, strict=True)
        return qualities

    def _labelled_stacks(self) -> Iterator[tuple[Ball, Stack, list[str]]]:
        """Yield the region, the stack and the names of its blocks, for all constrained groups."""
        for index, group in enumerate(self.param_groups):
            if group["region"] is not None:
                names = dict(zip(group["params"], self._names(index), strict=True))
                for stack in self._current_stacks(index):
                    yield group["region"], stack, [" + ".join(names[p] for p in block) for block in stack.blocks]

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors only, with regions and rules as dictionaries: it loads with weights_only=True."""
        state = super().state_dict()
        state["param_groups"] = plain_groups(state["param_groups"])
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state, hyperparameters and regions as saved, as torch's optimizers do; weights are not touched.

        Raises:
            ValueError: the state_dict does not fit; nothing is changed.
        """
        names = [self._names(index) for index in range(len(self.param_groups))]
        groups = restored_groups(state_dict, self.param_groups, names, self.defaults)
        super().load_state_dict({**state_dict, "param_groups": groups})
        ids = [i for group in groups for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        copy_exact_tensors(state_dict["state"], ids, params, self.state)
        self._stacks = {}
        self._watch = TrainingWatch.resume(self.param_groups, self.state)
        self._entered = {index: group["region"] for index, group in enumerate(self.param_groups)}

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: getattr(self, key) for key in ("_on_nonfinite", "_check_every", "_rest_lr", "_fused")}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds this key, which no group of SFW has
        self._scaled = None
        self._prepare()
        self._watch = TrainingWatch.resume(self.param_groups, self.state)
