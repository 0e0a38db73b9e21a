"""Small random checkpoints in the layouts in which image models are published."""

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers as hf
from torch import Tensor
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen
from tests.vision import small_models, small_pipeline
from tests.vision.test_prompts import CHAT, image_processor, tokenizer


def janus_vq() -> Any:
    """The network of LlamaGen's picture decoder: 50 codes, 4 pixels a code, 16 a side."""
    torch.manual_seed(3)
    sizes = {"embed_dim": 8, "num_embeddings": 50, "latent_channels": 32, "base_channels": 32, "channel_multiplier": (1, 1, 2)}
    return small_models.spread(JanusVQVAE(JanusVQVAEConfig(**sizes, num_res_blocks=1, num_patches=4)), 0.02)


def llamagen_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of `vq_ds16_*.pt` for those of `JanusVQVAE`."""
    found = {}
    for name, tensor in weights.items():
        for new, old in (("decoder.mid.0.", "decoder.mid.block_1."), ("decoder.mid.1.", "decoder.mid.attn_1.")):
            name = name.replace(old, new)
        name = name.replace("decoder.mid.block_2.", "decoder.mid.2.").replace("decoder.up.", "decoder.conv_blocks.")
        found[name.replace(".block.", ".res.") if "conv_blocks" in name else name] = tensor
    return found


def taming_vq(codes: int = 64, channels: tuple[int, ...] = (32, 32)) -> Any:
    """A diffusers `VQModel` whose decoder is that of taming-transformers: 2 pixels a code."""
    torch.manual_seed(4)
    blocks = len(channels)
    model = diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=channels,
        latent_channels=8,
        num_vq_embeddings=codes,
        vq_embed_dim=8,
        norm_num_groups=32,
    )
    return small_models.spread(model, 0.02)


def taming_names(model: Any) -> dict[str, Tensor]:
    """The names of `vqgan.ckpt` for those of diffusers' decoder, whose linear projections are convolutions there."""
    levels, found = len(model.config.block_out_channels), {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(("decoder.", "post_quant_conv.", "quantize.")):
            continue
        name = name.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        name = name.replace("mid_block.attentions.0.group_norm", "mid.attn_1.norm").replace("conv_norm_out", "norm_out")
        for part, short in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")):
            if f"attentions.0.{part}." in name and tensor.dim() == 2:
                tensor = tensor[..., None, None]
            name = name.replace(f"mid_block.attentions.0.{part}", f"mid.attn_1.{short}")
        for level in range(levels):
            name = name.replace(f"up_blocks.{level}.", f"up.{levels - 1 - level}.")
        found[name.replace("resnets", "block").replace("upsamplers.0", "upsample").replace("conv_shortcut", "nin_shortcut")] = tensor
    return found


def llamagen(folder: Path, name: str = "c2i_64.pt", grid: int = 4, classes: int = 7) -> tuple[Path, Path]:
    """`name`, which says pixels a side (16 a code), and its picture decoder."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "grid": grid}
    net = small_models.spread(LlamaGen(LlamaGenConfig(**sizes, intermediate_size=48, classes=classes)))
    torch.save({"model": net.state_dict(), "optimizer": None}, folder / name)
    torch.save({"model": llamagen_names(janus_vq().state_dict())}, folder / "vq.pt")
    return folder / name, folder / "vq.pt"


def chameleon(folder: Path, lumina: bool = False) -> tuple[Path, Path]:
    """A folder of Anole's or Lumina-mGPT's layout, and `vqgan.ckpt`."""
    model = small_models.chameleon()
    names = {"image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>"}
    special = {6: "<image>", 5: "<racm3:break>", 8: "<eoss>"}
    if lumina:
        special |= {7: "<reserved08799>", 9: "<reserved08706>", 40: "<reserved08803>", 41: "<reserved08802>"}
        model.config.vocabulary_map = model.config.vocabulary_map | {token: place for place, token in special.items()}
    own = tokenizer(special, names, sep_token="</s>", padding_side="left")
    place = folder / ("lumina-mgpt" if lumina else "anole")
    model.save_pretrained(place)
    (own if lumina else hf.ChameleonProcessor(image_processor(hf.ChameleonProcessor), own)).save_pretrained(place)
    torch.save({"state_dict": taming_names(taming_vq())}, folder / "vqgan.ckpt")
    return place, folder / "vqgan.ckpt"


def janus_processor() -> Any:
    names = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    own = tokenizer({6: "<image_placeholder>", 5: "<begin_of_image>", 7: "<end_of_image>"}, names, padding_side="left")
    return hf.JanusProcessor(image_processor(hf.JanusProcessor), own, chat_template=CHAT)


def janus(folder: Path) -> Path:
    small_models.janus().save_pretrained(folder / "janus")
    janus_processor().save_pretrained(folder / "janus")
    return folder / "janus"


def emu3(folder: Path) -> Path:
    names = {"image_token": "<image>", "boi_token": "<|image start|>", "eoi_token": "<|image end|>"}
    names |= {"image_wrapper_token": "<|image token|>", "eof_token": "<|extra_201|>"}
    special = {6: "<image>", 5: "<|image start|>", 9: "<|image end|>", 4: "<|image token|>", 8: "<|extra_201|>"}
    own = tokenizer(special, names, words={"4*5": 30, "low": 32}, padding_side="left")
    small_models.emu3().save_pretrained(folder / "emu3")
    hf.Emu3Processor(image_processor(hf.Emu3Processor), own).save_pretrained(folder / "emu3")
    return folder / "emu3"


def imagegpt(folder: Path) -> Path:
    torch.manual_seed(0)
    config = hf.ImageGPTConfig(vocab_size=41, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    small_models.spread(hf.ImageGPTForCausalImageModeling(config)).save_pretrained(folder / "imagegpt")
    colours = np.random.default_rng(0).uniform(-1, 1, (40, 3))
    hf.ImageGPTImageProcessor(clusters=colours).save_pretrained(folder / "imagegpt")
    return folder / "imagegpt"


def glm_image(folder: Path) -> Path:
    small_pipeline.pipeline().save_pretrained(folder / "glm")
    return folder / "glm"
