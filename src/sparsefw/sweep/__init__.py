"""Sweeps: many configurations of many methods, trained once each by any number of workers, and compared honestly."""

from sparsefw.sweep.grids import Grid, grid_names, load_grid

__all__ = ["Grid", "grid_names", "load_grid"]
