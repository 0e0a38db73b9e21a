"""Small models, catalogues and searches that the tests of beams share, and what transformers' own beam search makes of them."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from mmspec.core.beams.search import BeamRule, TopKBeams
from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.beams.trie import NOWHERE, Trie
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Draft, Step, validate
from mmspec.drafters.model.beams import Anchored, BeamDrafter, BeamModel
from mmspec.drafters.none import NoDraft
from mmspec.models.beam_target import BeamTarget
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.recsys.catalogue import Catalogue

CODES, LEVELS, OFFSET = 12, 4, 2
VOCAB = OFFSET + CODES * LEVELS
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
Inputs = Mapping[str, Tensor]


def _sizes(hidden: int) -> dict[str, Any]:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 2 * hidden}
    return {"vocab_size": VOCAB, "hidden_size": hidden, **heads, **IDS}


def _t5(hidden: int, layers: int) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": hidden, "d_kv": 8, "d_ff": 2 * hidden, "num_layers": layers, "num_heads": 2}
    config = hf.T5Config(**sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    model = hf.T5ForConditionalGeneration(config)
    model.generation_config.eos_token_id = None
    return model


FAMILIES: dict[str, Callable[[int, int], Any]] = {
    "llama": lambda hidden, layers: hf.LlamaForCausalLM(hf.LlamaConfig(**_sizes(hidden), num_hidden_layers=layers)),
    "qwen2": lambda hidden, layers: hf.Qwen2ForCausalLM(hf.Qwen2Config(**_sizes(hidden), num_hidden_layers=layers)),
    "qwen3": lambda hidden, layers: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_sizes(hidden), num_hidden_layers=layers, head_dim=8)),
    "t5": _t5,
}
SPREAD = {"llama": 3.0, "qwen2": 3.0, "qwen3": 3.0, "t5": 2.0}


def make(family: str = "llama", hidden: int = 32, layers: int = 2, seed: int = 0) -> Any:
    """A random model in eval mode, its weights spread so that its distributions are peaked and paths do not tie."""
    torch.manual_seed(seed)
    model = FAMILIES[family](hidden, layers).eval()
    for parameter in model.parameters():
        parameter.data.mul_(SPREAD[family])
    return model


def perturbed(model: Any, share: float, seed: int = 0) -> Any:
    """`model` with its weights moved at random by `share` of their size: a drafter that is often, but not always, right."""
    near, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in near.parameters():
        parameter.data.mul_(1 + share * torch.randn(parameter.shape, generator=generator))
    return near


def shop(items: int = 260, seed: int = 0, twins: int = 0, **options: Any) -> Catalogue:
    """`items` with random codes, of which the last `twins` share the path of another."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.unique(torch.randint(0, CODES, (2 * items, LEVELS), generator=generator), dim=0)
    codes = codes[torch.randperm(len(codes), generator=generator)[: items - twins]]
    codes = torch.cat([codes, codes[:twins]])
    return Catalogue.of_codes([f"item{number}" for number in range(items)], codes, CODES, OFFSET, **({"before": (1,)} | options))


def tall_shop(items: int = 300, seed: int = 0) -> Catalogue:
    """Six levels: a drafter of two a round goes on, in the round after, from draft tokens it has run itself."""
    codes = torch.unique(torch.randint(0, 8, (items, 6), generator=torch.Generator().manual_seed(seed)), dim=0)
    return Catalogue.of_codes(range(len(codes)), codes, 8, OFFSET, before=(1,))


def users(catalogue: Catalogue, count: int, seed: int = 0, most: int = 6) -> list[list[Any]]:
    """Ragged histories; every third one goes on from the one before, so that prompts share prefixes."""
    generator, found = torch.Generator().manual_seed(seed), []
    for number in range(count):
        fresh = torch.randint(0, len(catalogue), (1 + number % most,), generator=generator).tolist()
        new = [catalogue.items[row] for row in fresh]
        found.append([*found[-1], *new][:most] if number % 3 == 2 else new)
    return found


# --- searches ---------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """A search's outcome, and its rounds."""

    state: Tensor  # [B, K]
    score: Tensor  # [B, K]
    steps: list[Step] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.steps)

    @property
    def row_calls(self) -> list[int]:
        """How many rounds each row was under way in."""
        return [sum(bool(values) for values in rounds) for rounds in zip(*(step.committed.values for step in self.steps), strict=True)]


def target_of(model: Any, trie: Trie) -> BeamTarget:
    return BeamTarget(HFTarget(model, family_of(model)), trie)


def drafter_of(model: Any, trie: Trie, k: int, width: int, spread: Any = None) -> BeamDrafter:
    return BeamDrafter(BeamModel(target_of(model, trie)), trie, spread or Anchored(k, width))


@torch.no_grad()
def search(target: Any, inputs: Inputs, k: int, drafter: Any = None, length: int = LEVELS - 1, rule: BeamRule | None = None) -> Found:
    """A whole search, every draft of which is checked against what must be true of it. `target` is a BeamTarget."""
    trie, rows = target.trie, len(inputs["input_ids"])
    stopping, control = BeamStopping(rows, trie.levels, k), Fixed(length if drafter else 0)
    rule, noise = rule or TopKBeams(trie, k), Noise.from_seed(0, rows)
    steps = []
    for step in decode(target, drafter or NoDraft(), rule, inputs, stopping=stopping, noise=noise, control=control):
        validate(step.draft)
        validate(step.verdict.pending)
        grows_in(trie, step.draft)
        steps.append(step)
    return Found(stopping.state, stopping.score, steps)


def grows_in(trie: Trie, draft: Draft) -> None:
    """Every column is the child of its parent in the trie, and no node stands twice among a level's draft tokens."""
    state, valid, first = draft.aux.state, draft.valid, draft.roots
    assert torch.equal(state != NOWHERE, valid)
    assert torch.equal(torch.where(valid, trie.token[state.clamp_min(0)], 0)[:, 1:], torch.where(valid, draft.nodes, 0)[:, 1:])
    for row, (parents, states) in enumerate(zip(draft.parents.tolist(), state.tolist(), strict=True)):
        for parent, own in zip(parents, states, strict=True):
            assert parent < 0 or trie.child[states[parent]] <= own < trie.child[states[parent] + 1], f"row {row}"
    for layer in state[:, first:].split(draft.aux.layers, 1) if draft.aux.layers else ():
        for states in layer.tolist():
            real = [own for own in states if own != NOWHERE]
            assert len(set(real)) == len(real)


def paths_of(catalogue: Catalogue, found: Found) -> list[list[tuple[int, ...]]]:
    """The beams of every row as token ids, best first, those that are there."""
    leaf = found.state - catalogue.trie.starts[-1]
    return [[tuple(catalogue.distinct[i].tolist()) for i in row if i >= 0] for row in leaf.tolist()]


def gaps(target: Any, inputs: Inputs, k: int) -> Tensor:
    """[B] the smallest gap between one path's score and the next one's that decided anything in a row's search."""
    found = torch.full((len(inputs["input_ids"]),), torch.inf)

    class Watching(TopKBeams):
        def pick(self, level, noise):
            nonlocal found
            score = level.score.topk(min(self.k + 1, level.score.shape[1])).values
            steps = (score[:, :-1] - score[:, 1:]).nan_to_num(torch.inf, torch.inf)
            found = torch.minimum(found, steps.amin(1) if steps.shape[1] else found)
            return super().pick(level, noise)

    search(target, inputs, k, rule=Watching(target.trie, k))
    return found


# --- the peer ---------------------------------------------------------------------------------------------------------


def branches(paths: Tensor) -> dict[tuple[int, ...], list[int]]:
    """A trie as a dictionary: what may follow every prefix of `paths` [P, L]."""
    found: dict[tuple[int, ...], set[int]] = {}
    for path in paths.tolist():
        for level, token in enumerate(path):
            found.setdefault(tuple(path[:level]), set()).add(token)
    return {prefix: sorted(tokens) for prefix, tokens in found.items()}


Ranking = list[tuple[tuple[int, ...], float]]


@torch.no_grad()
def transformers_beams(model: Any, inputs: Inputs, catalogue: Catalogue, k: int, allowed: Tensor | None = None) -> list[Ranking]:
    """Every row's beams, paths and `sequences_scores`, from `generate` under a prefix function over the same items.

    Where there are fewer than k, transformers fills up with copies and with what no item begins with, at -1e9 and below. Those are
    left out. Under a prefix of theirs the function names some token, since `generate` raises on an empty list.
    """
    given = inputs.get("decoder_input_ids", torch.zeros(1, 1)) if model.config.is_encoder_decoder else inputs["input_ids"]
    rows, first = len(inputs["input_ids"]), given.shape[1]
    masks = torch.ones(rows, len(catalogue), dtype=torch.bool) if allowed is None else allowed.expand(rows, -1)
    known = branches(catalogue.paths)
    tries = [known if bool(mask.all()) else branches(catalogue.paths[mask]) for mask in masks]
    out = model.generate(
        **inputs,
        num_beams=k,
        num_return_sequences=k,
        prefix_allowed_tokens_fn=lambda row, ids: tries[row].get(tuple(ids[first:].tolist()), [OFFSET]),
        max_new_tokens=catalogue.levels,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    paths = out.sequences[:, first:]
    if k > 1:
        scores = out.sequences_scores
    else:
        distributions = torch.stack(out.logits, 1).log_softmax(-1)
        scores = distributions.gather(-1, paths[..., None])[..., 0].mean(-1)
    lines = zip(paths.tolist(), scores.tolist(), strict=True)
    whole = [(tuple(path), score) for path, score in lines]
    return [[one for one in whole[row * k : (row + 1) * k] if one[1] > -1e6] for row in range(rows)]


def alone(model: Any, inputs: Inputs, row: int, tokens: list[list[int]]) -> Tensor:
    """[n, V] the distributions' logits after `tokens`, n continuations of a row's prompt, each by a forward of its own, uncached."""
    if model.config.is_encoder_decoder:
        begin, names = [model.config.decoder_start_token_id], {"input_ids": inputs["input_ids"][row : row + 1]}
        names["attention_mask"] = inputs["attention_mask"][row : row + 1]
    else:
        mask = inputs["attention_mask"][row].bool()
        begin, names = inputs["input_ids"][row][mask].tolist(), {}
    lines = [begin + line for line in tokens]
    longest = max(map(len, lines))
    ids = torch.tensor([line + [0] * (longest - len(line)) for line in lines])  # nothing sees what stands behind it
    last = torch.tensor([len(line) - 1 for line in lines])
    if names:
        names = {name: value.expand(len(lines), -1) for name, value in names.items()}
        logits = model(**names, decoder_input_ids=ids).logits
    else:
        logits = model(input_ids=ids).logits
    return logits[torch.arange(len(lines)), last]


def path_to(draft: Draft, row: int, node: int) -> list[int]:
    """Columns from the first root to `node`, by walking up."""
    steps = []
    while node >= 0:
        steps.append(node)
        node = int(draft.parents[row, node])
    return steps[::-1]


def tokens_to(draft: Draft, row: int, node: int) -> list[int]:
    """The path's tokens behind the prompt, whose last token is the first root."""
    assert draft.parents[row, node] != PAD
    return [int(draft.nodes[row, column]) for column in path_to(draft, row, node)[1:]]
