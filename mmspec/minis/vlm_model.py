"""Mini vlm from its folder: a LLaVA-type target that describes drawn scenes, and what drafts for it."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.minis.drawn import scenes
from mmspec.minis.weights import llama
from mmspec.utils.packing import read_bytes, save_bytes

IMAGE, PAD, UNKNOWN, END, LINE = "<image>", "<pad>", "<unk>", "<end>", "\n"
PATCH = 16
LONGEST = 96
"""Tokens of the longest answer, with room to spare."""
TOWER = "model.vision_tower."
"""Beginning of the names of a vision tower's weights."""
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ '\n' + message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}{{ '\n' }}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
)
"""As a chat: pictures, a line break, the question, a line break."""
FORMS = ("describe", "questions", "describe", "questions", "describe", "questions", "questions", "pairs")
"""Batches of examples take these turns: a batch of one form pads little."""
_OFTEN = {"count": 3, "presence": 3}  # what has to be looked for all over a picture is learned last


@dataclass(frozen=True)
class PictureQuestion:
    """One or two pictures, a question about them, and its answer."""

    pictures: tuple[scenes.Scene, ...]
    question: scenes.Question

    @property
    def prompt(self) -> str:
        """The prompt as the processor reads it."""
        return prompt(self.question.text, len(self.pictures))


def prompt(question: str, pictures: int = 1) -> str:
    """What the processor reads, given `pictures` pictures with it."""
    return f"{IMAGE * pictures}\n{question}\n"


def asked(seed: int, count: int, form: str) -> list[PictureQuestion]:
    """`count` examples of a form: describe (one picture), questions (of every kind but describe), pairs (of two pictures)."""
    pick, found = random.Random(f"{form} {seed}"), []
    for _ in range(count):
        if form == "pairs":
            both = scenes.scene(pick, most=2), scenes.scene(pick, most=2)
            found.append(PictureQuestion(both, pick.choice(scenes.questions_pair(*both, pick))))
        else:
            scene = scenes.scene(pick)
            first, *others = scenes.questions(scene, pick)
            other = pick.choices(others, [_OFTEN.get(each.kind, 1) for each in others])[0]
            found.append(PictureQuestion((scene,), first if form == "describe" else other))
    return found


def batch(turn: int, rows: int, without: frozenset[Any] = frozenset()) -> list[PictureQuestion]:
    """The examples of training step `turn`: of one form, and of like lengths so that little is padded. Questions come twice as many.

    Examples about one of the scenes `without` are left out: those are held out.
    """
    form = FORMS[turn % len(FORMS)]
    rows = rows * 2 if form == "questions" else rows
    pool = [each for each in asked(turn, rows * 4, form) if without.isdisjoint(each.pictures)]
    pool.sort(key=lambda each: len(each.question.answer.split()))  # not letters: red is a short word
    first = min(rows * random.Random(turn).randrange(4), max(0, len(pool) - rows))
    return pool[first : first + rows]


def inputs_of(processor: Any, examples: Sequence[PictureQuestion]) -> Any:
    """The processor's inputs for the examples' prompts, padded on the left: ready for `generate`."""
    pictures = [scenes.draw_scene(scene) for each in examples for scene in each.pictures]
    return processor(images=pictures, text=[each.prompt for each in examples], padding=True, return_tensors="pt")


def example(processor: Any, examples: Sequence[PictureQuestion]) -> dict[str, Tensor]:
    """Prompts and answers padded on the right, and labels [B, S]: -100 where no answer is."""
    pictures = [scenes.draw_scene(scene) for each in examples for scene in each.pictures]
    texts = [f"{each.prompt}{each.question.answer}{END}" for each in examples]
    found = processor(images=pictures, text=texts, padding=True, padding_side="right", return_tensors="pt")
    ids = found["input_ids"]
    line, pad = (processor.tokenizer.convert_tokens_to_ids(token) for token in (LINE, PAD))
    answered = ((ids == line).cumsum(1) == 2) & (ids != line) & (ids != pad)
    return {"input_ids": ids, "pixel_values": found["pixel_values"], "labels": ids.masked_fill(~answered, -100)}


def new_processor() -> Any:
    """The mini's processor: a word is a token, in lower case; pictures of any size are squashed to the scenes'."""
    from transformers import LlavaProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_words(),
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[IMAGE],
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    side = {"height": scenes.SIDE, "width": scenes.SIDE}
    pictures = CLIPImageProcessorPil(size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return LlavaProcessor(
        pictures,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )


def _words() -> Any:
    """A tokenizer of every word that a scene's questions and answers hold."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    split = pre_tokenizers.Split(Regex(r"\w+|\n|[^\w\s]"), behavior="removed", invert=True)
    texts = [f"{each.question.text} {each.question.answer}" for form in sorted(set(FORMS)) for each in asked(0, 1500, form)]
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text)})
    names = [PAD, UNKNOWN, END, IMAGE, LINE, *words]
    found = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=UNKNOWN))
    found.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("color", "colour")])  # pyright: ignore
    found.pre_tokenizer = split  # pyright: ignore
    spaced = decoders.Replace(Regex(r"^(?=\w)"), " ")  # before words, not before their commas
    tidy = [spaced, decoders.Fuse(), decoders.Replace("\n ", "\n"), decoders.Strip(" ", 1, 0)]
    found.decoder = decoders.Sequence(tidy)  # pyright: ignore
    found.add_special_tokens([PAD, UNKNOWN, END, IMAGE])
    return found


def new_llava(processor: Any, *, width: int, layers: int, heads: int, feed: int, vision_width: int = 96) -> Any:
    """An untrained LLaVA-type model over the processor's words and pictures; `vision_width` is its tower's width."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    tower = CLIPVisionConfig(
        hidden_size=vision_width,
        intermediate_size=3 * vision_width,
        projection_dim=vision_width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=scenes.SIDE,
        patch_size=PATCH,
    )
    config = LlavaConfig(
        vision_config=tower,
        text_config=LlamaConfig(**llama_options(processor.tokenizer, width, layers, heads, feed)),
        image_token_index=processor.image_token_id,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=(scenes.SIDE // PATCH) ** 2,
    )
    return LlavaForConditionalGeneration(config)


def llama_options(tokenizer: Any, width: int, layers: int, heads: int, feed: int) -> dict[str, Any]:
    """Of a `LlamaConfig`, for the mini's words."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": feed,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


@torch.no_grad()
def answers(model: Any, processor: Any, examples: Sequence[PictureQuestion], rows: int = 64) -> list[str]:
    """What the model says, greedily."""
    said = []
    for first in range(0, len(examples), rows):
        inputs = inputs_of(processor, examples[first : first + rows])
        ids = model.generate(**inputs.to(model.device), do_sample=False, max_new_tokens=LONGEST)
        said += processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return said


def right(model: Any, processor: Any, examples: Sequence[PictureQuestion]) -> dict[str, float]:
    """The share of answers that are right word by word, by kind of question; of two pictures, the kind is "pair describe" and so on."""
    marks: dict[str, list[bool]] = {}
    for each, said in zip(examples, answers(model, processor, examples), strict=True):
        kind = f"pair {each.question.kind}" if len(each.pictures) == 2 else each.question.kind
        marks.setdefault(kind, []).append(said == each.question.answer)
    return {kind: sum(found) / len(found) for kind, found in sorted(marks.items())}


def save_llava(model: Any, folder: Path) -> None:
    """Write a LLaVA-type model as `llava` and transformers' loaders here read it, its matrices as bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_bytes(model.state_dict(), folder / "model.safetensors")


def llava(folder: Path, tower: Any = None) -> Any:
    """A LLaVA-type model whose weights are stored as bytes, and run in float32. A `tower` given is shared, not copied."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    model = LlavaForConditionalGeneration(LlavaConfig.from_pretrained(folder)).float()
    kept = read_bytes(folder / "model.safetensors")
    if tower is not None:
        model.model.vision_tower = tower
        kept = {**{f"{TOWER}{name}": tensor for name, tensor in tower.state_dict().items()}, **kept}
    model.load_state_dict(kept)
    words: Any = model.config.text_config
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = words.eos_token_id, words.pad_token_id
    return model.eval()


def examples_of(folder: Path) -> list[tuple[list[Any], str]]:
    """The mini's example pictures and the question asked about each: one or two PIL images, and text."""
    from PIL import Image

    rows = json.loads((folder / "examples" / "questions.json").read_text(encoding="utf-8"))
    return [([Image.open(folder / "examples" / name).convert("RGB") for name in row["pictures"]], row["question"]) for row in rows]


def load_sights(folder: Path) -> dict[str, Any]:
    """The parts of a `Mini`. FileNotFoundError when it is not there."""
    from transformers import LlavaProcessor

    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(f"mini vlm is not in {folder}: make it with mmspec recipe text/train_vlm.py -- --out {folder}")
    target, drafters = llava(folder / "target"), {}
    processor: Any = LlavaProcessor.from_pretrained(folder)
    if (folder / "drafter-text").is_dir():
        drafters["text"] = llama(folder / "drafter-text")
    if (folder / "drafter-vlm").is_dir():
        drafters["vlm"] = llava(folder / "drafter-vlm", target.model.vision_tower)
    for path in sorted((folder / "drafters").glob("*/config.json")):
        drafters[path.parent.name] = load_drafter(path.parent, target)
    asked = examples_of(folder)
    texts = [prompt(question, len(pictures)) for pictures, question in asked]
    examples = processor(images=[each for pictures, _ in asked for each in pictures], text=texts, padding=True, return_tensors="pt")
    return {"target": target, "drafters": drafters, "processor": processor, "examples": dict(examples)}
