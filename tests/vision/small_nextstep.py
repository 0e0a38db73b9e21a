"""A small random NextStep-1, and its tokenizer: pictures of 32 x 48 pixels are 2 x 3 tokens of 16 numbers."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmspec.vision.continuous.nextstep import NextStep, nextstep_config
from mmspec.vision.continuous.nextstep_pictures import NextStepPictures
from mmspec.vision.families.base import as_pictures
from tests.vision import small_models
from tests.vision.test_prompts import tokenizer

SIZE, GRID, WIDTH, STEPS = (32, 48), (2, 3), 16, 5
FIELDS = {
    **{"model_type": "nextstep", "architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "models/nextstep_model.NextStep"}},
    **{"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "rope_theta": 1000000.0, "rms_norm_eps": 1e-05, "hidden_act": "silu"},
    **{"attention_bias": True, "o_attention_bias": False, "mlp_bias": False, "max_position_embeddings": 128, "tie_word_embeddings": False},
    **{"num_channels": 4, "patch_size": 2, "genloss_width": 24, "genloss_depth": 2, "boi": 5, "eoi": 7, "image_placeholder_id": 6},
    **{"head_steps": STEPS, "use_gen_pos_embed": True, "base_image_grid_size": 4},
}


def words() -> Any:
    return tokenizer({6: "<|image_placeholder|>", 5: "<|begin_of_image|>", 4: "<|image_area|>2*3"}, {}, words={"2*3": 30})


@cache
def network(places: bool = True) -> NextStep:
    torch.manual_seed(0)
    return small_models.spread(NextStep(nextstep_config(FIELDS | {"use_gen_pos_embed": places})), 0.1)


def pictures(places: bool = True, **options: Any) -> NextStepPictures:
    return NextStepPictures(network(places), words(), size=SIZE, negative="the sea", **options)


def loaded(*folder: Any, **options: Any) -> NextStepPictures:
    """In place of `load_nextstep` in the docs: grey pictures of the first number of every latent."""

    def to_pictures(latents: Tensor) -> Any:
        return as_pictures(latents[:, :1].float())

    return pictures(to_pictures=to_pictures)
