"""Plain decoding of every class, by its own generate or recipe: what windows must give again, token by token.

Each function returns values [B, T] of the raster. `Bend` is where a test adds noise to the scores: with the noise of a seed, the best
value is plain sampling's draw, so the class's own greedy loop also says what sampling must give.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from mmspec.core.noise import Noise


class Bend(LogitsProcessor):
    """Adds the noise of `seeds`, one a row, to the scores of values 0, 1, ...; `ids` are their tokens. No seeds: no noise."""

    def __init__(self, seeds: list[int] | None, ids: Tensor):
        self.noise, self.ids, self.step = seeds and Noise.from_seed(seeds, len(seeds)), ids, 0

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        position, self.step = self.step, self.step + 1
        if not self.noise:
            return scores
        rows = torch.full((len(scores), 1), position)
        return scores.double().index_add(1, self.ids, self.noise.value(rows).gumbel(len(self.ids))[:, 0])


class Front(LogitsProcessorList):
    """Whatever is appended goes to the front: Janus appends guidance behind the processors it is given, and noise must come after it."""

    def append(self, item: Any) -> None:
        self.insert(0, item)


def value_of(tokens: Tensor, ids: Tensor) -> Tensor:
    """Values of vocabulary `tokens`; every one must be among `ids`."""
    same = tokens[..., None] == ids
    assert same.any(-1).all()
    return same.long().argmax(-1)


def imagegpt(model: Any, rows: int, seeds: list[int] | None) -> Tensor:
    """Its documentation's recipe."""
    bend = Bend(seeds, torch.arange(model.config.vocab_size - 1))
    start = torch.full((rows, 1), model.config.vocab_size - 1)
    made = model.generate(start, max_length=model.config.n_positions + 1, do_sample=False, logits_processor=LogitsProcessorList([bend]))
    return made[:, 1:]


def janus(model: Any, prompts: dict, scale: float | None, seeds: list[int] | None) -> Tensor:
    bend = Bend(seeds, torch.arange(model.config.vq_config.num_embeddings))
    if scale is not None:
        options = {"generation_mode": "image", "guidance_scale": scale, "do_sample": False, "logits_processor": Front([bend])}
        return model.generate(prompts["input_ids"], attention_mask=prompts["attention_mask"], **options)
    words = model.get_input_embeddings()

    def score(row: int, codes: Tensor) -> Tensor:  # generate cannot do without guidance
        prompt = words(prompts["input_ids"][row : row + 1, prompts["attention_mask"][row].bool()])
        embeds = torch.cat([prompt, model.prepare_embeddings_for_image_generation(codes[None])], 1)
        return model.model.generation_head(model.model.language_model(inputs_embeds=embeds).last_hidden_state[:, -1])[0]

    return step_by_step(score, len(prompts["input_ids"]), [-1] * model.model.vision_model.config.num_image_tokens, bend)


def emu3(model: Any, prompts: dict, height: int, width: int, scale: float | None, seeds: list[int] | None) -> Tensor:
    """Its documentation's recipe: the tokens allowed at every step, counted from the token that closes the prompt (here 4)."""
    words, codes = model.vocabulary_mapping.vocab_map, model.vocabulary_mapping.image_tokens
    tail = {1: words["<|extra_201|>"], 2: words["<|image end|>"], 3: model.config.text_config.eos_token_id}

    def allowed(row: int, ids: Tensor) -> list[int]:
        offset = len(ids) - int(torch.nonzero(ids == words["<|image token|>"])[0, 0])
        if offset % (width + 1) == 0 and offset <= (width + 1) * height:
            return [model.vocabulary_mapping.eol_token_id]
        past = offset - (width + 1) * height
        return [tail[past]] if past > 0 else codes

    values = [model.vocabulary_mapping.img2bpe[code] for code in range(len(codes))]
    ids = torch.tensor([*values, model.vocabulary_mapping.eol_token_id, *tail.values()])
    options: dict[str, Any] = {"prefix_allowed_tokens_fn": allowed, "max_new_tokens": (width + 1) * height + 3, "do_sample": False}
    if scale is not None:
        away = {name: prompts[name] for name in ("negative_prompt_ids", "negative_prompt_attention_mask")}
        options |= {"guidance_scale": scale, **away}
    own = {name: prompts[name] for name in ("input_ids", "attention_mask")}
    made = model.generate(**own, **options, logits_processor=LogitsProcessorList([Bend(seeds, ids)]))
    return value_of(made[:, prompts["input_ids"].shape[1] :], ids)


def chameleon(model: Any, prompts: dict, forced: list[int], scale: float | None, seeds: list[int] | None) -> Tensor:
    """No recipe of its own: every step runs the whole sequence through the inner model and head. `forced` [T] are tokens, or -1."""
    codes = model.model.vocabulary_mapping.img2bpe
    controls = list(dict.fromkeys(token for token in forced if token >= 0))
    ids = torch.tensor([codes[code] for code in range(len(codes))] + controls)

    def logits(kind: str, row: int, values: Tensor) -> Tensor:
        mask = prompts["attention_mask" if kind == "input_ids" else "negative_prompt_attention_mask"][row].bool()
        sequence = torch.cat([prompts[kind][row, mask], ids[values]])
        return model.lm_head(model.model(input_ids=sequence[None]).last_hidden_state[0, -1])[ids]

    def score(row: int, values: Tensor) -> Tensor:
        cond = logits("input_ids", row, values)
        if scale is None:
            return cond
        uncond = logits("negative_prompt_ids", row, values)
        return uncond + scale * (cond - uncond)

    wanted = [-1 if token < 0 else len(codes) + controls.index(token) for token in forced]
    return step_by_step(score, len(prompts["input_ids"]), wanted, Bend(seeds, torch.arange(len(ids))), len(codes))


def glm_image(model: Any, prompts: dict, steps: int, seeds: list[int] | None) -> Tensor:
    """As diffusers' pipeline calls it, except that only codes may stand in the grids and the end token behind them."""
    codes, size = list(range(model.config.vq_config.num_embeddings)), prompts["input_ids"].shape[1]
    end = model.config.image_end_token_id
    ids = torch.tensor([*codes, end])

    def allowed(row: int, found: Tensor) -> list[int]:
        return codes if len(found) - size < steps - 1 else [end]

    bend = LogitsProcessorList([Bend(seeds, ids)])
    made = model.generate(**prompts, max_new_tokens=steps, do_sample=False, prefix_allowed_tokens_fn=allowed, logits_processor=bend)
    return value_of(made[:, size:], ids)


@torch.no_grad()
def step_by_step(score: Any, rows: int, forced: list[int], bend: Bend, codes: int | None = None) -> Tensor:
    """The plainest loop: `score(row, values [t])` gives the scores of the next value; `forced` [T] are values, or -1."""
    values = torch.zeros(rows, 0, dtype=torch.long)
    for value in forced:
        scores = bend(None, torch.stack([score(row, values[row]) for row in range(rows)]))
        best = scores[:, :codes].argmax(1) if value < 0 else torch.full((rows,), value)
        values = torch.cat([values, best[:, None]], 1)
    return values
