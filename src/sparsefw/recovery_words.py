"""The words for how a smaller network recovers: in settings, files, tables and --help, which does not import torch."""

PLAIN = "plain"  # BatchNorm statistics are recomputed, or moments matched
REFIT = "refit"  # the remaining weights are fitted to the dense network as well
AUTO = "auto"  # refit="auto": the better of the two
SYNTHETIC = (
    "synthetic"  # calibration="synthetic": on inputs made from the statistics of batch norms, where there are no images
)
