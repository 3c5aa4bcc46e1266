"""How much of a file from elsewhere is taken into memory: far more than real files have, far less than a machine.

A file of some hundred bytes can ask for gigabytes: by YAML aliases of aliases, by compression, by the size that an image claims;
a link to a device never ends, and a pipe waits for ever. Each is refused in one line before memory is taken.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path

RECIPE_CHARACTERS = 200_000  # of a recipe, a grid or a configuration; the longest shipped one has 4,000
RECORD_BYTES = 32_000_000  # of a table of a run, of an artifact or of the cache; those of a ResNet-50 have one million
GRID_CONFIGURATIONS = 10_000  # of one row of a grid; the largest shipped one has 24
IMAGE_PIXELS = 100_000_000  # of one image: 300 MB; the largest of ImageNet has 61 million
ARRAY_BYTES = 512 * 1024**2  # of one file of images, unpacked; MNIST has 47 MB, CIFAR-100 186 MB
NETWORK_BLOCKS = 1_000  # of one stage of a network, or of one of timm or torchvision; a ResNet-1202 has 200
NETWORK_ARGUMENT = (
    25_000  # a number in the arguments of a network of timm or torchvision; ImageNet-21k has 21,843 classes
)
CONFIG_NUMBER = (
    20_000_000  # a whole number in the configuration of a network of transformers; one has 10 million positions
)
NETWORK_TENSORS = 100_000  # of a network that a file names; one of a hundred layers and experts has 40,000
NETWORK_NUMBERS = 200_000_000  # of a network that a file names beside few weights; a VGG-16 has 138 million
NUMBERS_PER_WEIGHT = (
    100  # of a network that a file names, for each weight in the file; one tenth of the filters is 1/100
)
PROBE_NUMBERS = 7_000_000  # of the random inputs that check a loaded network; an image of CityScapes has 6.3 million


def require_regular(path: Path) -> None:
    """Raise OSError where a path is no file that can be read to its end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", str(path))


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a file; OSError where it is no regular file, or has more bytes."""
    require_regular(path)
    if path.stat().st_size > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return path.read_bytes()
