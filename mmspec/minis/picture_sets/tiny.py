"""A tiny untrained model of drawn scenes, for `--smoke`."""

import json
from pathlib import Path
from typing import Any

import torch

from mmspec.minis.captions import text_tokenizer
from mmspec.minis.drawn.captioned import captioned_scene, draw_captioned
from mmspec.minis.picture_sets.folder import CAPTIONS
from mmspec.minis.picture_sets.sets import labelled_pictures
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen
from mmspec.vision.quality.classifier import Classifier, save_classifier


def tiny_scenes_model(folder: Path) -> tuple[Path, Path]:
    """Write 24 scenes of 16x16 pixels and an untrained model of 4x4 codes with a judge.

    Args:
        folder: where to; made if it is not there.

    Returns:
        The folder of pictures and the model's.
    """
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    shown, model = folder / "pictures", folder / "model"
    (shown / "images").mkdir(parents=True, exist_ok=True)
    scenes = [captioned_scene(0, number) for number in range(24)]
    rows = []
    for number, scene in enumerate(scenes):
        draw_captioned(scene, 16).save(shown / "images" / f"{number}.png")
        rows.append(json.dumps({"file": f"images/{number}.png", "caption": scene.caption, "attributes": scene.attributes}))
    (shown / CAPTIONS).write_text("\n".join(rows) + "\n", encoding="utf-8")
    tokens.save_tokenizer(tokens.make_tokenizer(**tokens.sizes_for(16, 4, codes=16, width=8)), model / "tokenizer")
    words = text_tokenizer([scene.caption for scene in scenes], 128)
    words.save_pretrained(model / "captions")
    t5 = T5Config(vocab_size=len(words), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, is_encoder_decoder=False)
    T5EncoderModel(t5).half().save_pretrained(model / "captions")
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 16}
    LlamaGen(LlamaGenConfig(**sizes, grid=4, condition="caption", caption_width=16, prefix=20)).half().save_pretrained(model / "target")
    values = labelled_pictures(shown, size=16, work=folder / "pixels").values
    labels = [f"{name}: {value}" for name, some in values.items() for value in some]
    groups = [len(some) for some in values.values()]
    save_classifier(Classifier(size=16, colours=3, labels=labels, widths=(4, 8), groups=groups), model / "classifier")
    return shown, model
