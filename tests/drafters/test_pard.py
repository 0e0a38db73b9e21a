"""PARD: every round's block against a forward of the drafter's model alone, the distribution of a block, what a round runs.

That every tree, batch and end gives plain decoding's tokens: `test_products`; targets with states: `test_hybrid_products`.
"""

import json

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import mmspec
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token
from mmspec.drafters.block.pard import MaskedDrafter, MaskedDraftSession, MaskedSession, MaskedTarget, by_masks, mask_token_of
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.ensemble import ViewEnsemble
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.shapes import Chain, most_likely, sampled
from mmspec.loading.text import named_drafter
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.conftest import llama
from tests.drafters.cascades import perturbed
from tests.drafters.runs import greedy, random_prompt, run
from tests.oracles.statistics import FAIL, PASS, chi_square

MASK = 49
RAGGED = random_prompt(5, 9, 1, seed=1)


def pard(layers: int = 2, seed: int = 1) -> torch.nn.Module:
    model = llama(layers, seed)
    model.config.pard_token = MASK
    return model


def drafting(model, draw=most_likely, **settings) -> MaskedDrafter:
    return MaskedDrafter(MaskedTarget.of(HFTarget(model, DecoderOnly.of(model), **settings), MASK), Chain(draw))


def near(model: torch.nn.Module) -> torch.nn.Module:
    """A drafter that is often right."""
    found = perturbed(model, 0.02)
    found.config.pard_token = MASK
    return found


@torch.no_grad()
def by_hand(model, text: list[int], count: int) -> torch.Tensor:
    """Logits [count, V] of a block behind `text`, from one uncached forward."""
    return model(torch.tensor([text + [MASK] * (count - 1)])).logits[0, len(text) - 1 :]


def rows_of(inputs) -> list[list[int]]:
    return [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]


# --- a block ----------------------------------------------------------------------------------------------------------


def check_every_round(big, drafter, length=4):
    """Every drafted token is the likeliest one of a forward over that row's committed text and masks. Returns the statistics."""
    texts, accepted = rows_of(RAGGED), []

    def check(step):
        for row, text in enumerate(texts):
            real = step.draft.parents[row, 1:] >= 0
            drafts = step.draft.nodes[row, 1:][real].tolist()
            if drafts:
                assert drafts == by_hand(drafter.target.model, text, len(drafts)).argmax(-1).tolist()
            accepted.append(step.committed.accepted[row])
            text.extend(step.committed.values[row])

    out = run(big, drafter, RAGGED, new=24, length=length, on_step=check)
    assert out.sequences.tolist() == greedy(big, RAGGED, new=24)
    assert {0, 1} < set(accepted)  # so rounds began with waiting values, and without
    return out.stats


def test_a_block_is_one_forward_over_the_committed_text_and_masks(big):
    check_every_round(big, drafting(near(big)))


def test_a_mask_that_stays_in_the_cache_is_caught(big, monkeypatch):
    """A mutant that commits the first mask's column."""
    commit = MaskedSession.commit

    def leaking(self, keep, most):
        more = torch.where((keep >= 0).any(1, keepdim=True), keep.amax(1, keepdim=True) + 1, -1)
        commit(self, torch.cat([keep, more.clamp(max=self.scored - 1)], 1), most + 1)

    monkeypatch.setattr(MaskedSession, "commit", leaking)
    with pytest.raises(AssertionError):
        check_every_round(big, drafting(near(big)))


def test_values_that_are_not_run_again_are_caught(big, monkeypatch):
    """A mutant that forgets the draft tokens that were accepted."""
    observe = MaskedDraftSession.observe

    def forgetting(self, *round_):
        observe(self, *round_)
        self.waiting = None

    monkeypatch.setattr(MaskedDraftSession, "observe", forgetting)
    with pytest.raises(AssertionError):
        check_every_round(big, drafting(near(big)))


def test_one_forward_a_round_of_the_values_committed_and_the_masks(big):
    model, seen = pard(), []
    model.model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    steps = []
    inputs = random_prompt(7)
    out = run(big, drafting(model), inputs, new=20, length=5, on_step=steps.append)
    drafted = [step for step in steps if step.draft.size > 1]
    assert len(seen) == len(drafted) >= out.stats.target_calls - 1
    fed = [8] + [1 + step.committed.accepted[0] for step in drafted[:-1]]
    # the first has a column of PAD in front, where values would wait
    assert seen == [new + step.draft.size - 2 for new, step in zip(fed, drafted, strict=True)]


# --- its distribution -------------------------------------------------------------------------------------------------


def sampled_drafts(big, model, rows: int, rule, length: int = 3):
    inputs = {"input_ids": torch.tensor([[4, 8, 15, 16]] * rows), "attention_mask": torch.ones(rows, 4, dtype=torch.long)}
    drafts = []
    run(big, drafting(model, sampled), inputs, rule, new=length + 1, length=length, temperature=1.0, on_step=drafts.append)
    return drafts[0].draft


@pytest.mark.parametrize("rule", [Block(), Token()], ids=["block", "token"])
def test_draft_tokens_are_independent_draws_from_q(big, rule):
    model = pard()
    draft = sampled_drafts(big, model, 2000, rule)
    q = by_hand(model, [4, 8, 15, 16], 3).softmax(-1).double()
    assert (draft.q.probs().double() - q).abs().max() < 1e-5
    for level in range(3):
        assert chi_square(draft.nodes[:, 1 + level], q[level]) > PASS
    pairs = draft.nodes[:, 1] * 50 + draft.nodes[:, 3]
    assert chi_square(pairs, (q[0][:, None] * q[2]).flatten()) > PASS
    assert chi_square(draft.nodes[:, 2], 0.7 * q[1] + 0.3 * q[1].roll(1)) < FAIL


@pytest.mark.parametrize("rule", ["token", "block"])
def test_what_is_committed_has_the_targets_distribution(big, rule):
    """The first three tokens of many rows: the target's own distribution, and not the drafter's."""
    rows = 2000
    inputs = {"input_ids": torch.tensor([[4, 8]] * rows), "attention_mask": torch.ones(rows, 2, dtype=torch.long)}
    out = mmspec.text.generate(big, inputs, near(big), accept=rule, temperature=1.0, max_new_tokens=3, draft_length=2, seed=3)
    assert out.stats.accepted > rows // 2
    with torch.no_grad():
        p = big(torch.tensor([[4, 8]])).logits[0, -1].softmax(-1).double()
        wrong = near(big)(torch.tensor([[4, 8]])).logits[0, -1].softmax(-1).double()
        first = int(out.tokens[:, 0].mode().values)
        behind = big(torch.tensor([[4, 8, first]])).logits[0, -1].softmax(-1).double()
        mask = by_hand(near(big), [4, 8], 2)[1].softmax(-1).double()
    assert chi_square(out.tokens[:, 0], p) > PASS
    assert chi_square(out.tokens[:, 0], wrong) < FAIL
    chosen = out.tokens[:, 0] == first
    assert chi_square(out.tokens[chosen, 1], behind) > PASS
    assert chi_square(out.tokens[chosen, 1], mask) < FAIL


PROCESSED = {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "repetition_penalty": 1.6, "seed": 3}


def test_processors_read_the_draft_tokens_and_never_the_masks(big):
    """The repetition penalty of a level is that of its own path: q is that of the model's logits behind the text and masks."""
    model, texts = near(big), rows_of(RAGGED)
    seen = []
    mmspec.text.generate(big, RAGGED, model, accept="token", max_new_tokens=14, draft_length=3, on_step=seen.append, **PROCESSED)
    for step in seen:
        for row, text in enumerate(texts):
            tokens = step.draft.nodes[row, 1:][step.draft.parents[row, 1:] >= 0].tolist()
            if tokens:
                logits = by_hand(model, text, len(tokens)).double()
                for level, token in enumerate(tokens):
                    path = text + tokens[:level]
                    wanted = processed(logits[level], path)
                    assert (step.draft.q.probs()[row, level].double() - wanted).abs().max() < 1e-4, token
            text.extend(step.committed.values[row])


def processed(scores: torch.Tensor, path: list[int]) -> torch.Tensor:
    """transformers' own processors, on one path."""
    steps = [RepetitionPenaltyLogitsProcessor(1.6), TemperatureLogitsWarper(0.9), TopKLogitsWarper(12), TopPLogitsWarper(0.9)]
    return LogitsProcessorList(steps)(torch.tensor([path]), scores[None])[0].softmax(-1)


@pytest.mark.parametrize("accept", ["exact", "match"])
def test_the_text_is_plain_decodings_under_every_processor(big, accept):
    options = {"max_new_tokens": 14, **PROCESSED}
    plain = mmspec.text.generate(big, RAGGED, **options)
    for tree in (None, "comb", (2, 2)):
        out = mmspec.text.generate(big, RAGGED, near(big), accept=accept, tree=tree, draft_length=3, **options)
        assert out.tokens.tolist() == plain.tokens.tolist()
        assert out.stats.accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda model, other: HorizontalCascade(model, 2, Lookup()),
        lambda model, other: HorizontalCascade(Lookup(), 2, model),
        lambda model, other: HorizontalCascade(other, 2, model),
        lambda model, other: VerticalCascade(other, model, None, 3, 2),
        lambda model, other: VerticalCascade(model, other, None, 3, 2),
    ],
    ids=["relay-first", "relay-behind-lookup", "relay-behind-a-model", "cascade-inner", "cascade-middle"],
)
def test_a_part_of_a_cascade(big, make, temperature):
    options = {"max_new_tokens": 12, "temperature": temperature, "seed": 2}
    plain = mmspec.text.generate(big, RAGGED, **options)
    out = mmspec.text.generate(big, RAGGED, make(near(big), perturbed(big, 0.02, seed=9)), draft_length=4, **options)
    assert out.tokens.tolist() == plain.tokens.tolist()
    assert out.stats.accepted > 0


# --- models and folders -----------------------------------------------------------------------------------------------


def test_positions_end_with_the_text(big):
    """A drafter with a table of positions, as many as the text needs: no mask stands behind the last of them."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=17, n_embd=32, n_layer=1, n_head=2)).eval()
    model.config.pard_token = MASK
    inputs = random_prompt(5, seed=2)
    out = mmspec.text.generate(big, inputs, model, draft_length=6, max_new_tokens=13)
    assert out.tokens.tolist() == greedy(big, inputs, new=13)
    assert out.stats.drafted > 12


def test_a_folder_is_recognised_by_its_config(big, tmp_path):
    pard().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pard_token"] == MASK
    assert named_drafter(str(tmp_path)) == ("model", str(tmp_path))
    model = type(big).from_pretrained(tmp_path)
    assert mask_token_of(model) == MASK
    drafts = []
    out = mmspec.text.generate(big, RAGGED, model, draft_length=4, max_new_tokens=8, on_step=drafts.append)
    assert out.tokens.tolist() == greedy(big, RAGGED, new=8)
    assert drafts[0].draft.nodes[1, 1:].tolist() == by_hand(model, rows_of(RAGGED)[1], 4).argmax(-1).tolist()


def test_a_model_without_a_mask_token_drafts_one_token_a_forward(small):
    assert mask_token_of(small) is None
    drafter = ModelDrafter(HFTarget(small, DecoderOnly.of(small)))
    assert by_masks(drafter, None) is drafter


@pytest.mark.parametrize("token", [-1, 50, True, "x"])
def test_a_mask_token_that_is_no_id_is_refused(big, token):
    model = pard()
    model.config.pard_token = token
    with pytest.raises(ValueError, match=r"pard_token is .* in the config of LlamaForCausalLM: give an id from 0 to 49"):
        mmspec.text.generate(big, RAGGED, model, max_new_tokens=2)


def test_several_views_are_refused(big):
    ensemble = ViewEnsemble(HFTarget(big, family_of(big)), (0.5, 0.5))
    with pytest.raises(ValueError, match="drafts for one view of a prompt"):
        by_masks(ModelDrafter(ensemble), MASK)


def test_more_levels_than_masks_are_refused(big):
    target = MaskedTarget.of(HFTarget(big, DecoderOnly.of(big)), MASK)
    session, pending = target.begin(RAGGED)
    session.fill(Budget(torch.full((3,), 9), 2))
    draft = Draft(pending.nodes, pending.parents, pending.start)
    keys = Noise.from_seed(0, 3).draft_token(draft.start[:, None], draft.start)
    for _ in range(2):
        value, _ = sampled(session.score(draft).p.last(1), keys)
        draft = draft.extend_chain(value, torch.full((3,), 9))
    with pytest.raises(ValueError, match="more than 2 levels"):
        session.score(draft)
