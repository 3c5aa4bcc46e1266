"""Training: configurations, recipes, the loop, checkpoints, and the evaluation of trained runs."""

from sparsefw.errors import Interrupted
from sparsefw.train.config import RunConfig
from sparsefw.train.folder import RunFolder
from sparsefw.train.recipes import load_recipe, recipe_descriptions
from sparsefw.train.run import fit

__all__ = ["Interrupted", "RunConfig", "RunFolder", "fit", "load_recipe", "recipe_descriptions"]
