"""How much of a file from elsewhere is taken into memory: far more than real files have, far less than a machine.

A file of some hundred bytes can ask for gigabytes: by YAML aliases of aliases, by compression, by the size that an image claims.
Each is refused in one line before memory is taken.
"""

RECIPE_CHARACTERS = 1_000_000  # of a recipe, a grid or a configuration; the longest shipped one has 4,000
IMAGE_PIXELS = 100_000_000  # of one image: 300 MB; the largest of ImageNet has 61 million
ARRAY_BYTES = 2 * 1024**3  # of one array of images, unpacked; MNIST has 47 MB, CIFAR-100 180 MB
PROBE_NUMBERS = (
    50_000_000  # of the random inputs on which a loaded network is checked; an image has some hundred thousand
)
