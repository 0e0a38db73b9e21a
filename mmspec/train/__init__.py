"""Training for drafters and minis: one resumable loop on accelerate."""

from mmspec.train import unrolls  # noqa: F401  it registers with distillation.unroll
from mmspec.train.loop import Fit, fit

__all__ = ["Fit", "fit"]
