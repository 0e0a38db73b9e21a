"""Whisper's prompt and grammar: languages detected row by row, tasks, forced ids, timestamps, windows, drafters of other sizes."""

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

import mmspec
from mmspec.core.processors.history import History
from mmspec.models.families.registry import family_of
from mmspec.models.families.whisper import Timestamps
from tests.companions import counted, perturbed
from tests.families import FAMILIES, SEQ2SEQ, VOCAB, Case, build

TOKENS = 20
LANGUAGES = {"<|en|>": 40, "<|de|>": 41, "<|fr|>": 42, "<|es|>": 43}
SILENT = 49  # <|notimestamps|>; timestamps are the ids behind it


def multilingual(**settings):
    """A Whisper whose generation config is that of a published multilingual checkpoint; each row of `inputs()` has its own language."""
    model = build(FAMILIES["Whisper"])
    config = model.generation_config
    config.lang_to_id, config.task_to_id = dict(LANGUAGES), {"transcribe": 44, "translate": 45}
    config.no_timestamps_token_id, config.is_multilingual = SILENT, True
    config.suppress_tokens = [0, 5, 6, *LANGUAGES.values()]
    if not settings.get("return_timestamps"):  # else generate cuts its output at them and decodes what follows anew
        config.suppress_tokens = [*config.suppress_tokens, *range(SILENT + 1, VOCAB)]
    model.proj_out.weight.data[40:44] = torch.randn(4, 32, generator=torch.Generator().manual_seed(1)) * 3
    for name, value in settings.items():
        setattr(config, name, value)
    return model


def inputs(rows: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {"input_features": 6 * torch.randn(rows, 16, 1) + torch.randn(rows, 16, 100)}


def alone(given, row):
    return {key: value[row : row + 1] for key, value in given.items()}


def drafters(model) -> Iterator[tuple[str, object, dict]]:
    yield "plain", None, {}
    other = perturbed(copy.deepcopy(model))
    yield "a chain", other, {"draft_length": 4}
    yield "a tree", other, {"tree": (3, 2)}
    yield "a comb", other, {"tree": "comb"}
    yield "lookup", "lookup", {"draft_length": 3}


def same_as_generate(model, given, **plain):
    """Every way of drafting gives what the model's own generate gives, in batches and on each row alone."""
    rows = len(next(iter(given.values())))
    expected = [model.generate(**alone(given, row), max_new_tokens=TOKENS, **plain)[0] for row in range(rows)]
    for words, drafter, options in drafters(model):
        out = mmspec.text.generate(model, given, drafter=drafter, max_new_tokens=TOKENS, **options)
        one = mmspec.text.generate(model, alone(given, 1), drafter=drafter, max_new_tokens=TOKENS, **options)
        for row, said in enumerate(expected):
            assert out.sequences[row, : len(said)].tolist() == said.tolist(), (words, row)
        assert torch.equal(one.sequences[0], out.sequences[1, : one.sequences.shape[1]]), words
    return expected


SETTINGS = {
    "detected": {},
    "detected, to be translated": {"task": "translate"},
    "a language": {"language": "de"},
    "a language by its name": {"language": "French"},
    "a language by its token, translated": {"language": "<|es|>", "task": "translate"},
    "a language each": {"language": ["de", "fr", "es"]},
    "forced ids of an old config": {"forced_decoder_ids": [[1, 41], [2, 45], [3, SILENT]]},
    "forced ids that leave the language open": {"forced_decoder_ids": [[1, None], [2, 44]]},
    "a language goes before forced ids": {"language": "en", "forced_decoder_ids": [[1, 41], [2, 45]]},
    "timestamps": {"return_timestamps": True},
    "timestamps of one language": {"return_timestamps": True, "language": "en", "max_initial_timestamp_index": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_prompt_is_the_one_that_transformers_makes(name):
    model, given = multilingual(**SETTINGS[name]), inputs()
    opening, mask = family_of(model).prompt(model, given)
    full = model.generate(**given, max_new_tokens=1, force_unique_generate_call=True, return_dict_in_generate=True)
    assert torch.equal(full.sequences[:, : opening.shape[1]], opening)
    assert full.sequences.shape[1] == opening.shape[1] + 1
    assert mask.all()


@pytest.mark.parametrize("name", [name for name in SETTINGS if "each" not in name and "timestamps" not in name])
def test_tokens_are_those_of_generate(name):
    same_as_generate(multilingual(**SETTINGS[name]), inputs())


def test_rows_of_one_batch_have_languages_of_their_own_and_the_encoder_runs_once():
    model, given = multilingual(), inputs(6)
    opening, _ = family_of(model).prompt(model, given)
    assert len(set(opening[:, 1].tolist())) > 1
    assert set(opening[:, 1].tolist()) <= set(LANGUAGES.values())
    with counted(model.model.encoder) as runs:
        out = mmspec.text.generate(model, given, drafter=model, draft_length=3, max_new_tokens=TOKENS)
    assert runs == [1]
    assert 0 < out.stats.seconds["encode"] <= out.stats.seconds["total"]


def test_an_english_only_checkpoint_is_prompted_as_before():
    model = build(FAMILIES["Whisper"])
    model.generation_config.no_timestamps_token_id, model.generation_config.is_multilingual = SILENT, False
    model.generation_config.forced_decoder_ids = [[1, SILENT]]
    model.generation_config.suppress_tokens = [0, *range(SILENT + 1, VOCAB)]
    assert family_of(model).prompt(model, inputs())[0].tolist() == [[3, SILENT]] * 3
    same_as_generate(model, inputs())


def test_a_prompt_of_the_callers_own_goes_before_everything():
    model, given = multilingual(begin_suppress_tokens=[7, 33]), inputs()
    own = torch.tensor([[8, 9, 10, 3, 41, 44, SILENT]] * 3)
    same_as_generate(model, given | {"decoder_input_ids": own})


# --- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"language": "de", "repetition_penalty": 1.4}])
def test_timestamps_are_written_as_generate_writes_them(settings):
    model, given = multilingual(return_timestamps=True, max_initial_timestamp_index=1, **settings), inputs()
    model.proj_out.weight.data[SILENT + 1 :] *= 2
    said = []
    for row in range(3):
        full = model.generate(**alone(given, row), max_new_tokens=TOKENS, force_unique_generate_call=True, return_dict_in_generate=True)
        said.append(full.sequences[0, family_of(model).prompt(model, given)[0].shape[1] :].tolist())
    assert any(SILENT < token for row in said for token in row[1:])
    for words, drafter, options in drafters(model):
        out = mmspec.text.generate(model, given, drafter=drafter, max_new_tokens=TOKENS, **options)
        for row, length in enumerate(out.lengths.tolist()):
            assert out.sequences[row, :length].tolist() == said[row][:length], (words, row)
            assert length == len(said[row])


@pytest.mark.parametrize("most", [None, 3])
def test_the_grammar_of_timestamps_is_that_of_transformers_at_every_node(most):
    """1,000 random paths, drafted slots out of order included: both give the same scores."""
    config = SimpleNamespace(no_timestamps_token_id=SILENT, eos_token_id=2, bos_token_id=1, max_initial_timestamp_index=most)
    torch.manual_seed(0)
    own, begin = Timestamps.of(config), 3
    for _ in range(1000):
        prompt, outputs, strange = torch.randint(0, VOCAB, (begin,)), torch.randint(0, 8, ()).item(), torch.rand(()) < 0.5
        said = torch.where(torch.rand(outputs) < 0.6, torch.randint(SILENT + 1, VOCAB, (outputs,)), torch.randint(0, SILENT, (outputs,)))
        path = torch.cat([prompt, said if strange else said.sort().values])
        scores = 3 * torch.randn(1, VOCAB)
        expected = WhisperTimeStampLogitsProcessor(config, begin)(path[None], scores)
        slots = torch.randperm(14)[: len(path)].sort().values  # with slots of other branches between
        ids, visible = torch.randint(0, VOCAB, (1, 14)), torch.zeros(1, 1, 14, dtype=torch.bool)
        ids[0, slots], visible[0, 0, slots] = path, True
        found = own(scores[None], History(ids, visible, torch.tensor([[outputs]])))
        assert torch.equal(found[0], expected)


def test_timestamps_without_their_id_are_refused():
    model = multilingual(return_timestamps=True)
    del model.generation_config.no_timestamps_token_id
    with pytest.raises(ValueError, match="no_timestamps_token_id is not set"):
        mmspec.text.generate(model, inputs(), max_new_tokens=4)


# --- windows ----------------------------------------------------------------------------------------------------------


def test_sound_longer_than_a_window_is_refused_and_shorter_is_padded_as_by_generate():
    model, given = multilingual(language="en"), inputs()
    with pytest.raises(ValueError, match="has 101 frames, but WhisperForConditionalGeneration hears 100 at once: cut the sound") as caught:
        mmspec.text.generate(model, {"input_features": torch.randn(1, 16, 101)}, max_new_tokens=4)
    assert "\n" not in str(caught.value)
    same_as_generate(model, {"input_features": given["input_features"][..., :60]})
    with pytest.raises(ValueError, match=r"has shape \[1, 8, 100\]: WhisperForConditionalGeneration takes \[batch, 16, 100\]"):
        mmspec.text.generate(model, {"input_features": torch.randn(1, 8, 100)}, max_new_tokens=4)


def test_a_language_the_model_does_not_have_is_refused_in_one_line():
    for settings, words in (({"language": "xx"}, "xx"), ({"language": "ja"}, "ja"), ({"language": ["en", "de"]}, "Expected length of 3")):
        with pytest.raises(ValueError, match=words) as caught:
            mmspec.text.generate(multilingual(**settings), inputs(), max_new_tokens=4)
        assert "\n" not in str(caught.value)


# --- drafters with encoders of their own ------------------------------------------------------------------------------


def narrower(**changes):
    sizes = {"max_source_positions": 50, "max_target_positions": 64, "num_mel_bins": 16, "decoder_start_token_id": 3}
    config = hf.WhisperConfig(**SEQ2SEQ | {"d_model": 16, "encoder_layers": 1} | sizes | changes, tie_word_embeddings=False)
    return build(Case(lambda: hf.WhisperForConditionalGeneration(config), ""))


def test_a_drafter_of_another_encoder_width_runs_its_own_encoder():
    model, given, small = multilingual(), inputs(), narrower()
    expected = model.generate(**given, max_new_tokens=TOKENS)
    for call in (
        lambda: mmspec.text.generate(model, given, drafter=small, draft_length=3, max_new_tokens=TOKENS).sequences,
        lambda: model.generate(**given, max_new_tokens=TOKENS, custom_generate=mmspec.text.speculate(small, draft_length=3)),
    ):
        with counted(model.model.encoder, small.model.encoder) as runs:
            found = call()
        assert runs[1] == 1
        assert torch.equal(found[:, : expected.shape[1]], expected)


def test_a_drafter_that_hears_other_features_is_refused_in_one_line():
    model, given = multilingual(), inputs()
    for small, words in (
        (narrower(num_mel_bins=8), "16 mel bins and the drafter's 8"),
        (narrower(max_source_positions=20), "50 positions"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            mmspec.text.generate(model, given, drafter=small, max_new_tokens=4)
        assert "\n" not in str(caught.value)
    states = model.get_encoder()(given["input_features"])
    with pytest.raises(ValueError, match="encoder_outputs has width 32, but WhisperForConditionalGeneration reads 16"):
        mmspec.text.generate(model, {"encoder_outputs": states}, drafter=narrower(), draft_length=3, max_new_tokens=4)
