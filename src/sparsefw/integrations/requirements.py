"""What the adapters require of a program: that it is installed, that weights stay whole, and that every network sees an image."""

from __future__ import annotations

import contextlib

from sparsefw.models import import_torchvision


def prepare_torchvision() -> None:
    """Import torchvision first, if it is there: programs import it, and beside a torch for CPUs they would fail."""
    with contextlib.suppress(ModuleNotFoundError):
        import_torchvision()


def not_installed(error: ModuleNotFoundError, program: str, extra: str) -> ModuleNotFoundError:
    """Return the error that names the line for pip; the given one, if it is about another package."""
    if error.name is None or error.name.partition(".")[0] != program:
        return error
    return ModuleNotFoundError(
        f"sparsefw.integrations needs {program}: pip install 'sparsefw[{extra}]'", name=error.name
    )


def sharded(by: str) -> ValueError:
    """Return the error for weights that no process has whole."""
    return ValueError(f"{by} shards weights, and SFW needs each of them whole: train with DDP, or on one device")


def require_images(batch_size: int | None, share: float, draws: int) -> None:
    """Refuse batches in which one of the networks sees no image; a loader without a batch size is not looked at."""
    if batch_size is None:
        return
    ends = [round(batch_size * share * i / draws) for i in range(draws + 1)]
    if any(start == end for start, end in zip(ends, [*ends[1:], batch_size], strict=True)):
        raise ValueError(
            f"of a batch of {batch_size} in this process, one of {draws + 1} networks sees nothing (share={share:g}, "
            f"draws={draws}): take larger batches, or fewer draws"
        )
