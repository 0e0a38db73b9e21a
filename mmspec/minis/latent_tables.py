"""Fashion-MNIST as continuous tokens, for training."""

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from mmspec.minis import pictures
from mmspec.train.continuous.targets import Table
from mmspec.train.states.identity import keyed
from mmspec.vision.continuous.autoencoder import load_autoencoder, posteriors

MIRRORED = (0, 1, 2, 3, 4, 6, 8)
"""Classes whose training pictures are mirrored too: all but shoes, which all look one way."""


def fashion_table(folder: Path, kept: Path, part: str) -> Table:
    """Return the posteriors of a part of Fashion-MNIST (MMSPEC_DATA); made once for an autoencoder and `kept`.

    Args:
        folder: of the autoencoder.
        kept: the file.
        part: "train" or "test".
    """
    autoencoder = load_autoencoder(folder)
    kept = keyed(kept, autoencoder, part)
    if not kept.exists():
        shown, classes = pictures.fashion(Path(os.environ.get("MMSPEC_DATA", "../shared/data")), part)
        if part == "train":
            mirrored = np.isin(classes, MIRRORED)
            shown, classes = np.concatenate([shown, shown[mirrored, :, ::-1]]), np.concatenate([classes, classes[mirrored]])
        mean, std = posteriors(autoencoder, shown)
        torch.save(asdict(Table(mean.half(), std.half(), torch.tensor(classes).long())), kept)
    return Table(**torch.load(kept))
