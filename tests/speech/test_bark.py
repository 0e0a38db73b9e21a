"""Bark: both stages are the class's own, token by token, alone and in a batch; sampled sound is the same however it is drafted."""

import pytest
import torch

from mmspec.speech import synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.families.bark import Bark, StagedRequest
from tests.speech.small_bark import BOOK, SEMANTIC, bark, tokenizer, voice

TEXTS = ["hello", "say it again", "one two three"]
VOICES = {None: None, "ann": voice()}


@pytest.fixture(scope="module")
def made():
    return Bark(bark(), tokenizer(), {"ann": voice()})


def own_ids(speaker, texts):
    rows = [speaker.tokenizer(text)["input_ids"] for text in texts]
    ids = torch.tensor([row + [0] * (16 - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (16 - len(row)) for row in rows])


def semantic_by_the_class(speaker, texts, voice=None, **options):
    ids, mask = own_ids(speaker, texts)
    found = speaker.model.semantic.generate(ids, speaker.first, history_prompt=VOICES[voice], attention_mask=mask, **options)
    return found, [[token for token in row if token != SEMANTIC] for row in found.tolist()]


def coarse_by_the_class(speaker, semantic, voice=None):
    found, lengths = speaker.model.coarse_acoustics.generate(
        semantic.clone(), speaker.first, speaker.second, BOOK, VOICES[voice], return_output_lengths=True
    )
    return [row[:length].tolist() for row, length in zip(found, lengths.tolist(), strict=True)]


def ways(speaker):
    small = Bark(bark(layers=1, seed=1), tokenizer())
    return {
        "plain": (None, "auto", None),
        "lookup": ("lookup", 4, None),
        "smaller": (small, 3, None),
        "itself": (speaker, 3, None),
        "tree": (small, 2, (3, 2)),
        "one each": ({"semantic": small.model.semantic, "coarse": "suffix"}, 3, None),
    }


@pytest.mark.parametrize("name", VOICES)
@pytest.mark.parametrize("rows", [1, 3])
def test_both_stages_are_the_class_own(made, rows, name):
    texts = TEXTS[:rows]
    raw, semantic = semantic_by_the_class(made, texts, name)
    coarse = coarse_by_the_class(made, raw, name)
    assert max(map(len, coarse)) > 3 * 12  # several windows
    prompt = made.encode(texts, [name] * rows)
    for way, (drafter, length, tree) in ways(made).items():
        if rows == 1 and way not in ("plain", "tree"):
            continue
        wanted = StagedRequest(drafter, draft_length=length, tree=tree)
        assert made.semantic(prompt, wanted) == semantic, way
        assert made.coarse(semantic, [name] * rows, wanted) == coarse, way
        if way == "itself":
            assert wanted.stats.accepted == wanted.stats.judged > 0


def test_an_end_that_is_likely_enough_ends(made):
    least = 0.05
    early = Bark(made.model, made.tokenizer, min_eos_p=least)
    _, wanted = semantic_by_the_class(made, TEXTS, min_eos_p=least)
    _, without = semantic_by_the_class(made, TEXTS)
    found = early.semantic(early.encode(TEXTS, [None] * 3), StagedRequest("lookup", draft_length=3))
    assert found == wanted != without


def test_the_wave_is_the_class_own(made):
    ids, mask = own_ids(made, TEXTS[:1])
    model = made.model
    kept = model.generation_config
    model.generation_config = type("Nested", (), {
        "semantic_config": made.first.to_dict(), "coarse_acoustics_config": made.second.to_dict(),
        "fine_acoustics_config": made.third.to_dict(), "codebook_size": BOOK,
    })  # fmt: skip
    try:
        wave = model.generate(ids, attention_mask=mask)
    finally:
        model.generation_config = kept
    out = synthesize(made, TEXTS[:1], "lookup")
    assert out.sample_rate == 8000
    assert torch.equal(out.waveforms[0], wave[0])
    assert len(out.waveforms[0]) == out.lengths[0] // 2 * 8


def test_sampled_sound_is_the_same_however_it_is_drafted(made):
    texts, seeds = [TEXTS[row % 3] for row in range(8)], [3, 8, 5, 1, 4, 2, 9, 6]
    options = {"temperature": 1.0, "top_k": 20, "voice": ["ann"] * 4 + [None] * 4}
    plain = synthesize(made, texts, seed=seeds, **options)
    assert len({tuple(row) for row in plain.tokens.tolist()}) == 8
    for way, (drafter, length, tree) in list(ways(made).items())[1:]:
        for rows in (1, 2, 8) if way == "smaller" else (2,):
            cut = options | {"voice": options["voice"][:rows]}
            out = synthesize(made, texts[:rows], drafter, accept="coupled", seed=seeds[:rows], draft_length=length, tree=tree, **cut)
            assert out.lengths.tolist() == plain.lengths[:rows].tolist(), way
            assert all(torch.equal(a, b) for a, b in zip(out.waveforms, plain.waveforms, strict=False)), way


def test_windows_do_not_repeat_their_noise(made):
    """Every window begins at output position 0: with one seed for all, equal distributions would give equal windows."""
    flat = Bark(bark(), tokenizer())
    for parameter in flat.model.coarse_acoustics.lm_head.parameters():
        parameter.data.zero_()
    ids = flat.coarse([list(range(20))], [None], StagedRequest(sampling={"temperature": 1.0}))[0]
    assert len(ids) == 60
    assert len({tuple(ids[start : start + 12]) for start in range(0, 60, 12)}) == 5


def test_the_model_is_left_as_it_was(made):
    synthesize(made, TEXTS[:1], "lookup", max_seconds=0.1)
    assert all(block.attn.is_causal for block in made.model.semantic.layers)
    assert isinstance(speech_model(made.model, made.tokenizer), Bark)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda it: synthesize(it, ["hello"], voice="eve"), "unknown voice 'eve'; valid: ann"),
        (lambda it: synthesize(it, [""]), "text '' is empty"),
        (lambda it: synthesize(it, "hello"), "give a list with one entry per row"),
        (lambda it: synthesize(it, ["a very long thing to say"]), "is too long: 24 ids where the model takes 16"),
        (lambda it: synthesize(it, ["hello"], guidance=3.0), "leave guidance out"),
        (lambda it: synthesize(it, ["hello"], max_seconds=0), "max_seconds is 0"),
        (lambda it: synthesize(Bark(it.model), ["hello"]), "texts need a tokenizer"),
    ],
)
def test_bad_requests_are_told_in_one_line(made, ask, said):
    with pytest.raises(ValueError) as caught:
        ask(made)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
