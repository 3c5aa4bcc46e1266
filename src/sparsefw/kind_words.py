"""The words for kinds, and what each removes: apart from sparsefw.kinds, since a --help need not wait for torch."""

KIND_WORDS = {
    "filters": "channels of all layers",
    "neurons": "outputs of linear layers",
    "heads": "attention heads",
    "rank": "singular values",
    "weights": "weights, set to 0 (or N:M such as 2:4)",
}
