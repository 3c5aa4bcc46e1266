"""The names of kinds and what each removes, for --help: apart from sparsefw.kinds, so that --help does not import torch."""

KIND_WORDS = {
    "filters": "channels of all layers",
    "neurons": "outputs of linear layers outside of attention",
    "heads": "attention heads",
    "rank": "singular values",
    "weights": "weights, set to 0 (or N:M such as 2:4)",
}

PATTERN = "N:M"  # the family of kinds such as "2:4"


def is_pattern(text: str) -> bool:
    """Whether the text is meant as a pattern N:M; sparsefw.kinds.kind_of checks its numbers.

    >>> is_pattern("2:4"), is_pattern("filters"), is_pattern("0.5")
    (True, False, False)
    """
    return ":" in text
