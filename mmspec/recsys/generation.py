"""`mmspec.recsys.recommend`: the K best items for every history, by beam search over the catalogue's paths."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.control import Control, Fixed
from mmspec.core.decode import OnStep, run
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter
from mmspec.core.result import Result
from mmspec.core.stats import Stats
from mmspec.drafters.model.descendants import columns_of_a_row
from mmspec.drafters.none import NoDraft
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.model_checks import check_prompt_ids
from mmspec.models.proof.require import require
from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.cost import CostModel, SearchSize
from mmspec.recsys.filters.groups import GroupRules
from mmspec.recsys.filters.item_filter import ItemFilter, Lists
from mmspec.recsys.methods import BeamMethod, method_of
from mmspec.recsys.search import beam_drafter, beam_target, history_prompts, look_ahead, path_processors, spare_columns
from mmspec.run.arguments import check, check_items, public_call
from mmspec.run.draft_length import control_of
from mmspec.run.request import Request
from mmspec.utils.renamed import once_positional


@dataclass(frozen=True)
class Recommendations(Result):
    """Items for B histories, best first. A row has at most k items, fewer where the catalogue allows no more.

    Attributes:
        tokens: LongTensor [B, K, L], the beams as token ids; 0 where a row has fewer.
        lengths: LongTensor [B], how many beams a row has.
        stats: counts and seconds. A token is a level: `tokens_per_call` is levels committed per target call.
        items: the items of every row.
        scores: for each item the log-probability of its path divided by its length, as transformers' `sequences_scores`.
    """

    items: list[list[Item]]
    scores: list[list[float]]

    @property
    def paths(self) -> Tensor:
        """`tokens`."""
        return self.tokens

    @property
    def counts(self) -> Tensor:
        """`lengths`."""
        return self.lengths


@once_positional(("k", "catalogue", "drafter", "method"), lambda value: isinstance(value, int))
@public_call
@torch.no_grad()
def recommend(
    model: Any,
    histories: Sequence[Sequence[Item]] | Mapping[str, Tensor],
    drafter: Any = None,
    *,
    draft_length: int | str | Control = "auto",
    seed: int | Sequence[int] = 0,
    temperature: float | None = None,
    method: str | None = None,
    mode: str | None = None,
    k: int = 10,
    catalogue: Catalogue | None = None,
    width: int | None = None,
    allowed: Tensor | None = None,
    allow: Lists | None = None,
    deny: Lists | None = None,
    unseen: bool = False,
    beams: int | None = None,
    rules: GroupRules | None = None,
    on_step: OnStep = None,
    capture: bool = False,
) -> Recommendations:
    """The `k` best items for every history, by speculative beam search.

    Args:
        model: a transformers decoder-only or T5 model that writes items as the catalogue's paths, in eval mode, on any one device.
        histories: the items of each user, oldest first; or, for prompts of another form, what a tokenizer returned.
        drafter: None; a small model of the same kind; a source of distributions over the catalogue, such as `mmspec.recsys.Retriever`.
        method: "strict", the default (the items of beam search, whatever is drafted), "plain" (the same without drafting), "coupled"
            (beam sampling, the same items as without drafting), "sample" (beam sampling, exact in distribution), "relaxed"
            (approximate).
        mode: a synonym of `method`.
        k: the most items a user gets. All items of a path count.
        catalogue: the items and their paths.
        width: beams drafted a level, at least `beams`; 4 * `beams` by default.
        draft_length: levels drafted a round, "auto" for all there are; or a Control, such as `mmspec.recsys.CostModel`, which is kept from
            call to call and chooses plain search where that is cheaper.
        allowed: which items may be recommended, [items] or [B, items] bool (see `Catalogue.mask`); all by default.
        allow: for each user a list of the only items that may be recommended, or None. Lists cost their own length in memory.
        deny: for each user a list of items that may not be recommended, or None.
        unseen: leave out the items of each user's own history.
        beams: beams kept on every level, at least k; k by default.
        rules: boosts, quotas and caps of groups, by which the list is chosen from the items of all beams.
        temperature: of the methods that sample, by default 1.
        seed: of the methods that sample; an int (row r gets seed + r) or one per row.
        on_step: called with every round.
        capture: fix all shapes and compile the target's scoring step, as in `mmspec.text.generate`: one shape a level.

    Returns:
        The items with their scores, the beams as `tokens` [B, K, L], and `stats`. Settings of the model's generation config that change
        transformers' constrained beams are applied (penalties, bans) or refused by name; `temperature`, `top_k` and other settings of
        sampling, and `num_beams`, are not read.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the row and the position.
    """
    if catalogue is None:
        raise ValueError("catalogue is missing: pass catalogue=Catalogue.read(path), the items and their paths")
    request = Request.of(drafter=drafter, draft_length=draft_length, seed=seed, temperature=1.0 if temperature is None else temperature)
    check(histories=histories, k=k, catalogue=catalogue, width=width, allowed=allowed, unseen=unseen, on_step=on_step, capture=capture)
    check(beams=beams, rules=rules)
    check_items(k, width, len(catalogue), beams)
    family = family_of(model)
    chosen, device = method_of(_one(method, mode)), model.device
    refuse_temperature(chosen, temperature)
    inputs = histories if isinstance(histories, Mapping) else history_prompts(catalogue, histories, device)
    if "input_ids" not in inputs:
        raise ValueError(f"histories has no input_ids (it has {', '.join(inputs) or 'nothing'}): pass items, or what a tokenizer returned")
    rows = len(inputs["input_ids"])
    filters = ItemFilter.of(catalogue, rows, allowed, allow, deny, histories if unseen else None)
    trie, beams = filters.trie(catalogue).to(device), beams_of(beams, k)
    if chosen.plain and drafter is not None:
        raise ValueError("method 'plain' drafts nothing: leave drafter out, or take method 'strict'")
    width = 4 * beams if width is None else width
    require(model, family, trees=True)  # beams share their prompt: a tree
    if isinstance(histories, Mapping):
        check_prompt_ids("histories", inputs, model.config.get_text_config(decoder=True).vocab_size)
    check_paths_fit(model, inputs, catalogue)
    processors = path_processors(model, family, inputs, catalogue.levels)
    spare = 0 if capture or chosen.plain else spare_columns(device)  # a captured search has one shape a level
    share = columns_of_a_row(spare, rows)  # without any, the cache grows where codes are forced: slots that stay empty cost every forward
    drafted = width if drafter is not None else beams + share if share else 0
    target = beam_target(model, family, trie, beams, drafted, catalogue.tokens_used, processors)
    if drafter is None:
        proposer = look_ahead(chosen, trie, beams, spare)
    else:
        proposer = beam_drafter(request.drafter, target, chosen, beams, width, request.temperature)
    stopping = BeamStopping(rows, trie.levels, beams, device)
    target = target.capture() if capture else target
    rule = chosen.rule(trie, beams, request.temperature)
    stats = Stats(exactness=rule.exactness)
    control = _control(request.draft_length, proposer, SearchSize(rows, inputs["input_ids"].shape[1], beams, width, trie.levels))
    noise = Noise.from_seed(request.seed, rows, device)
    with torch.inference_mode() if drafter is None and not capture else nullcontext():  # a drafter may learn, a compiled graph is kept
        for _ in run(target, proposer, rule, inputs, stopping=stopping, noise=noise, control=control, stats=stats, on_step=on_step):
            pass
    return recommendations(catalogue, stopping.state, stopping.score, k, stats, filters, rules)


def _one(method: str | None, mode: str | None) -> str:
    """Return the method, given under either of its names."""
    if method is not None and mode is not None and method != mode:
        raise ValueError(f"method is {method!r} and mode is {mode!r}: mode is a synonym of method, give one")
    given = mode if method is None else method
    return "strict" if given is None else given


def refuse_temperature(method: BeamMethod, temperature: float | None) -> None:
    """Refuse a temperature that the method does not read.

    Args:
        method: how beams are selected.
        temperature: the temperature; None for the default.

    Raises:
        ValueError: for a temperature other than 1 where nothing is sampled.
    """
    if temperature is not None and not method.samples and temperature != 1:
        raise ValueError(f"temperature is {temperature}, but this method takes the best beams and samples none: leave temperature out")


def check_paths_fit(model: Any, inputs: Mapping[str, Tensor], catalogue: Catalogue) -> None:
    """Raise ValueError if the catalogue's paths use tokens the model lacks, or prompts leave no room for a path."""
    size = model.config.get_text_config(decoder=True).vocab_size
    most = catalogue.largest_token
    if most >= size:
        raise ValueError(f"the catalogue's paths use token {most}, but the model has {size}: give the catalogue the model was trained on")
    limit = None if model.config.is_encoder_decoder else positions_of(model)
    length = inputs["input_ids"].shape[1]
    if limit is not None and length + catalogue.levels > limit:
        raise ValueError(
            f"histories of {length} tokens and an item's {catalogue.levels} exceed the model's {limit} positions: show fewer items"
        )


def _control(draft_length: int | str | Control, drafter: Drafter, search: SearchSize) -> Control:
    if isinstance(draft_length, CostModel) and not isinstance(drafter, NoDraft):
        draft_length = draft_length.at(search)
    return control_of(draft_length, drafter, auto=lambda: Fixed(search.levels - 1), thompson=False, unit="levels")


def beams_of(beams: int | None, k: int) -> int:
    """Return how many beams a level keeps.

    Args:
        beams: as asked for; None for `k`.
        k: the most items a user gets.

    Returns:
        Beams.

    Raises:
        ValueError: for fewer beams than items.
    """
    if beams is not None and beams < k:
        raise ValueError(f"beams is {beams} and k {k}: keep at least as many beams as items are asked for")
    return k if beams is None else beams


def recommendations(
    catalogue: Catalogue, state: Tensor, score: Tensor, k: int, stats: Stats, filters: ItemFilter, rules: GroupRules | None
) -> Recommendations:
    """Return beams as items, in the order of their scores; items of the same path in the catalogue's order, only those that may be.

    Args:
        catalogue: the items.
        state: the beams of every user as nodes of the catalogue's trie, LongTensor [B, K].
        score: the log-probabilities of their paths, float [B, K]; -inf where a user has fewer.
        k: the most items a user gets.
        stats: of the search.
        filters: the items that each user may get.
        rules: boosts, quotas and caps of groups.

    Returns:
        The items with their scores.
    """
    score, order = torch.sort(score, dim=-1, descending=True, stable=True)
    leaf = (state.gather(1, order) - catalogue.trie.starts[-1]).cpu()
    counts = (score > -torch.inf).sum(1).cpu()
    mean = (score / catalogue.levels).tolist()
    items: list[list[Item]] = []
    scores: list[list[float]] = []
    for row, (count, leaves) in enumerate(zip(counts.tolist(), leaf.tolist(), strict=True)):
        shelves = [(shelf, mean[row][beam]) for beam in range(count) for shelf in catalogue.shelf(leaves[beam])]
        if len(shelves) > count:  # else every beam stands for one item, and the trie saw to it
            shelves = [one for one in shelves if filters.may(row, one[0])]
        found = [(catalogue.items[shelf], value) for shelf, value in shelves]
        chosen = found[:k] if rules is None else rules.choose(found, k)
        items.append([item for item, _ in chosen])
        scores.append([value for _, value in chosen])
    paths = torch.where((score > -torch.inf).cpu()[..., None], catalogue.path(leaf.clamp_min(0)), 0)
    return Recommendations(paths, counts, stats, items, scores)
