"""Lightning: callbacks that train over sizes, and that compress when the fit has ended.

class Classifier(LightningModule):
    def configure_optimizers(self):
        steps = self.trainer.estimated_stepping_batches
        groups = constrain(self.net, "filters", example=self.example, steps=steps)
        return SFW(groups, lr=0.1, weight_decay=5e-4)

Trainer(callbacks=[SizesCallback("filters", network="net", example=x), CompressCallback("small", filters=0.5, network="net")])
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from sparsefw.compression import Compressed, Sizes, compress, save
from sparsefw.integrations.requirements import not_installed, prepare_torchvision, require_images, sharded

try:
    prepare_torchvision()
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
except ModuleNotFoundError as error:
    raise not_installed(error, "lightning", "lightning") from error

_SHARDING = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)


class SizesCallback(Callback):
    """Trains over sizes: the first images of every batch see smaller networks, and the others the whole one.

    The sizes are a function of the seed and of trainer.global_step, so that all batches of one step of the optimizer see the
    same. They last from the beginning of a batch to its end, whatever training_step and the optimizer do in between. Checkpoints
    contain what a training needs to resume to the bit.

    sizes   those of the network, from the start of the fit

    Args:
        kind: The units that go.
        example: An input of the network; None: example_input_array of the module.
        network: The name of the network in the module, such as "net"; "": the module itself.
        share, draws: As of Sizes.mixed.
        arguments: As of Sizes, such as distribution="logarithm" or seed=1.
    """

    sizes: Sizes | None = None

    def __init__(
        self, kind: str = "filters", *, example: Any = None, network: str = "", share: float = 0.5, draws: int = 1,
        **arguments: Any,
    ) -> None:  # fmt: skip
        self._kind = kind
        self._example = example
        self._network = network
        self._share = share
        self._draws = draws
        self._arguments = arguments
        self._restored: Mapping[str, Any] | None = None
        self._block = ExitStack()

    @property
    def state_key(self) -> str:
        return self._generate_state_key(kind=self._kind, network=self._network)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, _SHARDING):
            raise sharded(type(trainer.strategy).__name__)
        network, example = _network_and_example(pl_module, self._network, self._example, type(self).__name__)
        self.sizes = Sizes(network, self._kind, example=example, **self._arguments)
        if self._restored is not None:
            self.sizes.load_state_dict(self._restored)
            self._restored = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        require_images(getattr(trainer.train_dataloader, "batch_size", None), self._share, self._draws)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert self.sizes is not None
        self._block.enter_context(self.sizes.mixed(trainer.global_step, share=self._share, draws=self._draws))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._block.close()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._block.close()  # a batch at whose start the module ends the epoch has no end of its own

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._block.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.sizes is None else self.sizes.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict


class CompressCallback(Callback):
    """Compresses the network when the fit has ended, and saves it as a folder that `load` reads.

    It compresses before the training as well, by the example alone and without saving: what would fail at the end fails then.

    compressed   the result of compress, at the end of the fit, in the process that saves it

    Args:
        folder: Where to save it.
        network: The name of the network in the module, such as "net"; "": the module itself.
        example: An input of the network; None: example_input_array of the module.
        calibration: As of compress; None: the batches of the training.
        arguments: As of compress, such as filters=0.5 or target="macs=0.3".
    """

    compressed: Compressed

    def __init__(
        self, folder: str | os.PathLike[str], *, network: str = "", example: Any = None, calibration: Any = None,
        **arguments: Any,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._network = network
        self._example = example
        self._calibration = calibration
        self._arguments = arguments

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, _SHARDING):
            raise sharded(type(trainer.strategy).__name__)
        if trainer.is_global_zero:
            network, example = _network_and_example(pl_module, self._network, self._example, type(self).__name__)
            trial = {**self._arguments, "calibration": [example], "refit": False, "progress": False}
            compress(network, example=example, **trial)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            network, example = _network_and_example(pl_module, self._network, self._example, type(self).__name__)
            data = trainer.train_dataloader if self._calibration is None else self._calibration
            self.compressed = compress(network, calibration=data, example=example, **self._arguments)
            save(self.compressed, self._folder)


def _network_and_example(module: LightningModule, name: str, example: Any, of: str) -> tuple[Any, Any]:
    """Return the part of a module that is compressed, and an input of it."""
    try:
        network = module.get_submodule(name)
    except AttributeError as error:
        parts = ", ".join(key for key, _ in module.named_children())
        raise ValueError(f"network={name!r}: the module has no such part; it has {parts}") from error
    example = module.example_input_array if example is None else example
    if example is None:
        raise ValueError(f"{of} needs an input of the network: give it example=, or the module example_input_array")
    return network, example
