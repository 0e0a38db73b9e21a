"""The sweep's image-text models: every architecture of transformers' MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.

Rows have one, two and no pictures. How many positions a picture takes is what the model's own `get_image_features` gives.
"""

from functools import partial
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from mmspec.models.families.multimodal import never_generated_ids_of
from tests.crossing import row_of
from tests.seeing import SIGHTS, seen
from tests.sizes import build
from tests.sweep.case import LENGTHS, Case, Inputs, own_generate, padded, text_row
from tests.sweep.image_models import CONFIGS, NAMED, READS, SEEN, SIGLIP, TEXT
from tests.sweep.seq2seq import livelier
from tests.sweep.shrink import small_config, small_model

FIRST, LAST = 5, 30
PICTURES = (1, 2, 0)
LARGEST = 30_000_000  # parameters


def make(model_type: str, architecture: str) -> Any:
    """A small random model: that of `tests.seeing` where it has one, else one of a generated config."""
    if model_type in NAMED:
        return build(SIGHTS[NAMED[model_type]].case)
    config_class, model_class = CONFIG_MAPPING[model_type], getattr(transformers, architecture)
    if model_type == "vision-encoder-decoder":
        decoder = small_config(transformers.BertConfig, is_decoder=True, add_cross_attention=True)
        config = config_class.from_encoder_decoder_configs(small_config(transformers.ViTConfig), decoder)
    else:
        config = small_config(config_class, **sub_configs(model_type))
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its small config has {size} parameters")
    model = small_model(model_class, config)
    if model_type in SEEN:
        livelier(model).generation_config.decoder_start_token_id = 1
        model.generation_config.num_beams = 1
    return model


def sub_configs(model_type: str) -> dict[str, Any]:
    """Of the table, or small common ones where neither the config class nor its default says which class they have."""
    config_class = CONFIG_MAPPING[model_type]
    if model_type in CONFIGS:
        return CONFIGS[model_type]
    is_open = [name for name, sub in (config_class.sub_configs or {}).items() if sub.__name__ == "AutoConfig"]
    try:
        default = config_class()
    except (TypeError, ValueError, AttributeError, KeyError):
        default = None
    return {name: TEXT if "text" in name else SIGLIP for name in is_open if getattr(default, name, None) is None}


def takes(model: Any, picture: dict[str, Tensor], by_row: bool) -> int:
    """How many positions one picture takes."""
    picture = {key: value[None] for key, value in picture.items()} if by_row else picture
    encode = model.base_model.get_image_features
    with torch.no_grad():
        found = encode(**{key: value for key, value in picture.items() if key in signature(encode).parameters}, return_dict=True)
    features = getattr(found, "pooler_output", found)
    features = [features] if isinstance(features, Tensor) else features
    return sum(part.numel() for part in features) // model.get_input_embeddings().weight.shape[1]


def row_parts(model: Any, model_type: str, row: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """The ids of a row and its pictures."""
    look, words = READS[model_type], text_row(row, LAST, lengths=LENGTHS, first=FIRST)["input_ids"][0]
    pictures = [look.picture(torch.Generator().manual_seed(10 * row + number)) for number in range(PICTURES[row])]
    sizes = [look.takes or takes(model, picture, look.by_row) for picture in pictures]
    start = torch.tensor([model.config.vision_start_token_id] if look.opens else [], dtype=torch.long)
    places = [torch.cat([start, torch.full((size,), model.config.image_token_id)]) for size in sizes]
    parts = [] if look.first else [words[:3]]
    for number, place in enumerate(places):
        parts += [place] if look.first else [place, words[3 + number : 4 + number]]
    ids = torch.cat([*parts, words[5:]])[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, pictures


def with_pictures(model: Any, model_type: str, text: dict[str, Tensor], rows: list[list[dict[str, Tensor]]]) -> Inputs:
    """`text` and the pictures of all rows, as the processor joins them."""
    known, look, found = signature(model.forward).parameters, READS[model_type], dict(text)
    marked = found["input_ids"] == model.config.image_token_id
    if "mm_token_type_ids" in known:
        found["mm_token_type_ids"] = marked.long()
    elif "token_type_ids" in known:
        found["token_type_ids"] = torch.zeros_like(found["input_ids"]) if look.first else marked.long()
    pictures = [picture for row in rows for picture in row]
    if not pictures:
        return found
    if not look.by_row:
        axes = {"pixel_values": -1} if look.strip else {}
        return found | {key: torch.cat([picture[key] for picture in pictures], axes.get(key, 0)) for key in pictures[0]}
    most = max(map(len, rows))
    empty = {key: torch.zeros_like(value) for key, value in pictures[0].items()}
    filled = [[*row, *[empty] * (most - len(row))] for row in rows]
    return found | {key: torch.stack([torch.cat([picture[key] for picture in row]) for row in filled]) for key in empty}


def alone(model_type: str, model: Any, row: int) -> Inputs:
    """One row: with its pictures where the model is driven, words alone where it is not."""
    if model_type == "mllama":
        return row_of(seen("Mllama", PICTURES), row)
    if model_type in SEEN:
        return SEEN[model_type](torch.Generator().manual_seed(row))
    if model_type not in READS:
        return text_row(row, LAST, first=FIRST)
    text, pictures = row_parts(model, model_type, row)
    return with_pictures(model, model_type, text, [pictures])


def batch(model_type: str, model: Any, rows: int) -> Inputs:
    """The first `rows` rows, padded on the left; for encoders, which count from the first column, on the right."""
    if model_type == "mllama":
        return seen("Mllama", PICTURES[:rows])
    if model_type in SEEN:
        found = [alone(model_type, model, row) for row in range(rows)]
        return {name: torch.cat([each[name] for each in found]) for name in found[0]}
    if model_type not in READS:
        return padded([text_row(row, LAST, first=FIRST) for row in range(rows)])
    parts = [row_parts(model, model_type, row) for row in range(rows)]
    text = padded([text for text, _ in parts], left=not model.config.is_encoder_decoder)
    return with_pictures(model, model_type, text, [pictures for _, pictures in parts])


def reference(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """New tokens by the class's own `generate`, which may not write placeholders."""
    if getattr(model.config, "is_encoder_decoder", False):
        return own_generate(model, inputs, tokens)
    new = model.generate(**inputs, do_sample=False, max_new_tokens=tokens, suppress_tokens=list(never_generated_ids_of(model)) or None)
    return new[0, inputs["input_ids"].shape[1] :].tolist()


def cases() -> list[Case]:
    """One case for every model type that reads pictures and writes text."""
    return [
        Case(name, "image", architecture, partial(make, name, architecture), partial(alone, name), partial(batch, name), reference, 12)
        for name, architecture in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
    ]
