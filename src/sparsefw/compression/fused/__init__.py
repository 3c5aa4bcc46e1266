"""Kernels that treat all layers of a network in one launch, imported where there is a GPU."""
