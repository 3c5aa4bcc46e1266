"""Constraints: regions for the units that compression can remove later."""

from sparsefw.constraints.constrained import constrain
from sparsefw.constraints.removable import Removable, removable_units

__all__ = ["Removable", "constrain", "removable_units"]
