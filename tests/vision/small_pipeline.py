"""A small random `GlmImagePipeline` of diffusers, with the real processors over tokenizers of a few words."""

from typing import Any

import diffusers
import torch
import transformers as hf
from PIL import Image

from tests.vision import small_models
from tests.vision.test_prompts import tokenizer

DIT, IMAGE, END = 64, 110, 65
SAID = (
    "{% for m in messages %}user : {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|dit|><|image|><|end|>{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}"
)
SIZE = {"height": 128, "width": 96}
"""4 x 3 codes behind a preview of 18 x 13: 247 tokens with the end."""


def processor() -> hf.GlmImageProcessor:
    names = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    special = {IMAGE: "<|image|>", 66: "<sop>", 67: "<eop>", DIT: "<|dit|>", END: "<|end|>"}
    own = tokenizer(special, names, words={str(n): 40 + n for n in range(20)}, padding_side="left")
    own.add_special_tokens({"bos_token": "<|dit|>"})
    pictures = hf.GlmImageImageProcessor(
        patch_size=16, temporal_patch_size=1, merge_size=1, size={"shortest_edge": 48 * 48, "longest_edge": 256 * 256}
    )
    return hf.GlmImageProcessor(pictures, own, chat_template=SAID)


def encoder(codes_only: bool = True) -> Any:
    """The small GLM-Image; `codes_only`: its generation config suppresses all tokens but codes, so that it writes the whole grid."""
    model = small_models.glm_image()
    model.config.image_token_id = model.model.config.image_token_id = IMAGE
    model.generation_config.update(suppress_tokens=list(range(64, 72)) if codes_only else None, do_sample=True, top_k=20, top_p=0.9)
    return model


def pipeline(codes_only: bool = True) -> Any:
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    transformer = diffusers.GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=32,
        time_embed_dim=16,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=72,
    )
    text = hf.T5Config(vocab_size=400, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, is_gated_act=True)
    pipe = diffusers.GlmImagePipeline(
        tokenizer=hf.ByT5Tokenizer(),
        processor=processor(),
        text_encoder=hf.T5EncoderModel(text).eval(),
        vision_language_encoder=encoder(codes_only),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(seed: int = 5) -> Image.Image:
    """A picture of 64 x 96 pixels: 2 x 3 codes."""
    pixels = torch.randint(0, 256, (64, 96, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())
