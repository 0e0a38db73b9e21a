"""Small drafter models: what they begin with, the loss and whose text it is taken on, the folder, and the recipe that joins them."""

import copy
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored
from mmspec.drafters.guided import head_rows
from mmspec.train import Fit, fit, loop
from mmspec.train.losses import LOSSES
from mmspec.train.small_model import loss as small_model_loss
from mmspec.train.small_model import text as texts
from mmspec.train.small_model.architecture import evenly_spaced, principal_rows, share_embeddings, small_model, start_embeddings
from mmspec.train.small_model.folder import claim_work, note_acceptance, noted_acceptance, save_small_model
from mmspec.train.small_model.interleaved import Interleaved
from mmspec.train.small_model.loss import SmallModelLoss, TextWindow, hidden_states, logits_map
from mmspec.train.small_model.text import TextSource, TrainingText, counted_ids, estimated_memory
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt
from tests.families import FAMILIES, build
from tests.forked import Started
from tests.sizes import LLAMA, Case

ROOT = Path(__file__).parents[2]
NEW = 12


@pytest.fixture(scope="module")
def big():
    return llama(3, seed=0).requires_grad_(False)


@pytest.fixture(scope="module")
def written(big):
    """Windows of 20 values, 8 given and 12 greedily written by the target: ids [24, 20], own [24, 20]."""
    inputs = random_prompt(*[8] * 24, seed=7)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(big, inputs, new=NEW))], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 8:] = True
    return ids, own


# --- what it begins with ----------------------------------------------------------------------------------------------


def test_layers_are_taken_at_even_distances():
    assert [evenly_spaced(16, count) for count in (1, 2, 4)] == [(0,), (0, 15), (0, 5, 10, 15)]
    assert evenly_spaced(5, 5) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", ["Llama", "Gemma-3", "GPT-2", "Qwen3"])
def test_with_all_layers_it_is_the_target(name):
    target = build(FAMILIES[name])
    layers, ids = target.config.get_text_config().num_hidden_layers, torch.arange(3, 19)[None]
    model = small_model(target, layers=layers)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, target(ids).logits)
        less = small_model(target, layers=1)
        assert less(ids).logits.shape == target(ids).logits.shape
        assert not torch.equal(less(ids).logits, small_model(target, layers=1, fresh=True)(ids).logits)
    assert sum(p.numel() for p in less.parameters()) < sum(p.numel() for p in target.parameters())


def test_the_first_and_the_last_layer_and_what_the_config_says_of_each(tmp_path):
    target = build(FAMILIES["Gemma-3"])
    kinds = target.config.get_text_config().layer_types
    model = small_model(target, layers=2)
    assert model.config.layer_types == [kinds[0], kinds[-1]]
    own, theirs = model.get_decoder().layers, target.get_decoder().layers
    for place, layer in ((0, 0), (1, -1)):
        assert all(torch.equal(a, b) for a, b in zip(own[place].parameters(), theirs[layer].parameters(), strict=True))
    assert small_model(llama(16, seed=0)).config.num_hidden_layers == 2
    model.save_pretrained(tmp_path)
    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path).config.num_hidden_layers == 2


def test_any_causal_architecture_of_the_targets_ids(big, tmp_path):
    """OPT has a low-rank embedding, tied to its head: the narrow table of a large vocabulary."""
    sizes = {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    hf.OPTConfig(vocab_size=50, word_embed_proj_dim=8, do_layer_norm_before=False, **sizes).save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        model = small_model(big, str(path))
        assert type(model) is hf.OPTForCausalLM
        assert model.get_input_embeddings().weight.shape == (50, 8)
        assert model.config.eos_token_id == big.config.eos_token_id
    start_embeddings(model, big)
    rows = principal_rows(big.get_input_embeddings().weight, 8)
    assert torch.allclose(model.get_input_embeddings().weight, rows)
    SmallModelLoss(model, big, {"kl": 1.0})


def test_projected_embeddings_keep_the_tokens_in_use():
    torch.manual_seed(0)
    weight, counts = torch.randn(40, 12), torch.zeros(40)
    counts[:6] = 5
    assert torch.allclose(principal_rows(weight, 12) @ principal_rows(weight, 12).T, weight @ weight.T, atol=1e-4)
    used, even = ((principal_rows(weight, 6, given)[:6].square().sum() / weight[:6].square().sum()).item() for given in (counts, None))
    assert used > 0.99 > even


def test_what_cannot_be_a_small_model_is_refused_in_one_line(big, tmp_path):
    config = big.config.to_dict()
    (tmp_path / "other.json").write_text(json.dumps({**config, "vocab_size": 51}))
    (tmp_path / "none.json").write_text(json.dumps({"hidden_size": 3}))
    (tmp_path / "odd.json").write_text(json.dumps({"model_type": "no such type"}))
    (tmp_path / "hears.json").write_text(json.dumps({"model_type": "whisper", "vocab_size": 50}))
    for words, target, options in (
        ("layers is 4", big, {"layers": 4}),
        ("layers is 0", big, {"layers": 0}),
        ("give one of them", big, {"size": "config.json", "layers": 2}),
        ("give small, or the path", big, {"size": "smal"}),
        ("vocab_size is 51", big, {"size": str(tmp_path / "other.json")}),
        ("is no config", big, {"size": str(tmp_path / "none.json")}),
        ("is no config", big, {"size": str(tmp_path / "odd.json")}),
        ("is no causal language model", build(FAMILIES["Whisper"]), {}),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            small_model(target, **options)
        assert "\n" not in str(caught.value)


def test_of_a_vision_language_model_the_language_model_is_taken():
    target = mmspec.load("vlm").target
    model = small_model(target, layers=1)
    assert type(model) is hf.LlamaForCausalLM
    example, ids = SmallModelLoss(model, target, {"kl": 1.0}), torch.arange(3, 15)[None]
    assert example(TextWindow(ids, ids > 4)).item() > 0


def test_a_codec_language_model_is_a_causal_model_like_others():
    target = mmspec.load("speech").target.model
    model, ids = small_model(target, layers=2), torch.arange(3, 40)[None]
    assert SmallModelLoss(model, target, {"kl": 1.0}).acceptance(TextWindow(ids, ids > 9))[0] > 0


# --- a shared head ----------------------------------------------------------------------------------------------------


def large(**changes):
    """A target of 70,000 values with embeddings that are tied, or not."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 70_000, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = hf.LlamaConfig(num_hidden_layers=3, max_position_embeddings=64, **(sizes | {"tie_word_embeddings": True} | changes))
    return hf.LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.parametrize("tied", [True, False])
def test_a_large_head_is_the_targets_and_stays_as_it_is(tied, tmp_path):
    target = large(tie_word_embeddings=tied)
    before, model = target.lm_head.weight.clone(), small_model(target, layers=1, fresh=True)
    plain = hf.LlamaForCausalLM.from_pretrained(saved(model, tmp_path / "own"))
    assert share_embeddings(model, target)
    for own, theirs in ((model.lm_head, target.lm_head), (model.model.embed_tokens, target.model.embed_tokens)):
        assert own.weight is theirs.weight
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in plain.named_parameters() if "embed" not in name and "lm_head" not in name}
    example, ids = SmallModelLoss(model, target, {"kl": 1.0}, logits=70_000 * 4), torch.randint(3, 70_000, (4, 12))
    window = TextWindow(ids, torch.ones_like(ids, dtype=torch.bool))
    rate = Fit(steps=2, lr=1e-2, warmup=0)
    losses = fit(example, lambda module, turn: module(window), rate, tmp_path / "run.pt")
    assert losses[1] < losses[0]
    assert torch.equal(target.lm_head.weight, before)
    loaded = hf.AutoModelForCausalLM.from_pretrained(saved(model, tmp_path / "shared"))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)  # the folder is complete


def saved(model, folder):
    model.save_pretrained(folder)
    return folder


def test_a_head_is_shared_where_it_is_large_and_fits(big):
    target = large()
    assert share_embeddings(small_model(big, layers=1), big) is False  # 50 values
    assert share_embeddings(small_model(big, layers=1), big, True) is True
    assert share_embeddings(small_model(target, layers=1), target, False) is False
    narrow, other = large(hidden_size=4), large(tie_word_embeddings=False)
    assert share_embeddings(narrow, target) is False
    assert narrow.lm_head.weight.shape == (70_000, 4)
    with pytest.raises(ValueError, match="head is 'shared', but the embeddings are 70000x4 in float32 and 70000x8 in float32"):
        share_embeddings(narrow, target, True)
    with pytest.raises(ValueError, match="or not tied alike: leave it out"):
        share_embeddings(other, target, True)
    with pytest.raises(ValueError, match="70000x8 in float32 and 70000x8 in bfloat16"):
        share_embeddings(large(), large().bfloat16(), True)


def test_the_estimate_counts_what_is_trained(big):
    target = large()
    own, shared = (SmallModelLoss(small_model(target, layers=1).requires_grad_(True), target, {"kl": 1.0}) for _ in range(2))
    assert share_embeddings(shared.model, target)
    head, layer = target.lm_head.weight.numel(), sum(p.numel() for p in shared.model.parameters() if p.requires_grad)
    found = [estimated_memory(example, target, 100, 4, 20).needed for example in (own, shared)]
    assert found[0]["gradients and optimiser"] == 12 * (head + layer) + 8 * head
    assert found[1]["gradients and optimiser"] == 12 * layer
    assert found[0]["the target's states"] == found[1]["the target's states"] == 100 * 20 * 8 * 4
    assert found[0]["logits of a chunk"] == 4 * 6 * 4 * 20 * 70_000
    assert estimated_memory(own, target, 100, 4000, 20).needed["logits of a chunk"] == 4 * 6 * own.most_logits
    said = str(estimated_memory(shared, target, 100, 4, 20))
    assert said.startswith("memory: target 0.00 GB, loaded; about ")
    assert "disk" not in said


# --- the loss ---------------------------------------------------------------------------------------------------------


def gradients(example, window):
    example.zero_grad()
    loss = example(window)
    loss.backward()
    return loss.detach(), [weight.grad.clone() for weight in example.parameters()]


@pytest.mark.parametrize("name", ["kl", "reverse-kl", "jsd", "tv", "ce"])
def test_the_loss_in_chunks_is_the_loss(big, written, name):
    window, model = TextWindow(*(part[:5] for part in written)), small_model(big, layers=1)
    whole, grads = gradients(SmallModelLoss(model, big, {name: 1.0}), window)
    for chunk in (7, 59, 60):
        loss, others = gradients(SmallModelLoss(model, big, {name: 1.0}, logits=50 * chunk), window)
        assert torch.allclose(loss, whole, rtol=1e-5)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, others, strict=True))
    with torch.no_grad():
        log_p, log_q = (each(window.ids).logits[:, :-1].log_softmax(-1) for each in (big, model))
    each = LOSSES[name](log_p, log_q, window.ids[:, 1:])
    assert torch.allclose(whole, each[window.own[:, 1:]].mean(), rtol=1e-5)


def test_logits_of_a_chunk_are_all_that_is_held(big, written, monkeypatch):
    seen, window = [], TextWindow(*(part[:5] for part in written))
    example = SmallModelLoss(small_model(big, layers=1), big, {"kl": 1.0}, logits=50 * 7)
    inner = example._loss
    monkeypatch.setattr(example, "_loss", lambda log_p, log_q, value: (seen.append(log_q.shape), inner(log_p, log_q, value))[1])
    example(window).backward()
    assert max(rows for rows, _ in seen) == 7
    assert len(seen) == 9  # 60 tokens, each chunk once


def test_only_text_of_a_model_counts(big, written):
    example, (ids, own) = SmallModelLoss(small_model(big, layers=1), big, {"kl": 1.0}), (part[:4] for part in written)
    cut = own.clone()
    cut[:, 16:] = False
    garbled = ids.clone()
    garbled[:, 16:] = 3
    assert torch.allclose(example(TextWindow(ids, cut)), example(TextWindow(garbled, cut)), atol=1e-5)
    assert not torch.allclose(example(TextWindow(ids, own)), example(TextWindow(ids, cut)), atol=1e-4)
    states = hidden_states(big, ids)
    assert torch.equal(example(TextWindow(ids, own, states)), example(TextWindow(ids, own)))
    assert not torch.equal(example(TextWindow(ids, own, states.flip(0))), example(TextWindow(ids, own)))


def test_the_target_accepts_its_own_copy_and_is_neither_trained_nor_saved(big, written):
    example, window = SmallModelLoss(copy.deepcopy(big), big, {"kl": 1.0}), TextWindow(*written)
    assert example.acceptance(window) == pytest.approx((1.0, 1.0), abs=1e-5)
    assert example(window).item() == pytest.approx(0, abs=1e-5)
    other = SmallModelLoss(small_model(big, layers=1), big, {"kl": 1.0})
    taken, agree = other.acceptance(window)
    assert 0 < taken < 1
    assert 0 < agree < 1
    assert {name.split(".")[0] for name in other.state_dict()} == {"model"}
    assert len(other.state_dict()) == len(other.model.state_dict())


def test_two_processes_with_unequal_windows_have_the_loss_of_one(big, written, monkeypatch):
    """Each divides by the mean number of tokens, so that the mean of both is the loss over all of them."""
    ids, own = (part[:5].clone() for part in written)
    own[3:, 11:] = False
    example, counts = SmallModelLoss(small_model(big, layers=1), big, {"kl": 1.0}), own[:, 1:].sum()
    whole = example(TextWindow(ids, own))
    monkeypatch.setattr(small_model_loss, "shared_counts", lambda count: counts[None] / 2)
    parts = [example(TextWindow(ids[rows], own[rows])) for rows in (slice(0, 3), slice(3, 5))]
    assert torch.allclose(sum(parts) / 2, whole, rtol=1e-5)


SCALED = {
    "capped": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**LLAMA, head_dim=8, final_logit_softcapping=2.0)),
    "multiplied": lambda: hf.CohereForCausalLM(hf.CohereConfig(**LLAMA, logit_scale=0.25)),
    "divided": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**LLAMA, logits_scaling=4.0)),
}


@pytest.mark.parametrize("name", SCALED)
def test_logits_that_are_capped_or_scaled(name):
    model, ids = build(Case(SCALED[name], "")), torch.arange(3, 19)[None]
    with torch.no_grad():
        found = logits_map(model)(hidden_states(model, ids))
        assert torch.allclose(found, model(ids).logits, atol=1e-5)
        some = torch.tensor([1, 7, 20])
        assert torch.allclose(head_rows(model, some)(hidden_states(model, ids)), found[..., some], atol=1e-5)


def test_logits_made_in_an_unknown_way_are_refused(big, monkeypatch):
    forward = hf.LlamaForCausalLM.forward

    def tripled(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.logits = 3 * out.logits
        return out

    monkeypatch.setattr(hf.LlamaForCausalLM, "forward", tripled)
    with pytest.raises(ValueError, match="are not its output head's product"):
        logits_map(big)


# --- whose text -------------------------------------------------------------------------------------------------------


def test_interleaved_sampling_keeps_what_is_likely_and_replaces_the_rest_by_the_targets_draws():
    """One draft token in each of 20,000 rows: the value that comes has the rule's own output distribution, and no other."""
    torch.manual_seed(0)
    rows, p, q = 20_000, Categorical(torch.randn(6)), Categorical(torch.randn(6))
    noise, start = Noise.from_seed(0, rows, torch.device("cpu")), torch.zeros(rows, dtype=torch.long)
    root = Draft.root(start, start)
    drawn = Categorical(q.scores.expand(rows, 1, 6))
    token = drawn.sample(noise.draft_token(root.position(), start))
    draft = root.extend_chain(token, torch.ones(rows, dtype=torch.long), drawn)
    scored = Scored(Categorical(p.scores.expand(rows, 2, 6)))
    for k in (1, 2, 6):
        verdict = Interleaved(k)(draft, scored, noise)
        assert verdict.count.eq(1).all()
        assert verdict.accepted.eq(0).all()  # what is kept is the pending token
        value = verdict.values[:, 0]
        found = torch.bincount(value, minlength=6) / rows
        expected = Interleaved(k).output_distribution(p, q).probs()
        assert (found - expected).abs().sum() < 0.03
        assert (found - p.probs()).abs().sum() > 0.1
        inside = torch.isin(token[:, 0], p.scores.topk(k).indices)
        assert torch.equal(value[inside], token[inside, 0])
        assert torch.equal(verdict.pending.nodes[:, 0], value)
    assert torch.equal(Interleaved(6)(draft, scored, noise).values[:, 0], token[:, 0])


def written_by(source, big, model, written, turn=0, rows=6):
    return TrainingText(big, *written, 4, source).draw(model, turn, rows)


def continued(model, window):
    """What a model writes greedily after the prompts of a window."""
    prompts = [ids[~own][: int(own.long().argmax())] for ids, own in zip(window.ids, window.own, strict=True)]
    return [greedy(model, {"input_ids": prompt[None], "attention_mask": torch.ones_like(prompt)[None]}, new=NEW)[0] for prompt in prompts]


@pytest.mark.parametrize("length", [1, 3, 5])
def test_who_writes_what(big, small, written, length):
    """At next to no temperature a model draws its likeliest token. Every token passes at rank 50, and the target's own at rank 1."""
    common = {"share": 1.0, "new": NEW, "temperature": 1e-3, "draft_length": length}
    for source, writer in (
        (TextSource(kind="on-policy", **common), small),
        (TextSource(kind="speculative", k=50, **common), small),
        (TextSource(kind="speculative", k=1, **common), big),
    ):
        window = written_by(source, big, small, written)
        mine = [ids[own].tolist() for ids, own in zip(window.ids, window.own, strict=True)]
        for found, expected in zip(mine, continued(writer, window), strict=True):
            assert found[:-1] == list(expected)[: len(found) - 1], source  # a row's last token is the target's
    assert not small.training


def real(window):
    """The ids of every window up to its last own one."""
    return [ids[: int(own.nonzero()[-1]) + 1].tolist() for ids, own in zip(window.ids, window.own, strict=True)]


def test_windows_are_those_of_their_turn_and_held_out_ones_are_never_drawn(big, small, written):
    ids, own = written
    text = TrainingText(big, ids, own, 4, TextSource(kind="on-policy", share=0.5, new=3))
    kinds = set()
    for turn in range(12):
        window, again = text.draw(small, turn, 5), text.draw(small, turn, 5)
        assert torch.equal(window.ids, again.ids)
        assert torch.equal(window.own, again.own)
        kinds.add(window.states is None)
        prompts = {tuple(row[:8]) for row in window.ids.tolist()}
        assert not prompts & {tuple(row[:8]) for row in ids[:4].tolist()}
        assert prompts <= {tuple(row[:8]) for row in ids[4:].tolist()}
    assert kinds == {True, False}
    for turn in (0, 3, 5):
        whole, shares = text.draw(small, turn, 5), [text.draw(small, 3 * turn + part, 5, processes=3) for part in range(3)]
        assert sorted(map(tuple, real(whole))) == sorted(tuple(row) for share in shares for row in real(share))
        assert [len(share.ids) for share in shares] == [2, 2, 1]
    with pytest.raises(ValueError, match="rows is 2 for 3 processes: give every process a window"):
        text.draw(small, 0, 2, processes=3)
    off = TrainingText(big, ids, own, 4, TextSource())
    assert all(off.draw(small, turn, 5).states is not None for turn in range(12))
    assert [len(window.ids) for window in off.held_out()] == [4]
    assert counted_ids(ids, own, 50).sum() == own.sum()


def test_states_are_kept_where_they_fit_and_change_nothing(big, small, written, monkeypatch):
    kept = TrainingText(big, *written, 4, TextSource())
    monkeypatch.setattr(texts, "KEPT_STATES", 10)
    again = TrainingText(big, *written, 4, TextSource())
    assert again.states is None
    example = SmallModelLoss(small, big, {"kl": 1.0})
    assert torch.allclose(example(kept.draw(small, 0, 4)), example(again.draw(small, 0, 4)), rtol=1e-5)
    assert kept.acceptance(example)[0] == pytest.approx(again.acceptance(example)[0], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "change"),
    [("unknown text 'offpolicy'", {"kind": "offpolicy"}), ("share is 0", {"share": 0}), ("share is 2", {"share": 2}), ("k is 0", {"k": 0})],
)
def test_settings_that_mean_nothing_are_refused(words, change):
    with pytest.raises(ValueError, match=words):
        TextSource(**change)


def test_windows_that_leave_nothing_to_train_on_are_refused(big, written):
    for held in (0, 24):
        with pytest.raises(ValueError, match=f"{held} of 24 windows are held out"):
            TrainingText(big, *written, held, TextSource())


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini_text():
    """Mini text's target, and windows of 40 tokens that it wrote after its example prompts, greedily and sampled."""
    mini = mmspec.load("text")
    prompts = [ids[mask.bool()][:16] for ids, mask in zip(mini.examples["input_ids"], mini.examples["attention_mask"], strict=True)]
    parts = []
    for temperature in (0.0, 1.0):
        out = mmspec.text.generate(
            mini.target, texts._padded_prompts(prompts, mini.target.device), max_new_tokens=40, temperature=temperature
        )
        parts.append(texts._behind(prompts, out.tokens, [40] * len(prompts)))
    ids, own = (torch.cat(each) for each in zip(*((part.ids, part.own) for part in parts), strict=True))
    return mini.target.requires_grad_(False), (ids, own)


def trained(big, written, kind, folder, steps=18, loss="kl"):
    torch.manual_seed(0)
    model = small_model(big, layers=1)
    text = TrainingText(big, *written, 4, TextSource(kind=kind, share=0.5, new=6, k=5))
    example = SmallModelLoss(model, big, {loss: 1.0})
    (before,) = text.acceptance(example)

    fit(
        example,
        lambda module, turn: module(text.draw(model, turn, 8)),
        Fit(steps=steps, lr=3e-3, warmup=2, checkpoint_every=steps // 3),
        folder / f"{kind}.pt",
    )
    return model, before, text.acceptance(example)[0]


@pytest.mark.parametrize(("kind", "loss"), [("off-policy", "kl"), ("on-policy", "jsd"), ("speculative", "reverse-kl")])
def test_training_raises_held_out_acceptance(mini_text, kind, loss, tmp_path):
    model, before, after = trained(*mini_text, kind, tmp_path, loss=loss)
    assert after[0] > before[0] + 0.05
    assert not model.training


def test_killed_and_resumed_training_ends_with_the_same_weights(big, written, tmp_path, monkeypatch):
    def killed(path, identity, step, *state):
        save(path, identity, step, *state)
        raise KeyboardInterrupt

    whole, _, _ = trained(big, written, "on-policy", tmp_path, steps=9)
    cut = tmp_path / "cut"
    cut.mkdir()
    save = loop._save
    monkeypatch.setattr(loop, "_save", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(big, written, "on-policy", cut, steps=9)
    monkeypatch.setattr(loop, "_save", save)
    assert torch.load(cut / "on-policy.pt")["step"] == 6
    again, _, _ = trained(big, written, "on-policy", cut, steps=9)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


# --- the folder -------------------------------------------------------------------------------------------------------

SETTINGS = {"model": "some/big", "command": "python text/distil_model.py --model some/big"}
NOTED = [{"step": 100, "acceptance": 0.5, "agreement": 0.6}]


def test_a_saved_model_drafts_in_transformers_and_here_and_the_text_is_the_targets(tmp_path):
    mini = mmspec.load("text")
    model = small_model(mini.target, layers=2)
    save_small_model(model, mini.processor, tmp_path / "out", SETTINGS, NOTED)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.get_vocab() == mini.processor.get_vocab()
    inputs = {"input_ids": mini.examples["input_ids"][:1], "attention_mask": mini.examples["attention_mask"][:1]}
    plain = mini.target.generate(**inputs, do_sample=False, max_new_tokens=24)
    assisted = mini.target.generate(**inputs, assistant_model=loaded, do_sample=False, max_new_tokens=24)
    assert torch.equal(assisted, plain)
    out = mmspec.text.generate(mini.target, inputs, loaded, max_new_tokens=24, draft_length=4)
    assert torch.equal(out.tokens[0, : out.lengths[0]], plain[0, inputs["input_ids"].shape[1] :][: out.lengths[0]])
    assert out.stats.accepted > 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert SETTINGS["command"] in card
    assert "| 100 | 0.500 | 0.600 |" in card
    save_small_model(model, mini.processor, tmp_path / "out", SETTINGS, NOTED)  # one of its own is replaced


def test_a_model_with_nan_is_not_saved_and_no_other_folder_is_replaced(big, small, tmp_path):
    tokenizer = mmspec.load("text").processor
    broken = copy.deepcopy(small)
    broken.model.layers[0].mlp.up_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj\.weight of the small model holds NaN"):
        save_small_model(broken, tokenizer, tmp_path / "out", SETTINGS, NOTED)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds no distilled model"):
        save_small_model(small, tokenizer, tmp_path / "mine", SETTINGS, NOTED)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_a_run_of_other_settings_is_not_continued(tmp_path):
    claim_work(tmp_path, {"loss": {"kl": 1.0}, "path": None})
    claim_work(tmp_path, {"loss": {"kl": 1.0}, "path": None})
    with pytest.raises(ValueError, match=r"holds a run with loss \{'kl': 1.0\}, not \{'tv': 1.0\}"):
        claim_work(tmp_path, {"loss": {"tv": 1.0}, "path": None})


def test_figures_of_a_step_noted_twice_count_once(tmp_path):
    path = tmp_path / "a.jsonl"
    assert noted_acceptance(path) == []
    for step, taken in ((100, 0.1), (200, 0.2), (100, 0.3)):
        said = note_acceptance(path, step, [(taken, 0.9)])
    assert said == "step 100: held-out acceptance 0.300, greedy agreement 0.900"
    assert [(line["step"], line["acceptance"]) for line in noted_acceptance(path)] == [(100, 0.3), (200, 0.2)]


# --- the recipe -------------------------------------------------------------------------------------------------------


def test_the_recipe_writes_a_drafter_resumes_and_refuses(tmp_path, monkeypatch, capsys):
    def recipe(*arguments):
        return Started(ROOT / "text" / "distil_model.py", *arguments, cwd=tmp_path, folder=tmp_path).finish(timeout=120)

    smoke = ("--smoke", "--text", "speculative", "--rank", "5", "--work", "work")
    done = recipe(*smoke)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 2: held-out acceptance" in done.stdout
    facts = json.loads((tmp_path / "work" / "model" / "distillation.json").read_text())
    assert [line["step"] for line in facts["acceptance"]] == [1, 2]
    weights = (tmp_path / "work" / "model" / "model.safetensors").read_bytes()
    (command,) = re.findall("Recipe: `(.+)`", (tmp_path / "work" / "model" / "README.md").read_text())
    python, name, *options = shlex.split(command)
    assert (python, name) == ("python", "text/distil_model.py")
    assert recipe(*options, "--work", "same").returncode == 0
    assert (tmp_path / "same" / "model" / "model.safetensors").read_bytes() == weights
    again = recipe(*smoke)
    assert again.returncode == 0
    assert "step 2" not in again.stdout  # nothing was left to do
    assert (tmp_path / "work" / "model" / "model.safetensors").read_bytes() == weights
    monkeypatch.chdir(tmp_path)
    for words, arguments in (
        ("holds a run with rank 5, not 6", ("--smoke", "--text", "speculative", "--rank", "6", "--work", "work")),
        ("--rank is not read with --text on-policy", ("--smoke", "--text", "on-policy", "--rank", "6")),
        ("--share is not read with --text off-policy", ("--smoke", "--share", "0.5")),
        ("unknown loss 'kll'", ("--smoke", "--loss", "kll")),
        ("holds no distilled model", ("--smoke", "--out", str(ROOT / "text"))),
    ):
        monkeypatch.setattr(sys, "argv", ["text/distil_model.py", *arguments])
        with pytest.raises(SystemExit) as refused:
            runpy.run_path(str(ROOT / "text" / "distil_model.py"), run_name="__main__")
        assert refused.value.code == 2, words
        assert words in capsys.readouterr().err.splitlines()[-1]
