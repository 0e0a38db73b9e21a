"""Speech recognisers: assistants of every kind draft losslessly, sound is encoded once, and none of them is deaf."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.vocabulary import Overlap
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.drafters.views.base import own_encoder, own_opening, same_prompt, shared_encoder, shared_modalities, text_alone, view_of
from mmspec.loading.hearing import hear
from mmspec.loading.text import Pair
from mmspec.loading.transformers import load_model
from mmspec.models.compat.compiler import reset_compiler
from mmspec.models.families.multimodal import HEARING, Multimodal
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config
from mmspec.run.settings.processors import constraints
from mmspec.text import aligned_drafter
from tests.companions import Seen, counted, llama, perturbed
from tests.families import AUDIO, FAMILIES, SOUND, VOCAB, Case, build, inputs_for

TOKENS = 20


# --- Whisper and its assistants ---------------------------------------------------------------------------------------


def whisper():
    return build(FAMILIES["Whisper"])


def alone(target, by: float = 0.0, **sizes):
    """A decoder without an encoder, the target's own weights but for noise."""
    config = copy.deepcopy(target.config)
    for name, value in sizes.items():
        setattr(config, name, value)
    decoder = hf.WhisperForCausalLM(config).eval()
    if not sizes:
        decoder.model.decoder.load_state_dict(target.model.decoder.state_dict())
        decoder.proj_out.load_state_dict(target.proj_out.state_dict())
    return perturbed(decoder, by) if by else decoder


def distilled(target):
    """A whole model around a copy of the target's encoder, its decoder another."""
    model = copy.deepcopy(target)
    perturbed(model.model.decoder)
    return model


def small_whisper(target):
    config = copy.deepcopy(target.config)
    config.encoder_layers, config.d_model, config.decoder_layers = 1, 16, 1
    return build(Case(lambda: hf.WhisperForConditionalGeneration(config), ""), seed=3)


def spelt(ids):
    """A tokenizer of words w0, w1, ... numbered in the given order."""
    words = {f"w{word}": place for place, word in enumerate(ids)}
    return hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), unk_token="w0")


ASSISTANTS = {  # how to make one, and how often its own encoder runs
    "a decoder alone": (lambda target: alone(target, 0.05), 0),
    "the same encoder": (distilled, 0),
    "its own encoder": (small_whisper, 1),
    "text only": (lambda target: llama(), 0),
}


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_assistants_give_the_tokens_of_generate_and_encoders_run_once(kind):
    target = whisper()
    make, own = ASSISTANTS[kind]
    drafter = make(target)
    encoders = [target.get_encoder()] + ([drafter.get_encoder()] if hasattr(drafter.model, "encoder") else [])
    for rows in (1, 3):
        inputs = inputs_for("Whisper", rows)
        expected = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
        for options in ({"draft_length": 4}, {"draft_length": 2, "tree": (3, 2)}):  # under "auto" an encoder runs where it is to pay
            with counted(*encoders) as runs:
                out = mmspec.text.generate(target, inputs, drafter=drafter, max_new_tokens=TOKENS, **options)
            assert runs == [1, own][: len(runs)], f"{rows} rows, {options}"
            assert torch.equal(out.sequences[:, : expected.shape[1]], expected), f"{rows} rows, {options}"


def test_rows_of_a_batch_end_on_their_own():
    target = whisper()
    inputs = inputs_for("Whisper", 3)
    target.generation_config.eos_token_id = int(mmspec.text.generate(target, inputs, max_new_tokens=TOKENS).sequences[1, 6])
    whole = mmspec.text.generate(target, inputs, drafter=alone(target, 0.05), draft_length=4, max_new_tokens=TOKENS)
    assert len(set(whole.lengths.tolist())) > 1
    for row in range(3):
        one = mmspec.text.generate(target, {"input_features": inputs["input_features"][row : row + 1]}, max_new_tokens=TOKENS)
        assert torch.equal(whole.sequences[row, : whole.lengths[row]], one.sequences[0])


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_coupled_sampling_with_assistants_equals_plain_sampling(kind):
    target, inputs = whisper(), inputs_for("Whisper", 3)
    drafter = ASSISTANTS[kind][0](target)
    settings = {"max_new_tokens": TOKENS, "temperature": 1.0, "seed": 4}
    plain = mmspec.text.generate(target, inputs, **settings)
    for options in ({"draft_length": 4}, {"tree": (3, 2)}):
        out = mmspec.text.generate(target, inputs, drafter=drafter, **settings, **options)
        assert torch.equal(out.sequences, plain.sequences), options


def test_the_targets_own_decoder_accepts_everything_unless_it_is_deaf():
    target, inputs = whisper(), inputs_for("Whisper", 3)
    target.generation_config.eos_token_id = None
    decoder = alone(target)
    decoder.generation_config.decoder_start_token_id = 9  # an opening of its own does not matter
    for temperature in (0.0, 1.0):
        out = mmspec.text.generate(target, inputs, drafter=decoder, draft_length=4, max_new_tokens=20, temperature=temperature)
        assert out.stats.tokens_per_call == 5.0

    def deaf(prompt, session):
        return {**own_encoder(prompt, session), "encoder_outputs": (torch.zeros_like(session.state.outputs[0]),)}

    plain = mmspec.text.generate(target, inputs, max_new_tokens=20)
    distributions = Pipeline(constraints(target.generation_config, 1, 20))
    for view, heard in ((shared_encoder, True), (deaf, False)):
        drafter = ModelDrafter(HFTarget(decoder, family_of(decoder), distributions), Chain(most_likely), view)
        out = mmspec.text.generate(target, inputs, drafter=drafter, draft_length=4, max_new_tokens=20)
        assert torch.equal(out.sequences, plain.sequences)
        assert (out.stats.tokens_per_call > 4) == heard


@pytest.mark.parametrize("kind", ["a decoder alone", "the same encoder", "its own encoder"])
def test_what_may_not_begin_a_text_stays_banned_in_p_and_q(kind):
    target, inputs = whisper(), inputs_for("Whisper", 3)
    target.generation_config.begin_suppress_tokens = None
    best_begin = mmspec.text.generate(target, inputs, max_new_tokens=1).sequences[:, 0].tolist()
    target.generation_config.begin_suppress_tokens = best_begin
    drafter = ASSISTANTS[kind][0](target)
    expected = target.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    out = mmspec.text.generate(target, inputs, drafter=drafter, draft_length=4, max_new_tokens=TOKENS)
    assert torch.equal(out.sequences[:, : expected.shape[1]], expected)
    assert not set(best_begin) & set(out.sequences[:, 0].tolist())
    rule = Seen()
    rule.rounds.clear()
    mmspec.text.generate(target, inputs, drafter=drafter, accept=rule, temperature=1.0, draft_length=4, max_new_tokens=TOKENS)
    draft, p = rule.rounds[0]
    assert torch.isneginf(p.scores[:, 0][:, best_begin]).all()
    assert torch.isneginf(draft.q.scores[:, 0][:, best_begin]).all()
    assert torch.isfinite(p.scores[:, 1][:, best_begin]).all()  # only the first
    assert all(
        torch.isneginf(distribution.scores[..., [0, 5, 6]]).all()
        for draft, p in rule.rounds
        for distribution in (p, draft.q)
        if distribution is not None
    )


def test_encoders_are_shared_by_their_weights_and_not_by_their_sizes():
    target = whisper()
    mine = HFTarget(target, family_of(target))
    other = build(FAMILIES["Whisper"], seed=8)
    assert view_of(mine, distilled(target)) is shared_encoder
    assert view_of(mine, target) is shared_encoder
    assert view_of(mine, other) is own_encoder
    assert view_of(mine, alone(target)) is shared_encoder


@pytest.mark.parametrize("multilingual", [True, False])
def test_a_drafter_of_english_alone_keeps_its_own_opening_and_both_encoders_run_once(multilingual):
    """tiny.en for base: other ids, and a decoder prompt without the tokens of language and task that the drafter never read."""
    target, drafter = whisper(), small_whisper(whisper())
    ours, theirs = spelt(range(VOCAB)), spelt(reversed(range(VOCAB)))
    drafter.generation_config.is_multilingual = multilingual
    opening, inputs = torch.tensor([[3, 40, 44, 49]]), inputs_for("Whisper", 1)
    mine, read = HFTarget(target, family_of(target)), []
    session, _ = mine.begin(inputs | {"decoder_input_ids": opening})
    view = view_of(mine, drafter, translated=True)
    assert view is (own_encoder if multilingual else own_opening)
    assert ("decoder_input_ids" in view(inputs | {"decoder_input_ids": opening}, session)) == multilingual
    made = aligned_drafter(target, ours, drafter, theirs)
    expected = target.generate(**inputs, decoder_input_ids=opening, do_sample=False, max_new_tokens=TOKENS)
    with counted(target.get_encoder(), drafter.get_encoder()) as runs:
        for length in (1, 4):
            out = mmspec.text.generate(
                target, inputs | {"decoder_input_ids": opening}, drafter=made, draft_length=length, max_new_tokens=TOKENS
            )
            read.append(out.tokens[0, : out.lengths[0]].tolist())
    assert runs == [2, 2]
    assert all(expected[0, -len(tokens) :].tolist() == tokens for tokens in read)


def test_a_token_that_a_drafter_lacks_is_read_as_its_longest_known_beginning():
    ours = WordLevel({"<e>": 0, "ab": 1, "abc": 2, "abcd": 3, "x": 4, "<|l|>": 5}, unk_token="<e>")
    target = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(ours), eos_token="<e>", additional_special_tokens=["<|l|>"])
    for unknown, read in (("<e>", [2, 3, 3, 3, 2, 2]), ("?", [2, 3, 0, 0, 0, 0])):
        theirs = WordLevel({"?": 0, "a": 1, "<e>": 2, "ab": 3, "<": 4}, unk_token=unknown)
        drafter = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(theirs), eos_token="<e>", unk_token=unknown)
        overlap = Overlap.of_tokenizers(target, drafter, 6)
        assert overlap.to_drafter.tolist() == read
        assert overlap.to_target.tolist() == [0, 1]
        assert overlap.shared.tolist() == [2, 3]


def test_a_decoder_alone_is_refused_where_nobody_encodes_for_it():
    target = whisper()
    cases = {
        "has no encoder of its own": (alone(target), inputs_for("Whisper", 1), None),
        "distilled from this target": (target, inputs_for("Whisper", 1), alone(target, encoder_layers=1)),
        "let it draft for a Whisper": (llama(), inputs_for("Llama", 1), alone(target)),
    }
    for words, (model, inputs, drafter) in cases.items():
        with pytest.raises(ValueError, match=words) as caught:
            mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=4)
        assert "\n" not in str(caught.value)


# --- speech language models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOUND)
def test_chunks_and_steps_give_the_logits_of_the_models_own_forward(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    target = HFTarget(model, family_of(model))
    new = torch.randint(3, AUDIO, (3, 4))
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(new)], 1)
    whole = inputs | {"input_ids": torch.cat([inputs["input_ids"], new], 1), "attention_mask": mask}
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = model(**whole, position_ids=places).logits[:, -5:]
    session, pending = target.begin(inputs)
    chunk = session.score(pending.extend_chain(new, torch.full((3,), 4))).p.scores
    assert (chunk - expected).abs().max() <= 1e-4
    session, draft = target.begin(inputs)
    steps = [session.score(draft).p.scores]
    for column in range(4):
        draft = draft.extend_chain(new[:, column : column + 1], torch.full((3,), 4))
        steps.append(session.score(draft).p.scores)
    assert (torch.cat(steps, 1) - chunk).abs().max() <= 1e-4


def drafters_of(name, model):
    """Drafters for a speech language model, and how often the ears of each run besides the target's."""
    return {
        "itself": (model, 0),
        "another that hears": (perturbed(copy.deepcopy(model)), 1),
        "text only": (llama(), 0),
        "text only, without the placeholder": (llama(vocab_size=VOCAB - 1), 0),
        "itself run short": (EarlyExit(1), 0),
        "lookup": ("lookup", 0),
    }


@pytest.mark.parametrize("name", ["Qwen2-Audio", "Voxtral"])
def test_drafters_give_the_tokens_of_plain_decoding_and_ears_run_once(name):
    model, asked, sampled = build(FAMILIES[name]), {"max_new_tokens": 12}, {"temperature": 1.0, "seed": 4}
    given = {rows: inputs_for(name, rows) for rows in (1, 3)}
    expected = {rows: model.generate(**inputs, do_sample=False, suppress_tokens=[AUDIO], **asked) for rows, inputs in given.items()}
    plain = mmspec.text.generate(model, given[3], **asked, **sampled)
    for kind, (drafter, own) in drafters_of(name, model).items():
        ears = [model.model.audio_tower] + ([drafter.model.audio_tower] if own else [])
        for rows, inputs in given.items():
            with counted(*ears) as runs:
                out = mmspec.text.generate(model, inputs, drafter=drafter, draft_length=4, **asked)
            assert runs == [1, own][: len(runs)], f"{kind}, {rows} rows"
            assert torch.equal(out.sequences, expected[rows][:, inputs["input_ids"].shape[1] :]), f"{kind}, {rows} rows"
        out = mmspec.text.generate(model, given[3], drafter=drafter, draft_length=4, **asked, **sampled)
        assert torch.equal(out.sequences, plain.sequences), kind


@pytest.mark.parametrize("name", ["Qwen2-Audio", "Voxtral"])
def test_the_scoring_step_traces_whole(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    model.generation_config.eos_token_id = None
    expected = mmspec.text.generate(model, inputs, max_new_tokens=12)
    reset_compiler()
    distributions = Pipeline(constraints(model.generation_config, 0, 12, [AUDIO]))
    own = HFTarget(model, family_of(model), distributions)
    drafter, stopping = ModelDrafter(own, Chain(most_likely), shared_modalities), DefaultStopping(3, 12)
    torch._dynamo.utils.counters.clear()
    target = own.capture(100, backend="eager", mode=None)
    list(decode(target, drafter, Greedy(), inputs, stopping=stopping, noise=Noise.from_seed(0, 3), control=Fixed(3)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert stopping.outputs == expected.sequences.tolist()


@pytest.mark.parametrize("name", ["Qwen2-Audio", "Voxtral"])
def test_a_deaf_drafter_is_caught_by_what_it_gets_accepted(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    model.generation_config.eos_token_id = None
    plain = mmspec.text.generate(model, inputs, max_new_tokens=20)
    own = HFTarget(model, family_of(model), Pipeline(constraints(model.generation_config, 0, 20, [AUDIO])))

    def raw(prompt, session):  # placeholders go in as words: nothing fails, and nothing is heard
        embeds = model.get_input_embeddings()(prompt["input_ids"])
        order = torch.argsort(1 - prompt["attention_mask"], dim=1, stable=True)
        return {**prompt, "merged": replace(session.state, embeds=embeds.gather(1, order[..., None].expand_as(embeds)))}

    found = {}
    for view in (shared_modalities, same_prompt, text_alone, raw):
        out = mmspec.text.generate(model, inputs, drafter=ModelDrafter(own, Chain(most_likely), view), draft_length=4, max_new_tokens=20)
        assert torch.equal(out.sequences, plain.sequences)
        found[view.__name__] = out.stats.tokens_per_call
    assert found["shared_modalities"] == found["same_prompt"] == 5.0
    assert max(found["text_alone"], found["raw"]) < 4


def test_text_only_drafters_read_the_words_and_no_placeholder():
    model, inputs = build(FAMILIES["Qwen2-Audio"]), inputs_for("Qwen2-Audio", 3)
    session, _ = HFTarget(model, family_of(model)).begin(inputs)
    seen = text_alone(inputs, session)
    words = [row[row_mask.bool()].tolist() for row, row_mask in zip(seen["input_ids"], seen["attention_mask"], strict=True)]
    assert words == [[i for i in row.tolist() if i not in (0, AUDIO)] for row in inputs["input_ids"]]
    only_sound = {"input_ids": torch.full((1, 5), AUDIO), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    assert text_alone(only_sound, session)["attention_mask"].tolist() == [[0, 0, 0, 0, 1]]  # a session begins behind something
    sound = {key: value[:1] for key, value in inputs.items() if "feature" in key}
    expected = mmspec.text.generate(model, only_sound | sound, max_new_tokens=8).sequences
    for drafter in (llama(), llama(vocab_size=VOCAB - 1)):
        out = mmspec.text.generate(model, only_sound | sound, drafter=drafter, draft_length=3, max_new_tokens=8)
        assert torch.equal(out.sequences, expected)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_placeholder_is_never_written(sampled):
    model, inputs = build(FAMILIES["Voxtral"]), inputs_for("Voxtral", 3)
    model.lm_head.weight.data[AUDIO] *= 8  # now it would be, often
    raw = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    assert (raw[:, inputs["input_ids"].shape[1] :] == AUDIO).any()
    rule = Seen() if sampled else "exact"
    Seen.rounds.clear()
    for drafter in (model, llama()):
        out = mmspec.text.generate(
            model, inputs, drafter=drafter, accept=rule, temperature=float(sampled), draft_length=4, max_new_tokens=TOKENS
        )
        assert not (out.sequences == AUDIO).any()
        for draft, p in Seen.rounds:
            assert torch.isneginf(p.scores[..., AUDIO]).all()
            assert draft.q is None or torch.isneginf(draft.q.scores[..., AUDIO]).all()


def test_prompts_without_sound_are_ordinary_prompts():
    model, inputs = build(FAMILIES["Qwen2-Audio"]), inputs_for("Llama", 3)
    inputs["input_ids"] = inputs["input_ids"].clamp(max=AUDIO - 1)
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, suppress_tokens=[AUDIO])[:, 12:]
    out = mmspec.text.generate(model, inputs, drafter=llama(), draft_length=4, max_new_tokens=TOKENS)
    assert torch.equal(out.sequences, expected)


@pytest.mark.parametrize("name", SOUND)
def test_sound_that_does_not_fit_its_prompt_is_refused_in_one_line(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 1)
    words = inputs["input_ids"].clone()
    words[words == AUDIO] = 7
    short = words.clone()
    short[:, 2:6] = AUDIO
    cases = {
        "no input_features": {k: v for k, v in inputs.items() if k != "input_features"},
        "no placeholder": inputs | {"input_ids": words},
        "do not fit together": inputs | {"input_ids": short},
    }
    if SOUND[name][1] is not None:
        cases[f"no {SOUND[name][1]}"] = {k: v for k, v in inputs.items() if k != SOUND[name][1]}
    for match, given in cases.items():
        with pytest.raises(ValueError, match=match) as caught:
            mmspec.text.generate(model, given, max_new_tokens=4)
        assert "\n" not in str(caught.value)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_placeholder_for_a_whole_clip_asks_to_be_repeated():
    model, inputs = build(FAMILIES["Qwen2-Audio"]), inputs_for("Qwen2-Audio", 1)
    given = inputs | {"input_ids": torch.tensor([[5, AUDIO, 6, 7]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    with pytest.raises(ValueError, match="repeat the placeholder"):
        mmspec.text.generate(model, given, max_new_tokens=4)
    assert isinstance(family_of(model), Multimodal)
    assert family_of(model).modality is HEARING


def test_checkpoints_load_as_what_they_are(tmp_path):
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0, "one": 1}, unk_token="?")), unk_token="?")
    for name in SOUND:
        model, inputs = build(FAMILIES[name]), inputs_for(name, 1)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        loaded, _ = load_model(str(tmp_path / name), "float32", "cpu")
        assert type(loaded) is type(model)
        expected, found = (mmspec.text.generate(m, inputs, max_new_tokens=6).sequences for m in (model, loaded))
        assert torch.equal(found, expected)
    pair = Pair("talker", loaded, tokenizer, None, "none", "exact", Config())
    with pytest.raises(ValueError, match="hears within a prompt"):
        hear(pair, "talk.wav")
    decoder = alone(whisper(), 0.05)
    decoder.save_pretrained(tmp_path / "alone")
    tokenizer.save_pretrained(tmp_path / "alone")
    assert isinstance(load_model(str(tmp_path / "alone"), "float32", "cpu")[0], hf.WhisperForCausalLM)
