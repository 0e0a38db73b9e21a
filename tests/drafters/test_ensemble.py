"""Ensembles of views in one batch: what they draft is the mixture of what the views would draft one by one, and so are its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.pipeline import Pipeline, Suppress
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.ensemble import ViewEnsemble, Views
from mmspec.drafters.model.mixing import Adaptive, ConfidenceWeights, InverseKL, Static, compare_mixtures, simplex, weights_of
from mmspec.drafters.shapes import Chain, most_likely, sampled
from mmspec.drafters.views.base import same_prompt, text_alone
from mmspec.drafters.views.text_views import Newline
from mmspec.drafters.views.vision_inputs import Pooled, Pruned, looking
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.text import ensemble
from tests.drafters.looking import IMAGE, LINE, TAKES, asked, counted, llava, patches_of, perturbed, words_only
from tests.families import VOCAB, build
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.seeing import SIGHTS
from tests.seeing import seen as asked_of

NEW = 12
FIXED = {"max_new_tokens": NEW, "draft_length": 4}
FOUR = (same_prompt, Pooled(), text_alone, Newline(LINE))
VALUES, ROWS = (20, 21, 22, 23, 24), 1000
FEW = Suppress(tuple(i for i in range(VOCAB) if i not in VALUES))
BANNED = Pipeline((Suppress((IMAGE,)),))


@pytest.fixture(scope="module")
def target():
    return llava()


@pytest.fixture(scope="module")
def small(target):
    return perturbed(target)


def target_of(model) -> HFTarget:
    return HFTarget(model, looking(family_of(model)), BANNED)


# --- one by one -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneByOne:
    """The oracle: a session of its own for every view, mixed afterwards, weights by the words of the paper."""

    target: HFTarget
    learned: bool = False

    def begin(self, prompt: Any) -> tuple["Apart", Draft]:
        raw = replace(self.target, processors=Pipeline())
        sessions = [raw.begin(own)[0] for own in prompt]
        return Apart(sessions, self.target.processors, self.learned), Draft.root(torch.zeros(1), torch.zeros(1))


class Apart:
    def __init__(self, sessions, processors, learned):
        self.sessions, self.processors, self.learned = sessions, processors, learned
        rows = len(sessions[0].lengths)
        self.history: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]
        self.weights = torch.full((rows, len(sessions)), 1 / len(sessions))
        self.said: list[Tensor] = []

    @property
    def scored(self) -> int:
        return self.sessions[0].scored

    def score(self, draft: Draft) -> Scored:
        if self.scored == 0:
            self.said = []
            self._reweigh()
        said = torch.stack([session.score(replace(draft, q=None)).p.probs() for session in self.sessions])
        self.said.append(said)
        mixed = torch.einsum("bv,vbmx->bmx", self.weights, said).log()
        mixed[..., IMAGE] = -torch.inf
        return Scored(Categorical(mixed))

    def _reweigh(self) -> None:
        if not self.learned:
            return
        for row, seen in enumerate(self.history):
            if seen:
                self.weights[row] = paper_weights([p for p, _ in seen], [said for _, said in seen])

    def learn(self, p: Categorical, columns: Tensor, real: Tensor) -> None:
        said = torch.cat(self.said, 2)
        for row, seen in enumerate(self.history):
            for k in range(columns.shape[1]):
                if real[row, k]:
                    seen.append((p.probs()[row, k], said[:, row, columns[row, k]]))

    def commit(self, keep: Tensor, most: int) -> None:
        for session in self.sessions:
            session.commit(keep, most)


def paper_weights(p: Sequence[Tensor], said: Sequence[Tensor]) -> Tensor:
    """Weights in tenths: most argmax hits, then the least summed KL(p || q), in double precision and one at a time."""
    views, found = len(said[0]), []
    for weights in simplex(views, 10):
        hits, kl = 0, 0.0
        for ours, theirs in zip(p, said, strict=True):
            mixed = (weights[:, None].double() * theirs.double()).sum(0)
            hits += int(mixed.argmax() == ours.argmax())
            some = ours > 0
            kl += float((ours[some].double() * (ours[some].double() / mixed[some].clamp_min(1e-30)).log()).sum())
        found.append((-hits, kl, tuple(weights.tolist())))
    return torch.tensor(min(found)[2])


class Kept:
    """Every draft of a generation."""

    def __init__(self):
        self.drafts: list[Draft] = []

    def __call__(self, step) -> None:
        self.drafts.append(step.draft)


def drafts_of(target, drafter, inputs, **options) -> tuple[list[Draft], Tensor]:
    kept = Kept()
    out = mmspec.text.generate(target, inputs, drafter=drafter, on_step=kept, **FIXED | options)
    return kept.drafts, out.sequences


def assert_same_drafts(ours: Sequence[Draft], theirs: Sequence[Draft]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.parents, b.parents)
        assert torch.equal(a.nodes[a.valid], b.nodes[b.valid])
        if a.q is not None:
            real = a.valid[:, a.roots :]
            assert not ((a.q.probs() - b.q.probs())[real].abs() > 1e-5).any()


@pytest.mark.parametrize(("learned", "side"), [(False, "left"), (True, "right")], ids=["uniform", "adaptive"])
def test_in_one_batch_as_one_by_one(target, small, learned, side):
    weights, views = (Adaptive(), FOUR[:3]) if learned else (Static(), FOUR)
    for inputs in (asked(side=side), asked([[5, *[IMAGE] * TAKES, 7]])):
        for options, draw in (({}, most_likely), ({"accept": Token(), "temperature": 1.0, "seed": 2}, sampled)):
            ours = ModelDrafter(ViewEnsemble(target_of(small), weights), Chain(draw), Views(views, weights))
            theirs = ModelDrafter(OneByOne(target_of(small), learned), Chain(draw), Views(views))
            (a, out), (b, same) = (drafts_of(target, drafter, inputs, **options) for drafter in (ours, theirs))
            assert torch.equal(out, same)
            assert_same_drafts(a, b)
            assert sum(draft.size > 1 for draft in a) > 2


@pytest.mark.parametrize("name", ["Qwen3-VL", "Gemma-3 VLM", "PaliGemma 2", "InternVL"])
def test_prompts_of_other_kinds_are_stacked(name):
    """Positions along several axes, masks that see both ways and features for inner layers, beside rows that have none of them."""
    model, inputs = build(SIGHTS[name].case), asked_of(name)
    model.generation_config.eos_token_id = None
    views = Views((same_prompt, text_alone, Pruned(0.5)), Static())
    own = target_of(perturbed(model))
    ours, theirs = (ModelDrafter(made, Chain(most_likely), views) for made in (ViewEnsemble(own, Static()), OneByOne(own)))
    (a, out), (b, _) = (drafts_of(model, drafter, inputs, max_new_tokens=6, draft_length=3) for drafter in (ours, theirs))
    assert_same_drafts(a, b)
    assert torch.equal(out, mmspec.text.generate(model, inputs, max_new_tokens=6).sequences)


def test_late_views_join_the_batch(target, small):
    views = Views((same_prompt, Pruned(0.5), Newline(LINE)), Static())
    ours, theirs = (
        ModelDrafter(made, Chain(most_likely), views) for made in (ViewEnsemble(target_of(small), Static()), OneByOne(target_of(small)))
    )
    (a, _), (b, _) = (drafts_of(target, drafter, asked()) for drafter in (ours, theirs))
    assert_same_drafts(a, b)
    assert a[0].size == 1
    assert a[1].size == 5


def test_a_draft_token_is_one_forward_and_a_picture_is_seen_once(target, small):
    views = ("own", "pooled", "pruned", "drop", Newline(LINE))
    with counted(patches_of(target), patches_of(small), small.model.language_model) as (mine, own, forwards):
        out = mmspec.text.generate(target, asked(), drafter=small, view=views, draft_length=4, max_new_tokens=NEW)
    assert (mine, own) == ([3], [3])
    merging = len(views)  # a prompt is merged by a forward that stops at the language model's door
    assert len(forwards) == merging + 4 * (out.stats.target_calls - 1)
    assert set(forwards[merging:]) == {3 * len(views)}


@pytest.mark.parametrize("views", [("own", "drop"), ("own", "pooled", Newline(LINE)), ("pruned", "own")], ids=str)
@pytest.mark.parametrize("weights", ["uniform", "adaptive", "inverse-kl", "confidence"])
def test_every_ensemble_leaves_the_output_alone(target, small, views, weights):
    view = ensemble(*views, weights=weights)
    for settings in ({}, {"temperature": 1.0, "seed": 4}, {"temperature": [0.0, 0.7, 1.3], "seed": 4, "accept": "coupled"}):
        expected = mmspec.text.generate(target, asked(), max_new_tokens=NEW, **settings).sequences
        assert torch.equal(mmspec.text.generate(target, asked(), drafter=small, view=view, **FIXED, **settings).sequences, expected)


def test_ensembles_of_other_shapes_and_drafters(target, small):
    expected = mmspec.text.generate(target, asked(), max_new_tokens=NEW).sequences
    text = ("drop", Newline(LINE))
    cases = (
        (small, ("own", "drop"), {"tree": (3, 2)}),
        (small, ("own", "drop"), {"tree": "expand"}),
        (small, ("own", "drop"), {"draft_length": "auto"}),
        (target, ("own", "drop"), {"draft_length": 4}),
        (words_only(target), text, {"draft_length": 4}),
        (words_only(target, vocab_size=VOCAB - 1), text, {"draft_length": 4}),
    )
    for drafter, view, options in cases:
        out = mmspec.text.generate(target, asked(), drafter=drafter, view=view, max_new_tokens=NEW, **options)
        assert torch.equal(out.sequences, expected)
    alone = mmspec.text.generate(target, asked(), drafter=small, view="own", **FIXED)
    out = mmspec.text.generate(target, asked(), drafter=small, view=ensemble("own", "drop", weights=(1, 0)), **FIXED)
    assert out.stats.acceptance_by_position == alone.stats.acceptance_by_position
    for row in range(3):  # weights are a row's own
        one = asked([asked()["input_ids"][row][asked()["attention_mask"][row].bool()].tolist()])
        pixels = asked()["pixel_values"][([0], [1, 2], [])[row]]
        one |= {"pixel_values": pixels} if len(pixels) else {}
        together, single = Kept(), Kept()
        mmspec.text.generate(target, asked(), drafter=small, view=("own", "drop"), on_step=together, **FIXED)
        mmspec.text.generate(target, one, drafter=small, view=("own", "drop"), on_step=single, **FIXED)
        for a, b in zip(single.drafts, together.drafts, strict=False):
            assert torch.equal(a.nodes[0][a.valid[0]], b.nodes[row][b.valid[row]])


# --- weights ----------------------------------------------------------------------------------------------------------


def distributions(*shape: int, seed: int = 0, sharp: float = 2.0) -> Tensor:
    return (sharp * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).softmax(-1)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("views", [2, 3])
def test_adaptive_weights_are_the_papers(views, window):
    rows, values = 3, 6
    weighing = Adaptive(window=window).begin(rows, views, torch.device("cpu"))
    assert torch.allclose(weighing.of(distributions(views, rows, 1, values)), torch.tensor(1 / views))
    history: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(rows)]
    torch.manual_seed(1)
    for step in range(5):
        p, said = distributions(rows, 4, values, seed=step), distributions(views, rows, 4, values, seed=50 + step)
        real = torch.rand(rows, 4) < 0.6
        real[2] &= step > 2  # a row that begins later
        weighing.learn(p, said, real)
        for row in range(rows):
            history[row] += [(p[row, k], said[:, row, k]) for k in range(4) if real[row, k]]
        found = weighing.of(said)[..., 0].T
        for row, seen in enumerate(history):
            seen = seen if window is None else seen[-window:]
            expected = paper_weights([p for p, _ in seen], [q for _, q in seen]) if seen else torch.full((views,), 1 / views)
            assert torch.allclose(found[row], expected), (step, row)


def test_what_a_weighting_is_compared_by(monkeypatch):
    monkeypatch.setattr("mmspec.drafters.model.mixing._CELLS", 30)  # a few at a time
    p, said, candidates = distributions(2, 3, 5), distributions(2, 2, 3, 5, seed=1), simplex(2, 10)
    p[0, 0] = torch.tensor([0.0, 1, 0, 0, 0])  # a greedy target's
    found = compare_mixtures(p, said, candidates)
    mixed = torch.einsum("cv,vbkx->bkcx", candidates, said)
    kl = torch.where(p[:, :, None] > 0, p[:, :, None] * (p[:, :, None].log() - mixed.log()), 0).sum(-1)
    assert torch.allclose(found[:, :, 1], kl, atol=1e-5)
    assert torch.equal(found[:, :, 0], (mixed.argmax(-1) == p.argmax(-1)[..., None]).float())
    never = compare_mixtures(p[:1, :1], torch.zeros(2, 1, 1, 5), candidates)
    assert torch.isfinite(never).all()


def test_the_grid_is_every_weighting_in_tenths():
    for views, count in ((1, 1), (2, 11), (3, 66), (4, 286)):
        grid = simplex(views, 10)
        assert len(grid) == len({tuple(row) for row in (10 * grid).round().tolist()}) == count
        assert torch.allclose(grid.sum(1), torch.ones(count))
        assert (grid >= 0).all()


def test_the_other_weights():
    said, cpu = distributions(3, 2, 4, 5), torch.device("cpu")
    assert torch.allclose(Static((1, 0, 3)).begin(2, 3, cpu).of(said)[:, 0, 0], torch.tensor([0.25, 0.0, 0.75]))
    surest = ConfidenceWeights().begin(2, 3, cpu).of(said)
    assert torch.equal(surest.argmax(0), said.amax(-1).argmax(0))
    assert torch.equal(surest.sum(0), torch.ones(2, 4))
    inverse, p = InverseKL().begin(2, 3, cpu), distributions(2, 4, 5, seed=9)
    inverse.learn(p, said, torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0]]).bool())
    kl = torch.stack([(p[0] * (p[0] / said[v, 0]).log()).sum(-1)[[0, 1, 3]].sum() for v in range(3)])
    found = inverse.of(said)[..., 0].T
    assert torch.allclose(found[0], (1 / kl) / (1 / kl).sum(), atol=1e-5)
    assert torch.allclose(found[1], torch.tensor(1 / 3))
    assert weights_of("uniform") == Static()
    assert weights_of([1, 2]) == Static((1, 2))
    cases = {
        "unknown weights 'x'; valid: uniform": lambda: weights_of("x"),
        "none below 0": lambda: Static((-1.0, 2.0)),
        "2 weights for 3 views": lambda: Static((1.0, 2.0)).begin(1, 3, cpu),
        "step is 0.3": lambda: Adaptive(step=0.3),
        "window is 0": lambda: Adaptive(window=0),
    }
    for words, make in cases.items():
        with pytest.raises(ValueError, match=words):
            make()


class Noting(Static):
    """All views alike, and what they would have learned from."""

    def __init__(self):
        object.__setattr__(self, "weights", None)
        object.__setattr__(self, "learned", [])

    def begin(self, rows, views, device):
        weighing = super().begin(rows, views, device)
        weighing.learns = True
        weighing.learn = lambda *what: self.learned.append(what)
        return weighing


class Judged(Token):
    rounds: list = []

    def __call__(self, draft, scored, noise):
        self.rounds.append((draft, scored.p))
        return super().__call__(draft, scored, noise)


def test_views_learn_from_what_was_judged_and_up_to_the_first_rejected(target, small):
    noting, steps = Noting(), []
    Judged.rounds.clear()
    drafter = ModelDrafter(ViewEnsemble(target_of(small), noting), Chain(sampled), Views((same_prompt, text_alone), noting))
    options = {"accept": Judged(), "temperature": 1.0, "seed": 5, "draft_length": 4, "max_new_tokens": 24}
    mmspec.text.generate(target, asked(), drafter=drafter, on_step=steps.append, **options)
    rounds = [(*judged, step.verdict) for judged, step in zip(Judged.rounds, steps, strict=True) if judged[0].size > 1]
    assert len(rounds) == len(noting.learned) > 5
    lengths = set()
    for (draft, distributions, verdict), (p, said, real) in zip(rounds, noting.learned, strict=True):
        mixed = said.mean(0)
        mixed[..., IMAGE] = 0
        for row, keep in enumerate(verdict.keep.tolist()):
            kept = [column for column in keep if 0 <= column < draft.size - 1]  # a drafter never runs its last draft token
            assert real[row].tolist() == [0 <= column < draft.size - 1 for column in keep]
            lengths.add(len(kept))
            for k, column in enumerate(kept):
                assert torch.equal(p[row, k], distributions.probs()[row, column])
                assert torch.allclose(mixed[row, k] / mixed[row, k].sum(), draft.q.probs()[row, column], atol=1e-6)
    assert len(lengths) > 2


# --- distributions ---------------------------------------------------------------------------------------------------------------


def exact_distribution(model, inputs, steps: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """Every text of `steps` of the `VALUES`, and its probability."""
    paths, chances = [()], [1.0]
    for _ in range(steps):
        ids = torch.cat([inputs["input_ids"].expand(len(paths), -1), torch.tensor(paths).view(len(paths), -1).long()], 1)
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=inputs["pixel_values"].repeat(len(paths), 1, 1, 1)).logits[:, -1]
        distributions = logits[:, VALUES].softmax(-1).tolist()
        chances = [chance * p for chance, distribution in zip(chances, distributions, strict=True) for p in distribution]
        paths = [(*path, i) for path in paths for i in VALUES]
    return paths, chances


def misnamed(distribution, keys):
    """A planted bug: drawn from the mixture, said to be drawn from a distribution under which the value is rare."""
    value = distribution.sample(keys)
    return value, Categorical(distribution.scores.scatter_add(-1, value[..., None], torch.full_like(distribution.scores, -9.0)))


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_sampling_with_an_ensemble_has_the_targets_distribution(target, rule):
    """Four tokens in two rounds or more, so that weights have been learned for some of them."""
    drafter = target_of(perturbed(target, 0.05))
    drafter = replace(drafter, processors=Pipeline((FEW,)))
    one = asked([[5, *[IMAGE] * TAKES, 7]])
    paths, chances = exact_distribution(target, one, 4)
    numbers = {path: number for number, path in enumerate(paths)}
    inputs = {key: value.repeat(ROWS, *[1] * (value.dim() - 1)) for key, value in one.items()}
    found = {}
    for name, draw in (("right", sampled), ("planted", misnamed)):
        mixed = ModelDrafter(ViewEnsemble(drafter), Chain(draw), Views((same_prompt, text_alone)))
        settings = {"accept": rule, "temperature": 1.0, "processors": (FEW,), "seed": 7}
        out = mmspec.text.generate(target, inputs, drafter=mixed, draft_length=2, max_new_tokens=4, **settings)
        cells = torch.tensor([numbers[tuple(row)] for row in out.sequences.tolist()])
        found[name] = chi_square(cells, torch.tensor(chances))
    assert found["right"] > PASS
    assert found["planted"] < FAIL


def test_a_model_is_left_as_it_was(target, small):
    def state():
        modules = [*target.modules(), *small.modules()]
        return [("forward" in vars(m), len(m._forward_hooks) + len(m._forward_pre_hooks)) for m in modules], small.config.to_dict()

    mmspec.text.generate(target, asked(), drafter=small, view="own", **FIXED)  # transformers leaves hooks of its own at first
    before = state()
    mmspec.text.generate(target, asked(), drafter=small, view=("own", "pooled", "pruned", "drop"), **FIXED)
    assert state() == before


def test_what_cannot_be_mixed_is_refused(target, small):
    out = mmspec.text.generate(target, asked(), drafter=small, view=("own", "drop"), stop_below=0.2, **FIXED)
    assert torch.equal(out.sequences, mmspec.text.generate(target, asked(), max_new_tokens=NEW).sequences)
    session, _ = ViewEnsemble(target_of(small)).begin((asked(), asked()))
    with pytest.raises(ValueError, match="has no hidden states"):
        session.watch((-1,))
    mllama = build(SIGHTS["Mllama"].case)
    with pytest.raises(ValueError, match="Mllama's do not"):
        mmspec.text.generate(mllama, asked_of("Mllama"), drafter=mllama, view=("own", "drop"), **FIXED)
