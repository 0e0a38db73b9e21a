"""Small random VibeVoices, frames of 8 samples, and the class's own generation from given noise."""

import copy
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from diffusers import DPMSolverMultistepScheduler
from torch import Tensor
from transformers import GenerationConfig, VibeVoiceConfig, VibeVoiceForConditionalGeneration

WIDTH, FRAME, WORDS = 4, 8, 20
"""Numbers of a latent, samples of a frame, text ids."""
PAD, START, END, SOUND = 20, 21, 22, 23


def vibevoice(seed: int = 0, width: int = 32, layers: int = 2, latents: int = WIDTH, gain: float = 5.0, guidance: float = 1.5) -> Any:
    """Strong enough that latents hang on what was said and heard before them. It says frames only, unless `leaning` is asked otherwise."""
    torch.manual_seed(seed)
    tower = {
        "hidden_size": latents,
        "num_filters": 4,
        "downsampling_ratios": [2, 4],
        "depths": [1, 1, 1],
        "kernel_size": 3,
        "ffn_expansion": 2,
        "layer_scale_init_value": 0.5,
    }
    text = {
        "model_type": "qwen2",
        "vocab_size": 24,
        "hidden_size": width,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    config = VibeVoiceConfig(
        text_config=text,
        audio_config={"model_type": "vibevoice_acoustic_tokenizer"} | tower,
        semantic_model_config={"model_type": "vibevoice_acoustic_tokenizer_encoder"} | tower | {"hidden_size": 6},
        diffusion_head_config={"num_hidden_layers": 1, "intermediate_size": 32, "frequency_embedding_size": 16},
        pad_token_id=PAD,
        eos_token_id=PAD,
        audio_bos_token_id=START,
        audio_eos_token_id=END,
        audio_token_id=SOUND,
    )
    model = VibeVoiceForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(gain if parameter.dim() > 1 else 1)
    model.model.latent_scaling_factor.data.fill_(0.7)
    model.model.latent_bias_factor.data.fill_(-0.1)
    model.generation_config = GenerationConfig(eos_token_id=PAD, pad_token_id=PAD, guidance_scale=guidance, num_diffusion_steps=4)
    return leaning(model)


def leaning(model: Any, to: Mapping[int, float] | None = None) -> Any:
    """`model` with ids' scores moved by a head with a bias; by default frames only are chosen."""
    bias = torch.zeros(24)
    for number, by in ({SOUND: 1e4} if to is None else to).items():
        bias[number] = by
    head = torch.nn.Linear(model.lm_head.in_features, 24)
    head.weight.data.copy_(model.lm_head.weight)
    head.bias.data.copy_(bias)
    model.lm_head = head
    return model


def near(model: Any, by: float = 0.05, seed: int = 3) -> Any:
    found = copy.deepcopy(model)
    torch.manual_seed(seed)
    for parameter in found.model.diffusion_head.parameters():
        parameter.data.add_(torch.randn_like(parameter) * by * parameter.std().nan_to_num(0))
    return found


def prompts(rows: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Of 7, 6, 5, ... ids padded on the left."""
    torch.manual_seed(seed)
    lines = [torch.cat([torch.randint(0, WORDS, (6 - row % 3,)), torch.tensor([START])]) for row in range(rows)]
    most = max(map(len, lines))
    ids = torch.stack([F.pad(line, (most - len(line), 0), value=PAD) for line in lines])
    mask = torch.stack([F.pad(torch.ones_like(line), (most - len(line), 0)) for line in lines])
    return {"input_ids": ids, "attention_mask": mask}


def row_of(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row : row + 1] for name, value in inputs.items()}


@torch.no_grad()
def generated(
    model: Any, inputs: Mapping[str, Tensor], noise: Tensor, steps: int, said: Tensor | None = None, **options: Any
) -> tuple[Any, list[Tensor]]:
    """The class's own generation and what its head made [B, d] of each frame, fed the rows of `noise` [B, T, d] in turn.

    With `said` [B, T, d] those latents go on in place of the head's own.
    """
    own, made = model._sample_audio_latent, []

    def fed(positive: Tensor, *rest: Any) -> Tensor:
        frame = len(made)
        drawn = noise[:, frame].repeat(2, 1)
        with patch("torch.randn", lambda *size, **kwargs: drawn):
            latent = own(positive, *rest)
        made.append(latent[:, 0])
        return latent if said is None else said[:, frame : frame + 1]

    model._sample_audio_latent = fed
    try:
        scheduler = DPMSolverMultistepScheduler(beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction")
        return model.generate(**inputs, max_new_tokens=steps, noise_scheduler=scheduler, return_dict_in_generate=True, **options), made
    finally:
        del model._sample_audio_latent
