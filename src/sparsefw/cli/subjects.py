"""Opens what `compress`, `curve` and `finetune` are given: the network of a run, or one that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparsefw.cli.options import parse_numbers
from sparsefw.data.own_images import InputForm
from sparsefw.runfolder import RunPaths
from sparsefw.train.config import RunConfig
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.finetune import finetuning, finetuning_of_weights
from sparsefw.train.folder import RunFolder
from sparsefw.train.given_network import IMAGES, GivenNetwork, open_network
from sparsefw.train.input_form import FormOptions
from sparsefw.train.subject import Subject


@dataclass(frozen=True)
class NetworkOptions:
    """The options of networks that were trained elsewhere, as they were typed."""

    checkpoint: Path | None = None
    arguments: Sequence[str] | None = None
    evaluate: Path | None = None
    image_size: str | None = None
    mean: str | None = None
    std: str | None = None
    images: int | None = None

    @property
    def given(self) -> list[str]:
        """The names of those that were given."""
        names = {
            "--checkpoint": self.checkpoint,
            "--argument": self.arguments or None,
            "--evaluate": self.evaluate,
            "--image-size": self.image_size,
            "--mean": self.mean,
            "--std": self.std,
            "--images": self.images,
        }
        return [name for name, value in names.items() if value is not None]

    def form(self) -> FormOptions:
        return FormOptions(
            parse_numbers(self.image_size, "--image-size", "224 or 360,480"),
            parse_numbers(self.mean, "--mean", "0.485,0.456,0.406"),
            parse_numbers(self.std, "--std", "0.229,0.224,0.225"),
        )


@dataclass(frozen=True)
class RunOptions:
    """The options of runs, as they were typed."""

    data: Path | None = None
    data_changed: bool = False


def is_run(network: str) -> bool:
    """Return whether a network is given as a run folder, be it damaged: it is a path, and none of another network."""
    folder = Path(network)
    if folder.is_dir():
        return not any((folder / name).is_file() for name in ("plan.json", "config.json"))
    return ":" not in network and (folder.exists() or "/" in network)


def open_subject(
    network: str, options: NetworkOptions, run: RunOptions, device: str, trust: bool, halves: bool = False
) -> Subject:
    """Open a network with its images; ValueError where options are given that are not of its sort.

    Args:
        halves: half of the images with labels is for choosing; runs have validation images for that.
    """
    if is_run(network):
        _refuse_for_run(network, options)
        return TrainedRun.open(Path(network), run.data, device, trust, run.data_changed)
    if run.data is not None or run.data_changed:
        name = "--data" if run.data is not None else "--data-changed"
        raise ValueError(
            f"{network}: {name} is for runs; images of other networks are given by --calibration and --evaluate"
        )
    return open_network(
        network,
        options.checkpoint,
        options.arguments or (),
        options=options.form(),
        evaluate=options.evaluate,
        halves=halves,
        images=IMAGES if options.images is None else options.images,
        device=device,
        trust=trust,
    )


def _refuse_for_run(network: str, options: NetworkOptions) -> None:
    if options.given:
        given = ", ".join(options.given)
        raise ValueError(f"{network} is a run: {given}: only for networks that were trained elsewhere")


class FinetuningRequest(NamedTuple):
    """The configuration of a fine-tuning, the folder to train into by default, and that of the data."""

    config: RunConfig
    folder: Path
    data: Path | None


def finetuning_request(
    network: str,
    options: NetworkOptions,
    run: RunOptions,
    epochs: int,
    kind: str | None,
    changes: Sequence[str],
    trust: bool,
) -> FinetuningRequest:
    """Return what to train: a run further, or a network from a file of weights on a folder of images with labels."""
    if is_run(network):
        _refuse_for_run(network, options)
        path = Path(network)
        config = finetuning(path, epochs, kind, changes)
        data = RunFolder(path).data if run.data is None else run.data
        return FinetuningRequest(config, path.with_name(f"{path.name}-finetuned"), data)
    if options.checkpoint is None:
        raise ValueError(f"{network}: only a run, or a network given by name and --checkpoint FILE, is fine-tuned")
    if run.data is None:
        raise ValueError(f"{network}: give images with labels by --data FOLDER, with train/CLASS/ or CLASS/ in it")
    given = open_network(
        network, options.checkpoint, options.arguments or (), options=options.form(), device="cpu", trust=trust
    )
    config = finetuning_of_weights(given, options.checkpoint, epochs, kind, changes)
    return FinetuningRequest(config, Path("runs") / config.name, run.data)


def small_folder(network: str, out: Path | None) -> Path:
    """Return the folder to write a smaller network into: of a run, beside its other files by default."""
    if out is not None:
        return out
    if not is_run(network):
        raise ValueError(f"{network}: give the folder for the smaller network by --out FOLDER")
    return RunPaths(Path(network)).small


def form_line(subject: Subject) -> list[str]:
    """Return a line that says how images became inputs; none for runs, whose recipes say it."""
    is_known = isinstance(subject, GivenNetwork) and isinstance(subject.form, InputForm)
    return [f"images: {subject.form}"] if is_known else []  # type: ignore[attr-defined]
