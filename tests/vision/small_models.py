"""Small random image models of every class, fp32, seeded, spread so that greedy decoding has no ties: for every test that needs some.

Vocabularies are scattered and out of order on purpose, so that a code's token is never the code plus a number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from PIL import Image
from torch import Tensor

from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.chameleon import Chameleon
from mmspec.vision.families.emu3 import Emu3
from mmspec.vision.families.glm_image import GlmImage
from mmspec.vision.families.imagegpt import ImageGPT
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen

TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
WORDS = range(10, 40)  # ids of text tokens, in every class
PAD, BOS, EOS = 0, 1, 2


def spread(model: Any, by: float = 0.15) -> Any:
    """The model in eval mode, its weights spread; norms and picture tokenizers stay as they are."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "vqmodel" not in name and "visual" not in name:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * by)
    return model.eval()


def imagegpt(attention: str = "eager") -> Any:
    """24 pixels of 40 colours."""
    torch.manual_seed(0)
    config = hf.ImageGPTConfig(vocab_size=41, n_positions=24, n_embd=32, n_layer=2, n_head=4, attn_implementation=attention)
    return spread(hf.ImageGPTForCausalImageModeling(config))


def janus(attention: str = "sdpa") -> Any:
    """A grid of 4 x 4 codes out of 48, pictures of 8 x 8 pixels; the text vocabulary has 60 tokens, 5 begins a picture."""
    torch.manual_seed(0)
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
        "num_image_tokens": 16,
    }
    vq = {
        "embed_dim": 8,
        "num_embeddings": 48,
        "latent_channels": 16,
        "base_channels": 32,
        "channel_multiplier": (1, 1),
        "num_res_blocks": 1,
    }
    config = hf.JanusConfig(
        text_config=hf.LlamaConfig(vocab_size=60, max_position_embeddings=64, **TEXT, tie_word_embeddings=False),
        vision_config=vision | {"projection_dim": 32},
        vq_config=vq | {"projection_dim": 32, "image_token_embed_dim": 32},
        image_token_id=6,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    model = spread(hf.JanusForConditionalGeneration(config))
    model.generation_config.update(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    model.generation_config.generation_kwargs = {"boi_token_id": 5}
    return model


def emu3(attention: str = "sdpa") -> Any:
    """96 codes at scattered tokens of 300; 2 pixels a code. The row's end is 7, the closing tokens 8, 9 and 2; 4 comes last in prompts."""
    torch.manual_seed(0)
    places = torch.arange(60, 252, 2)[torch.randperm(96)].tolist()
    words = {"<|extra_200|>": 7, "<|extra_201|>": 8, "<|image end|>": 9, "<image>": 6, "<|image start|>": 5, "<|image token|>": 4}
    codes = {f"<|visual token {code:06d}|>": place for code, place in enumerate(places)}
    vq = {"codebook_size": 96, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": (1, 1), "num_res_blocks": 1}
    config = hf.Emu3Config(
        text_config=TEXT
        | {"vocab_size": 300, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "max_position_embeddings": 96},
        vq_config=vq | {"attn_resolutions": (), "hidden_size": 32},
        vocabulary_map=words | codes,
        attn_implementation=attention,
    )
    model = spread(hf.Emu3ForConditionalGeneration(config))
    model.generation_config.update(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    return model


def letters(number: int) -> str:
    """A code's name in Chameleon's vocabulary: letters for digits, and one more letter."""
    return "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(number)) + "Z"


def chameleon(attention: str = "sdpa") -> Any:
    """64 codes, out of order at tokens 50 to 113 of 200; 2 pixels a code, 10 a side. 5 begins a picture, 7 ends a row in Lumina's way."""
    torch.manual_seed(0)
    places = (50 + torch.randperm(64)).tolist()
    words = {"<image>": 6, "<racm3:break>": 5, "<eoss>": 8} | {letters(code): place for code, place in enumerate(places)}
    vq = {"embed_dim": 8, "num_embeddings": 64, "latent_channels": 8, "resolution": 10, "base_channels": 32, "channel_multiplier": (1, 1)}
    config = hf.ChameleonConfig(
        **(TEXT | {"num_key_value_heads": 4}),
        vocab_size=200,
        max_position_embeddings=64,
        vq_config=vq | {"num_res_blocks": 1},
        vocabulary_map=words,
        attn_implementation=attention,
    )
    return spread(hf.ChameleonForConditionalGeneration(config))


def glm_image(attention: str = "sdpa") -> Any:
    """64 codes; 64 begins a picture, 65 ends it; the head has 6 rows more that are never used."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]}
    text = TEXT | {"vocab_size": 120, "vision_vocab_size": 72, "pad_token_id": PAD, "eos_token_id": 65, "rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "image_size": 64}
    config = hf.GlmImageConfig(
        text_config=text | {"max_position_embeddings": 128},
        vision_config=vision,
        vq_config={"embed_dim": 8, "num_embeddings": 64, "latent_channels": 16},
        image_token_id=119,
        image_start_token_id=64,
        image_end_token_id=65,
        attn_implementation=attention,
    )
    model = spread(hf.GlmImageForConditionalGeneration(config))
    model.generation_config.update(pad_token_id=PAD, eos_token_id=65)
    return model


def llamagen(condition: str = "class") -> LlamaGen:
    """A grid of 4 x 4 codes out of 50; 7 classes, or captions of at most 5 features of width 12."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "grid": 4}
    prefix = {"classes": 7} if condition == "class" else {"prefix": 5, "caption_width": 12}
    return spread(LlamaGen(LlamaGenConfig(**sizes, intermediate_size=48, condition=condition, **prefix)))


def token_prompts(rows: int, end: int, longest: int = 7) -> dict[str, Tensor]:
    """Ragged prompts of random words, padded on the left, that begin with BOS and close with `end`."""
    torch.manual_seed(2)
    ids = torch.randint(WORDS.start, WORDS.stop, (rows, longest))
    ids[:, -1] = end
    start = torch.tensor([2, 0, 3, 1])[:rows] if rows > 1 else torch.tensor([1])
    columns = torch.arange(longest)
    ids = torch.where(columns == start[:, None], BOS, ids)
    mask = columns >= start[:, None]
    return {"input_ids": torch.where(mask, ids, PAD), "attention_mask": mask.long()}


def with_negative(prompts: dict[str, Tensor], end: int) -> dict[str, Tensor]:
    """The same with shorter prompts to guide away from, one a row."""
    negative = token_prompts(len(prompts["input_ids"]), end, longest=5)
    return prompts | {"negative_prompt_ids": negative["input_ids"], "negative_prompt_attention_mask": negative["attention_mask"]}


def features(rows: int) -> dict[str, Tensor]:
    """Ragged captions as features, padded on the left, as LlamaGen's are."""
    torch.manual_seed(2)
    lengths = torch.tensor([3, 5, 2, 4])[:rows]
    return {"features": torch.randn(rows, 5, 12), "mask": torch.arange(5) >= 5 - lengths[:, None]}


def tiles(codes: Tensor) -> list[Image.Image]:
    """A stand-in for an external decoder: 2 x 2 grey pixels a code."""
    grey = codes.repeat_interleave(2, 1).repeat_interleave(2, 2).to(torch.uint8).cpu().numpy()
    return [Image.fromarray(each) for each in grey]


@dataclass(frozen=True)
class Case:
    """One way to make pictures: the adapter, prompts for R rows, whether it can be guided, and its pictures' (width, height)."""

    make: Callable[[], ImageModel]
    prompts: Callable[[int], Any]
    guided: bool
    size: tuple[int, int]


def glm_prompts(rows: int) -> dict[str, Tensor]:
    grids = torch.tensor([[1, 4, 6], [1, 2, 3]]).repeat(rows, 1)
    return token_prompts(rows, end=64) | {"image_grid_thw": grids, "images_per_sample": torch.full((rows,), 2)}


def colours() -> Tensor:
    return torch.rand(40, 3, generator=torch.Generator().manual_seed(3)) * 2 - 1


CASES = {
    "imagegpt": Case(lambda: ImageGPT(imagegpt(), colours(), size=(4, 6)), lambda rows: [None] * rows, False, (6, 4)),
    "janus": Case(lambda: image_model(janus()), lambda rows: token_prompts(rows, end=5), True, (8, 8)),
    "emu3": Case(lambda: Emu3(emu3(), size=(8, 10)), lambda rows: with_negative(token_prompts(rows, end=4), end=4), True, (10, 8)),
    "chameleon": Case(
        lambda: Chameleon(chameleon(), None, tiles), lambda rows: with_negative(token_prompts(rows, end=5), 5), True, (10, 10)
    ),
    "lumina": Case(
        lambda: Chameleon(chameleon(), None, tiles, size=(6, 10), row_end=7, tail=(8,)),
        lambda rows: with_negative(token_prompts(rows, end=5), 5),
        True,
        (10, 6),
    ),
    "glm_image": Case(lambda: GlmImage(glm_image(), None, tiles, size=(128, 192), preview=(2, 3)), glm_prompts, False, (12, 8)),
    "llamagen-class": Case(lambda: LlamaGenPictures(llamagen(), tiles), lambda rows: [3, 0, 6, 1][:rows], True, (8, 8)),
    "llamagen-caption": Case(lambda: LlamaGenPictures(llamagen("caption"), tiles), features, True, (8, 8)),
}
