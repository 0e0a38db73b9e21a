"""Training for drafters and minis: one resumable loop on accelerate."""

from mmspec.train import look_ahead, unrolls  # noqa: F401  they register with lessons.unroll
from mmspec.train.loop import Fit, fit

__all__ = ["Fit", "fit"]
