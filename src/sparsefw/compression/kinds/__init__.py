"""How a network is cut by each kind of sparsefw.kinds."""

from sparsefw.compression.kinds import filters, rank, weights  # they register their stages
from sparsefw.compression.kinds.stage import STAGES, Stage, StageRequest, stage_for

__all__ = ["STAGES", "StageRequest", "Stage", "filters", "rank", "stage_for", "weights"]
