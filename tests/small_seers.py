"""Small random models that see, on disk with their processors: what the caption command's tests load by path."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmspec.minis import vlm_model as sights
from mmspec.minis.drawn import scenes

WORDS = "describe the picture pictures . ? what do you see how many red blue green circles squares is there left right a of and".split()
TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{{ '<image>' if c['type'] == 'image' else c['text'] }}{% endfor %}{% endfor %} ?"
)


def processor() -> Any:
    """Of a LLaVA: a word is a token, pictures of any size become 4 x 4 patches."""
    words = dict.fromkeys([sights.PAD, sights.UNKNOWN, sights.END, sights.IMAGE, "\n", *WORDS])
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=sights.UNKNOWN))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\n|[^\w\s]"), behavior="removed", invert=True)
    special = {"eos_token": sights.END, "pad_token": sights.PAD, "unk_token": sights.UNKNOWN, "additional_special_tokens": [sights.IMAGE]}
    names = ["input_ids", "attention_mask"]
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=found, padding_side="left", model_input_names=names, **special)
    side = {"height": scenes.SIDE, "width": scenes.SIDE}
    pictures = CLIPImageProcessorPil(size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    shape = {"patch_size": sights.PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return hf.LlavaProcessor(pictures, tokenizer, image_token=sights.IMAGE, **shape)


def seer(own: Any, seed: int = 0) -> Any:
    """A LLaVA whose distributions differ from picture to picture and from place to place."""
    torch.manual_seed(seed)
    model = sights.new_llava(own, width=32, layers=2, heads=2, feed=64, vision_width=16).eval()
    for parameter in model.parameters():
        parameter.data.mul_(10 if parameter.dim() > 1 else 1)
    model.lm_head.weight.data.mul_(4)
    return model


def reader(own: Any, target: Any) -> Any:
    """A drafter that reads text: the target's language model by itself."""
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sights.llama_options(own.tokenizer, 32, 2, 2, 64))).eval()
    model.model.load_state_dict(target.model.language_model.state_dict())
    model.lm_head.load_state_dict(target.lm_head.state_dict())
    return model


def save_all(root: Path) -> Path:
    """`seer`, `chatty` (the same with a chat template), `reader` (text alone), `blip` (a family that does not run)."""
    own = processor()
    target = seer(own)
    for name, template in (("seer", None), ("chatty", TEMPLATE)):
        target.save_pretrained(root / name)
        own.chat_template = template
        own.save_pretrained(root / name)
    reader(own, target).save_pretrained(root / "reader")
    own.tokenizer.save_pretrained(root / "reader")
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 50, "encoder_hidden_size": 16, "bos_token_id": 1, "sep_token_id": 2, "pad_token_id": 0}
    hf.BlipConfig(text_config=text, vision_config=size | {"image_size": 16, "patch_size": 8}).save_pretrained(root / "blip")
    return root


def drawn(folder: Path, count: int = 5) -> list[Path]:
    """Pictures of scenes, 0.png and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes.scenes(3, count)):
        scenes.draw_scene(scene).save(folder / f"{number}.png")
    return sorted(folder.glob("*.png"))


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    torch.manual_seed(seed)
    channels = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    values = torch.randint(0, 256, (height, width, channels), dtype=torch.uint8).numpy()
    return Image.fromarray(values[..., 0] if channels == 1 else values, mode)
