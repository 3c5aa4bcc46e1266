"""Transformers: a Trainer whose optimizer is SFW, and that trains over sizes.

trainer = SparseFWTrainer(model, TrainingArguments(...), train_dataset=data, kind="neurons", example=tokens)
trainer.train()
small = compress(model, neurons=0.5, calibration=trainer.get_train_dataloader())
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression import Sizes
from sparsefw.constraints import constrain
from sparsefw.integrations.requirements import not_installed, prepare_torchvision, require_images, sharded
from sparsefw.optim import SFW

try:
    prepare_torchvision()
    import accelerate  # noqa: F401  (Trainer needs it)
    from transformers import Trainer
except ModuleNotFoundError as error:
    program = "accelerate" if error.name == "accelerate" else "transformers"
    raise not_installed(error, program, "transformers") from error

_RESTS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}  # by TrainingArguments.optim
_FILE = "sizes.pt"


class SparseFW:
    """Makes a subclass of Trainer train by SFW over sizes: class Mine(SparseFW, Seq2SeqTrainer).

    The optimizer is made when the number of steps is known, from the learning rate, the weight decay and Adam's numbers of
    TrainingArguments; optimizers=(own, None) takes another one. All batches whose gradients are accumulated see the same sizes.

    Args:
        kind: The units that go.
        example: An input of the network, as for constrain.
        constrained: More arguments of constrain, such as {"renewals": 5}.
        over_sizes: Arguments of Sizes and of Sizes.mixed, such as {"draws": 4, "seed": 1}; None: train the whole network only.
    """

    args: Any
    model: Any
    optimizer: Any
    state: Any

    def __init__(
        self,
        *args: Any,
        kind: str,
        example: Any,
        constrained: Mapping[str, Any] | None = None,
        over_sizes: Mapping[str, Any] | None = {},
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._kind = kind
        self._example = example
        self._constrained = constrained or {}
        self._sizes: Sizes | None = None
        self._mixed: dict[str, Any] = {"share": 0.5, "draws": 1}
        self._of_sizes = None if over_sizes is None else {k: v for k, v in over_sizes.items() if k not in self._mixed}
        self._mixed |= {key: value for key, value in (over_sizes or {}).items() if key in self._mixed}
        self._require_whole_weights()
        if over_sizes is not None:
            require_images(self.args.per_device_train_batch_size, **self._mixed)

    def _require_whole_weights(self) -> None:
        own: Any = self
        for by, is_on in (("DeepSpeed", own.is_deepspeed_enabled), ("FSDP", own.is_fsdp_enabled)):
            if is_on:
                raise sharded(by)
        if self.args.n_gpu > 1:
            raise ValueError(
                "nn.DataParallel copies layers without their sizes: start one process per GPU, by torchrun"
            )

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Make the optimizer, unless one was given, and the sizes; called when the training starts."""
        network = self.model if model is None else model
        if self.optimizer is None:
            self.optimizer = self._sfw(network)
        if self._of_sizes is not None:
            self._sizes = Sizes(network, self._kind, example=self._example, **self._of_sizes)
        return self.optimizer

    def _sfw(self, network: nn.Module) -> SFW:
        name = getattr(self.args.optim, "value", self.args.optim)
        if name not in _RESTS:
            raise ValueError(f"optim={name!r}: what SFW leaves free takes the steps of one of {', '.join(_RESTS)}")
        if not self.state.max_steps:
            raise ValueError("the number of steps is not known before train(): SFW is made by it")
        own: Any = self
        usual = {
            "example": self._example,
            "steps": self.state.max_steps,
            "report": print if own.is_world_process_zero() else None,
        }
        groups = constrain(network, self._kind, **{**usual, **self._constrained})
        decayed = set(own.get_decay_parameter_names(network))
        free = [name for name, p in network.named_parameters() if p.requires_grad and name not in decayed]
        return SFW(
            groups.without_decay(free),
            lr=self.args.learning_rate,
            rest=_RESTS[name],
            weight_decay=self.args.weight_decay,
            adam_betas=(self.args.adam_beta1, self.args.adam_beta2),
            adam_eps=self.args.adam_epsilon,
        )

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the gradients of a batch whose first items see smaller networks."""
        parent: Any = super()
        if self._sizes is None:
            return parent.training_step(*args, **kwargs)
        with self._sizes.mixed(self.state.global_step, **self._mixed):
            return parent.training_step(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        parent: Any = super()
        parent._save_optimizer_and_scheduler(output_dir)
        if self._sizes is not None and self.args.should_save:
            torch.save(self._sizes.state_dict(), Path(output_dir, _FILE))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        parent: Any = super()
        parent._load_optimizer_and_scheduler(checkpoint)
        if self._sizes is not None and checkpoint is not None:
            self._sizes.load_state_dict(torch.load(Path(checkpoint, _FILE), weights_only=True))


class SparseFWTrainer(SparseFW, Trainer):
    """A Trainer that trains by SFW over sizes; the arguments of SparseFW, and those of Trainer."""
