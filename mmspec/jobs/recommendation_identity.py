"""What identifies a recommendation job: fingerprints of its model, catalogue and drafter."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from mmspec.loading.recsys import Recommender


def digest(*parts: Any) -> str:
    """Return the SHA-256 over tensors and JSON data."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            found.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()


def recommendation_job_identity(recommender: Recommender, drafts: bool = True) -> dict[str, str]:
    """Return what recommendations depend on beside records and options: fingerprints of target, config, catalogue and, where it `drafts`,
    drafter.

    Drafts do not change strict results, except for the last bit of a score.
    """
    from mmspec.utils.fingerprints import config_digest, weights

    drafter = recommender.drafter
    found = {
        "target": weights(recommender.model),
        "config": config_digest(recommender.model.config),
        "generation config": config_digest(recommender.model.generation_config),
        "catalogue": recommender.catalogue.digest,
    }
    if drafts and drafter is not None:
        found["drafter"] = weights(drafter) if hasattr(drafter, "state_dict") else digest(*_state(drafter))
    return found


def _state(drafter: Any) -> list[Any]:
    """Names and values of what a drafter that is no module was counted from."""
    state = drafter.state() if hasattr(drafter, "state") else {"drafter": repr(drafter)}
    return [part for name in sorted(state) for part in (name, state[name])]
