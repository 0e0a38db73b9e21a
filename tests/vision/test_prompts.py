"""Texts as prompts, through the classes' real processors over tokenizers of a few words: the adapter's prompts are the published ones."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ChameleonProcessor, Emu3Processor, GlmImageProcessor, JanusProcessor, PreTrainedTokenizerFast

from mmspec.vision.families.chameleon import Chameleon
from mmspec.vision.families.emu3 import Emu3
from mmspec.vision.families.glm_image import GlmImage
from mmspec.vision.families.janus import Janus
from tests.vision import small_models
from tests.vision.test_families import SCALE, run

WORDS = "a red green shoe hat boat on the sea user : assistant".split()
TEXTS = ["a red shoe", "a boat on the green sea"]
SAID = "{% for m in messages %}user : {% for c in m['content'] %}{{ c['text'] }} {% endfor %}{% endfor %}"
CHAT = SAID + "{% if add_generation_prompt %}assistant : {% endif %}"


def tokenizer(special: dict[int, str], named: dict[str, str], words: dict[str, int] | None = None, **options) -> PreTrainedTokenizerFast:
    """Words at ids from 10 on, `special` tokens at their own ids, some of them `named`."""
    known = {"<pad>": 0, "<s>": 1, "</s>": 2} | {word: 10 + number for number, word in enumerate(WORDS)} | (words or {})
    known |= {token: place for place, token in special.items()} | {"<unk>": 39}
    base = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=base,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=named,
        **options,
    )
    found.add_tokens(list(special.values()), special_tokens=True)
    return found


def ids_of(tokens: str) -> list[int]:
    return [10 + WORDS.index(word) for word in tokens.split()]


def checked(adapter, prompts: list[list[int]], away: list[list[int]] | None, embed) -> None:
    """The adapter's prompts for TEXTS are `prompts`, and guidance's `away`."""
    prompt = adapter.encode(TEXTS, away is not None)
    wanted = prompts + (away or [])
    for row, ids in enumerate(wanted):
        assert torch.equal(prompt.embeds[row, prompt.mask[row]], embed(torch.tensor(ids)))
    assert len(prompt.mask) == len(wanted)


def test_janus():
    names = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    own = tokenizer({6: "<image_placeholder>", 5: "<begin_of_image>", 7: "<end_of_image>"}, names, padding_side="left")
    model = small_models.janus()
    processor = JanusProcessor(image_processor(JanusProcessor), own, chat_template=CHAT)
    said = [[*ids_of(f"user : {text} assistant :"), 5] for text in TEXTS]
    checked(Janus(model, processor), said, [[0] * (len(ids) - 1) + [5] for ids in said], model.get_input_embeddings())
    assert run(Janus(model, processor), TEXTS, 2, 5, SCALE).shape == (2, 16)


def test_emu3():
    names = {
        "image_token": "<image>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    }
    special = {6: "<image>", 5: "<|image start|>", 9: "<|image end|>", 4: "<|image token|>", 8: "<|extra_201|>"}
    model = small_models.emu3()
    own = tokenizer(special, names, words={"4*5": 30, "3*2": 31, "low": 32}, padding_side="left")
    processor = Emu3Processor(image_processor(Emu3Processor), own)
    processor.downsample_ratio = 2
    embed = model.get_input_embeddings()

    def said(texts: list[str], size: int) -> list[list[int]]:
        return [[1, *([32] if text == "low" else ids_of(text)), 5, size, 4] for text in texts]

    adapter = Emu3(model, processor, size=(8, 10), negative="low")
    checked(adapter, said(TEXTS, 30), said(["low", "low"], 30), embed)
    checked(adapter.resized((6, 4)), said(TEXTS, 31), None, embed)
    checked(Emu3(model, processor, size=(8, 10)), said(TEXTS, 30), said(["", ""], 30), embed)
    assert run(adapter, TEXTS, 2, 5, SCALE).shape == (2, 27)


def test_chameleon():
    names = {"image_token": "<image>", "boi_token": "<racm3:break>", "eoi_token": "<eoss>"}
    own = tokenizer({6: "<image>", 5: "<racm3:break>", 8: "<eoss>"}, names, sep_token="</s>", padding_side="left")
    model = small_models.chameleon()
    processor = ChameleonProcessor(image_processor(ChameleonProcessor), own)
    checked(Chameleon(model, processor), [[*ids_of(text), 5] for text in TEXTS], None, model.get_input_embeddings())
    with pytest.raises(ValueError, match="add negative_prompt_ids"):
        Chameleon(model, processor).encode(TEXTS, True)


def test_glm_image():
    names = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    own = tokenizer({69: "<|image|>", 66: "<sop>", 67: "<eop>"}, names, words={str(n): 40 + n for n in range(20)}, padding_side="left")
    own.add_special_tokens({"bos_token": "<|dit|>"})
    model = small_models.glm_image()
    processor = GlmImageProcessor(image_processor(GlmImageProcessor), own, chat_template=SAID)
    adapter = GlmImage(model, processor, size=(128, 96))
    preview = [40 + side for side in adapter.preview]
    said = [[*ids_of(f"user : {text}"), 66, 44, 43, 67, 66, *preview, 67, own.bos_token_id] for text in TEXTS]
    checked(adapter, said, None, model.get_input_embeddings())
    assert adapter.preview == (18, 13)
    grids = processor(text=TEXTS, target_h=128, target_w=96, padding=True, return_tensors="pt")["image_grid_thw"]
    assert grids.tolist() == [[1, 4, 3], [1, 18, 13]] * 2


def image_processor(kind: type):
    """The image processor of `kind`, which texts do not use."""
    import transformers

    name = kind.__name__.replace("Processor", "ImageProcessor")
    return getattr(transformers, name)()
