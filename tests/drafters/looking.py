"""A tiny LLaVA with a grid of 4 by 4 patches, drafters for it, and ragged prompts: one picture, two side by side, and none."""

import copy
from collections.abc import Sequence
from contextlib import contextmanager

import torch
import transformers as hf
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn

from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.families import LLAMA, VOCAB, Case, build

IMAGE, LINE, TAKES = VOCAB - 1, 13, 16
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def llava(**text) -> hf.LlavaForConditionalGeneration:
    def make():
        vision = hf.CLIPVisionConfig(**TOWER, image_size=16, patch_size=4, projection_dim=16)
        words = hf.LlamaConfig(**LLAMA | text)
        ids = {"image_token_id": IMAGE, "image_token_index": IMAGE, "image_seq_length": TAKES}
        return hf.LlavaForConditionalGeneration(hf.LlavaConfig(vision_config=vision, text_config=words, vision_feature_layer=-1, **ids))

    model = build(Case(make, ""))
    model.generation_config.eos_token_id = None
    return model


def perturbed(model: nn.Module, by: float = 0.01) -> nn.Module:
    model = copy.deepcopy(model)
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * by)
    return model


def words_only(model: hf.LlavaForConditionalGeneration, by: float = 0.01, **sizes) -> hf.LlamaForCausalLM:
    """The target's language model by itself, or one of other sizes."""
    drafter = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA | sizes)).eval()
    if not sizes:
        drafter.model.load_state_dict(model.model.language_model.state_dict())
        drafter.lm_head.load_state_dict(model.lm_head.state_dict())
    return perturbed(drafter, by) if by else drafter


ROWS = ([5, *[IMAGE] * TAKES, 7, 8, 9, 10], [5, *[IMAGE] * 2 * TAKES, 9, 11], [6, 7, 9, 11])


def asked(rows: Sequence[Sequence[int]] = ROWS, seed: int = 1, side: str = "left", takes: int = TAKES) -> dict[str, Tensor]:
    """Prompts with random pictures, padded on one side."""
    longest, generator = max(map(len, rows)), torch.Generator().manual_seed(seed)

    def padded(row):
        zeros = [0] * (longest - len(row))
        return [*zeros, *row] if side == "left" else [*row, *zeros]

    ids = torch.tensor([padded(row) for row in rows])
    count = int((ids == IMAGE).sum()) // takes
    pixels = {"pixel_values": 3 * torch.randn(count, 3, 16, 16, generator=generator)} if count else {}
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), **pixels}


def session_of(model, inputs):
    """The target's session on a request, its prompt not yet run."""
    return HFTarget(model, family_of(model)).begin(inputs)[0]


def told(prompt) -> list[list[int]]:
    """What a text view's rows read."""
    return [row[mask.bool()].tolist() for row, mask in zip(prompt["input_ids"], prompt["attention_mask"], strict=True)]


def tokenizer(*words: str, **special: str) -> hf.PreTrainedTokenizerFast:
    ids = {word: number for number, word in enumerate(words)}
    made = Tokenizer(WordLevel(ids, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", **special)


@contextmanager
def counted(*modules: nn.Module):
    """The rows of each call of each of `modules` inside."""
    calls: list[list[int]] = [[] for _ in modules]

    def counter(index):
        def count(module, args, kwargs):
            given = args[0] if args else kwargs.get("inputs_embeds", kwargs.get("hidden_states"))
            calls[index].append(len(given))

        return count

    handles = [module.register_forward_pre_hook(counter(index), with_kwargs=True) for index, module in enumerate(modules)]
    yield calls
    for handle in handles:
        handle.remove()


def patches_of(model) -> nn.Module:
    """What a tower runs first: it counts how often pictures are really looked at."""
    return next(module for module in model.model.vision_tower.modules() if isinstance(module, nn.Conv2d))
