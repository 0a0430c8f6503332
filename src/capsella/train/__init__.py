"""Training: one loop, exact resume, several processes; every run leaves a record."""

from capsella.train.checkpoint import CheckpointError
from capsella.train.config import TrainConfig
from capsella.train.evaluation import Evaluation, evaluate
from capsella.train.fitting import fit
from capsella.train.health import NonFiniteLoss
from capsella.train.memory import OutOfMemory
from capsella.train.plan import Plan, run_plan
from capsella.train.run import Run
from capsella.train.signals import Interrupted
from capsella.train.together import Outcome, Standing, run_together

__all__ = [
    "CheckpointError",
    "Evaluation",
    "Interrupted",
    "NonFiniteLoss",
    "OutOfMemory",
    "Outcome",
    "Plan",
    "Run",
    "Standing",
    "TrainConfig",
    "evaluate",
    "fit",
    "run_plan",
    "run_together",
]
