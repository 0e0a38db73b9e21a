"""A small target that follows a permutation, and transformers' DFlash assistant for it, trained here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.drafters.block.dflash import DFlash
from mmspec.train import Fit, fit
from mmspec.train.distillation import DistillationLoss, RecordedWindow, aim_for
from tests.drafters.runs import fives, markov


def trained(folder: Path, steps: int = 40) -> tuple[Any, Any]:
    """The target, and an assistant after `steps` of training. Its progress is written to `folder`."""
    hf = pytest.importorskip("transformers", "5.23", reason="transformers has DFlash assistants since 5.23")
    target = markov(fives).requires_grad_(False)
    starts = torch.randint(0, 50, (32, 1), generator=torch.Generator().manual_seed(1))
    ids = starts // 5 * 5 + (starts + torch.arange(36)) % 5
    with torch.no_grad():
        last = target(ids, output_hidden_states=True).hidden_states[-1]
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    torch.manual_seed(0)
    net = DFlash((1,), sizes, 50, block=5, mask_id=49)
    example = DistillationLoss(net, target, aim_for(net))
    window = RecordedWindow(ids, last, last, torch.ones_like(ids, dtype=torch.bool))
    settings = Fit(steps=steps, lr=1e-2, warmup=5)
    fit(example, lambda m, turn: m(replace(window, seeds=range(turn, turn + 32))), settings, folder / "run.pt")
    kinds = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config = hf.MuseGlimmerAssistantConfig(
        **sizes, **kinds, block_size=5, mask_token_id=49, target_layer_ids=[0], rms_norm_eps=1e-6, max_position_embeddings=256
    )
    model = hf.MuseGlimmerAssistantModel(config).eval()
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    model.load_state_dict({names.get(name, name): tensor for name, tensor in net.state_dict().items()})
    return target, model
