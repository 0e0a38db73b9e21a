"""Recommendations in an engine: method x drafter x filters, users who arrive while others are searched for: each as alone."""

from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import mmspec
from mmspec import Engine
from mmspec.core.beams import search
from mmspec.core.beams.listed import ListedNodes
from mmspec.core.beams.search import BeamRule, Forest
from mmspec.drafters.heads.recurrent import RecurrentHead
from mmspec.models.beam_target import BeamSession
from mmspec.recsys import GroupRules, Retriever
from mmspec.recsys import search as recsys_search
from mmspec.recsys.cost import CostModel
from mmspec.recsys.ngram import ItemNGram
from mmspec.run.request import Request
from mmspec.serving.models.recommendations import RecommendModel
from mmspec.serving.models.searches import RecommendSettings
from tests.beam_world import make, perturbed, tall_shop, tokens_to, users
from tests.serving.traffic import Asked, scheduler_of, serve

WAIT = 60
SHOP = tall_shop()  # of six levels
USERS = users(SHOP, 9, seed=1)


@dataclass(frozen=True)
class AskedItems(Asked):
    """A user, whose history stands in `ids`."""

    @property
    def inputs(self) -> Any:
        return self.ids

    def alone(self, model: Any, **options: Any) -> Any:
        """What the user gets from a call of its own."""
        own = dict(self.options)
        lists = {name: [own.pop(name)] for name in ("allow", "deny") if name in own}
        histories = self.ids if isinstance(self.ids, dict) else [self.ids]
        return mmspec.recsys.recommend(model, histories, catalogue=SHOP, **own, **lists, **options)


@pytest.fixture(scope="module")
def model():
    return make(hidden=32)


@pytest.fixture(scope="module")
def drafters(model):
    torch.manual_seed(0)
    return {
        None: None,
        "model": perturbed(model, 0.1),
        "retriever": Retriever.of(SHOP, USERS),
        "n-gram": ItemNGram.of(SHOP, USERS),
        "head": RecurrentHead.of(model, SHOP.paths),
    }


def asked(method: str) -> list[AskedItems]:
    """Users of different options, some of whom arrive while others are searched for."""
    some = list(SHOP.items)
    options: list[dict[str, Any]] = [
        {"k": 5},
        {"k": 3, "beams": 5, "deny": some[::3]},
        {"k": 1},
        {"k": 4, "unseen": True, "allowed": SHOP.mask(some[::4])},
        {"k": 5, "allow": some[10:40]},
        {"k": 5, "allow": some[7:9]},  # fewer items than beams
        {"k": 2, "beams": 4, "rules": GroupRules({item: item % 2 for item in some}, caps={0: 1}), "deny": some[5:90]},
        {"k": 5, "allow": []},
        {"k": 5, "unseen": True, "allowed": SHOP.mask(some[20:])},
    ]
    drawn = [{"seed": 3 * row, "temperature": (0.7, 1.0, 2.5)[row % 3]} if method == "coupled" else {} for row in range(len(options))]
    arrives = (0, 0, 2, 3, 3, 5, 8, 9, 9)
    rows = zip(USERS, options, drawn, arrives, strict=True)
    return [AskedItems(user, own | noise, when, priority=0) for user, own, noise, when in rows]


def served(model, drafter, requests, method="strict", draft_length: Any = 2, max_rows=4, piece=64):
    request = Request.of(drafter=drafter, draft_length=draft_length)
    scheduler, waiting = scheduler_of(RecommendModel.of(model, request, None, settings(method)), max_rows, piece)
    handles = serve(scheduler, waiting, requests, most=300)
    return [handle.result(0) for handle in handles], scheduler.counts


def settings(method="strict", **options):
    return RecommendSettings(SHOP, method, 5, **({"width": 6} | options))  # few draft tokens, so that poor ones are rejected


def same(out, alone):
    """Items are equal; scores are, to what batches of other sizes round."""
    assert out.items == alone.items
    assert torch.allclose(torch.tensor(out.scores), torch.tensor(alone.scores), atol=1e-5, rtol=0)
    assert torch.equal(out.tokens, alone.tokens)
    assert torch.equal(out.lengths, alone.lengths)


@pytest.fixture
def level_by_level(monkeypatch):
    """Searches that do not look ahead in the trie: a round that drafts all that is left ends a small one."""
    monkeypatch.setattr(recsys_search, "SPARE", 0)


@pytest.mark.parametrize("spare", [0, 8, 64])
@pytest.mark.parametrize("drafter", [None, "model", "retriever", "n-gram", "head"])
@pytest.mark.parametrize("method", ["plain", "strict", "coupled"])
def test_every_user_gets_the_items_of_a_search_alone(method, drafter, spare, model, drafters, monkeypatch):
    monkeypatch.setattr(recsys_search, "SPARE", spare)
    if method == "plain" and drafter:
        with pytest.raises(ValueError, match=r"^method 'plain' drafts nothing"):
            served(model, drafters[drafter], [], method)
        return
    requests = asked(method)
    found, counts = served(model, drafters[drafter], requests, method)
    for out, each in zip(found, requests, strict=True):
        same(out, each.alone(model, method="coupled" if method == "coupled" else "plain"))
    assert counts.restarted == counts.failed == 0
    assert (counts.drafted > 0) == (drafter is not None or (method != "plain" and spare > 0))
    assert counts.rows > counts.rounds  # some rounds had several rows


@pytest.mark.parametrize("drafter", ["model", "head"])
def test_rounds_are_those_of_the_search_alone(drafter, model, drafters, level_by_level):
    requests = [AskedItems(user, {"k": 5}, 2 * row) for row, user in enumerate(USERS)]
    found, _ = served(model, drafters[drafter], requests)
    for out, each in zip(found, requests, strict=True):
        alone = each.alone(model, drafter=drafters[drafter], draft_length=2, width=6)
        assert (out.stats.target_calls, out.stats.drafted, out.stats.accepted) == (
            alone.stats.target_calls,
            alone.stats.drafted,
            alone.stats.accepted,
        )


def test_a_user_who_is_alone_gets_the_very_scores(model, drafters):
    (out,), counts = served(model, drafters["model"], [AskedItems(USERS[3], {"k": 5})])
    assert out.scores == AskedItems(USERS[3], {"k": 5}).alone(model, drafter=drafters["model"], draft_length=2, width=6).scores
    assert counts.forwards == out.stats.target_calls


class Lengths:
    """Draft lengths of the rounds of a generation."""

    def __init__(self, *lengths):
        self.left = list(lengths)

    def begin(self):
        return self

    def length(self):
        return self.left.pop(0)

    def observe(self, length, committed, seconds):
        pass


def wrong_scores(model, drafter):
    """A user whose drafter is two rounds behind and one who has just begun: how far draft tokens' scores are from an uncached forward's."""
    found = RecommendModel.of(model, Request.of(drafter=drafter), None, settings())
    own = [AskedItems(user, {"k": 5}) for user in (USERS[3], USERS[8])]
    first, other = (found.open([found.read(each.ids, found.options(k=5))], Lengths(1, 0, 0, 1)) for each in own)
    for _ in range(3):
        first.run()
    other.run()
    first.join_rows(other)
    draft = first.run().draft
    wrong = []
    for row, each in enumerate(own):
        for node in draft.valid[row].nonzero()[:, 0].tolist():
            if node < draft.roots:
                continue
            parent = int(draft.parents[row, node])
            line = SHOP.tokens(each.ids) + tokens_to(draft, row, node)
            log_q = drafter(input_ids=torch.tensor([line])).logits[0, -2].float().log_softmax(-1)[line[-1]]
            wrong.append(float((draft.score[row, node] - draft.score[row, parent] - log_q).abs()))
    assert len(wrong) > 6  # of both rows
    return max(wrong)


@torch.no_grad()
def test_a_drafter_that_has_fallen_behind_runs_what_it_has_not(model, drafters, monkeypatch):
    assert wrong_scores(model, drafters["model"]) < 1e-4
    monkeypatch.setattr(BeamSession, "join_rows", most_columns)
    assert wrong_scores(model, drafters["model"]) > 1e-3


@torch.no_grad()
def test_rows_join_right_after_rounds_that_kept_draft_tokens(model, drafters):
    """Draft tokens of the first round are kept elsewhere in both caches than they were run; nothing is scored before the join."""
    found = RecommendModel.of(model, Request.of(drafter=drafters["model"]), None, settings())
    works = [found.read(AskedItems(user, {"k": 5}).ids, found.options(k=5)) for user in USERS]

    def beams(rounds):
        while rounds.open:
            rounds.run()
        return rounds.stopping.state.gather(1, rounds.stopping.score.sort(dim=1, descending=True, stable=True).indices)[:, :5]

    def begun(work):
        rounds = found.open([work], Lengths(1, 1, 1, 1))
        rounds.run()
        return rounds

    def moved(rounds):
        return rounds.session.moves is not None and not torch.equal(*rounds.session.moves)

    some = [work for work in works if moved(begun(work))][:4]
    for one, other in pairwise(some):
        first = begun(one)
        first.join_rows(begun(other))
        assert torch.equal(beams(first), torch.cat([beams(found.open([work], Lengths(3, 3, 3, 3))) for work in (one, other)]))
    assert len(some) == 4


def test_prompts_of_another_form_and_in_pieces(model, drafters):
    prompt = SHOP.inputs([USERS[4]])
    requests = [AskedItems(prompt, {"k": 5}), AskedItems(USERS[8], {"k": 5}, 1), AskedItems(prompt, {"k": 4}, 2)]
    found, counts = served(model, drafters["model"], requests, piece=8)
    for out, each in zip(found, requests, strict=True):
        same(out, each.alone(model))
    assert counts.restarted == 0


def test_columns_do_not_grow_with_the_number_of_users(model, level_by_level):
    found = RecommendModel.of(model, Request.of(), None, settings())
    scheduler, waiting = scheduler_of(found, 3)
    widths = []
    scheduler.on_step = lambda step: widths.append(step.draft.roots)
    requests = [AskedItems(USERS[row % 9], {"k": 5}, row) for row in range(30)]
    serve(scheduler, waiting, requests)
    assert scheduler.counts.columns == sum(len(SHOP.tokens(each.ids)) + 5 * 5 for each in requests)  # every column runs once
    assert max(widths) == 1 + 5 * 5


# --- mutants ----------------------------------------------------------------------------------------------------------


def at_the_first_column(pending, count):
    """Roots keep their columns, and PAD stands behind them."""
    by = count - pending.roots
    wide = widen(pending, count)
    back = {name: getattr(wide, name).roll(-by, 1) for name in ("nodes", "parents", "score")}
    parents = torch.where(back["parents"] >= 0, back["parents"] - by, back["parents"])
    aux = replace(wide.aux, state=wide.aux.state.roll(-by, 1))
    return replace(wide, nodes=back["nodes"], parents=parents, score=back["score"], aux=aux)


widen = search.widened_roots
join_rule, join_lists, join_forest, join_session = BeamRule.join_rows, ListedNodes.join_rows, Forest.join_rows, BeamSession.join_rows


def other_lists(self, other, nodes):
    whole = join_lists(self, other, nodes)
    return ListedNodes(whole.node.roll(1, 0), whole.only.roll(1, 0))


def deepest_level(self, other):
    return replace(join_forest(self, other), level=max(self.level, other.level))


def most_columns(self, other):
    scored = max(self.scored, other.scored)
    join_session(self, other)
    self.scored = scored


def other_temperatures(self, other):
    whole = join_rule(self, other)
    return replace(whole, temperature=whole.temperature.flip(0))


MUTANTS = {
    "roots are aligned at the first column": (search, "widened_roots", at_the_first_column, "strict"),
    "another row's lists": (ListedNodes, "join_rows", other_lists, "strict"),
    "the level is that of the row that is furthest": (Forest, "join_rows", deepest_level, "strict"),
    "another row's temperature": (BeamRule, "join_rows", other_temperatures, "coupled"),
    "all rows keep all beams": (BeamRule, "_kept", lambda self, index: index, "strict"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name, model, monkeypatch, level_by_level):
    place, attribute, mutant, method = MUTANTS[name]
    requests = asked(method)
    right, _ = served(model, None, requests, method)
    monkeypatch.setattr(place, attribute, mutant)
    found, counts = served(model, None, requests, method)
    assert counts.restarted or any(out.items != each.items for out, each in zip(found, right, strict=True))


# --- the engine -------------------------------------------------------------------------------------------------------


def test_an_engine_searches_for_many_clients(model, drafters):
    requests = asked("strict")
    with Engine(model, drafters["retriever"], catalogue=SHOP, beams=5, max_rows=3) as engine:
        handles = [engine.submit(each.inputs, **each.options, priority=row % 2) for row, each in enumerate(requests)]
        gone = engine.submit(USERS[0], k=5)
        gone.cancel()
        outs = [handle.result(WAIT) for handle in handles]
        with pytest.raises(CancelledError):
            gone.result(WAIT)
        with pytest.raises(ValueError, match=r"^a search has no items before its end: use result\(\)$"):
            handles[0].stream()
    for out, each in zip(outs, requests, strict=True):
        same(out, each.alone(model))
        assert out.stats.exactness == "token-exact"


@pytest.mark.parametrize("after", [0, 1])
def test_a_user_who_leaves_changes_nothing_for_the_others(after, model, drafters):
    found = RecommendModel.of(model, Request.of(drafter=drafters["model"], draft_length=1), None, settings())
    scheduler, waiting = scheduler_of(found, 4)
    requests = asked("strict")[:4]
    turn = 0

    def on_step(step):
        nonlocal turn
        turn += 1
        if turn == after + 1:
            next(handle for handle in scheduler._handles() if not handle.done).cancel()

    scheduler.on_step = on_step
    handles = serve(scheduler, waiting, requests)
    assert scheduler.counts.cancelled == 1
    for handle, each in zip(handles, requests, strict=True):
        if not handle.cancelled:
            same(handle.result(0), each.alone(model))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "sample"}, "method 'sample' is distribution-exact, so that items would depend on the requests beside them"),
        ({"method": "stric"}, "unknown method 'stric'"),
        ({"beams": 0}, "beams is 0"),
        ({"draft_length": CostModel()}, "draft_length is a CostModel"),
        ({"accept": "token"}, "accept is 'token', but it is for engines of texts"),
        ({"catalogue": None}, "catalogue is None"),
        ({"k": 3}, "k is no setting of this target's engine; valid: catalogue, method, beams, width"),
    ],
)
def test_settings_that_an_engine_cannot_have(options, words, model):
    with pytest.raises(ValueError, match=f"^{words}"):
        Engine(model, **({"catalogue": SHOP} | options))


def test_encoder_decoder_models_are_refused():
    with pytest.raises(ValueError, match=r"^T5ForConditionalGeneration keeps more than keys and values of its own text"):
        Engine(make("t5"), catalogue=SHOP)


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        (USERS[0], {"k": 6}, "the request keeps 6 beams, but this engine 5: lower k or beams"),
        (USERS[0], {"k": 3, "beams": 2}, "beams is 2 and k 3"),
        (USERS[0], {"temperature": 0.5}, "temperature is 0.5, but this method takes the best beams"),
        ([], {}, "history 0: history is empty"),
        ([-1], {}, "history 0: item -1 is not in the catalogue"),
        (USERS[0], {"deny": [-1]}, "deny 0: item -1 is not in the catalogue"),
        ({"attention_mask": torch.ones(1, 2)}, {}, "the prompt has no input_ids"),
        (SHOP.inputs(USERS[:2]), {}, "a request of an engine is one prompt, but input_ids has 2 rows"),
        (SHOP.inputs(USERS[:1]), {"unseen": True}, "unseen needs the histories' items"),
    ],
)
def test_requests_that_are_refused(inputs, options, words, model):
    found = RecommendModel.of(model, Request.of(), None, settings())
    with pytest.raises(ValueError, match=f"^{words}"):
        found.read(inputs, replace(found.options(k=2), **options))
