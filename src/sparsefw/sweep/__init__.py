"""Sweeps: many configurations of many methods, trained once each by any number of workers, and compared honestly."""

from sparsefw.sweep.grids import Grid, grid_descriptions, load_grid

__all__ = ["Grid", "grid_descriptions", "load_grid"]
