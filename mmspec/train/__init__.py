"""Training for drafters and minis: one resumable loop on accelerate."""

from mmspec.train.loop import Fit, fit

__all__ = ["Fit", "fit"]
