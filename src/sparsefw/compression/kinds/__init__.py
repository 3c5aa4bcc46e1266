"""How a network is cut by each kind of sparsefw.kinds."""

from sparsefw.compression.kinds import filters, rank, weights  # they register their stages
from sparsefw.compression.kinds.stage import STAGES, Stage, StageRecord, StageRequest, restored_stage, stage_for

__all__ = [
    "STAGES",
    "Stage",
    "StageRecord",
    "StageRequest",
    "filters",
    "rank",
    "restored_stage",
    "stage_for",
    "weights",
]
