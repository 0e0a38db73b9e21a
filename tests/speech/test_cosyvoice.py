"""CosyVoice 2 and 3 in their published layout: the codes of the published loop, its sampler, voices, and sound by the package."""

import pytest
import torch

from mmspec.core.processors.history import History
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.speech import VoiceSample, load, stream, synthesize
from mmspec.speech.language_models.cosyvoice import PREFIX, SAMPLING, CosyVoice
from mmspec.speech.language_models.cosyvoice_sound import CosyVoicePackage
from tests.speech import small_cosyvoice
from tests.speech.small_cosyvoice import CODES, cosyvoice_folder
from tests.speech.test_codec_lm import rows_of

TEXTS = ["hi", "a bit more", "yes"]


@pytest.fixture(scope="module", params=[(2, 7), (2, 0), (3, 0)], ids=["ends", "most", "three"])
def pair(request, tmp_path_factory):
    """(what the weights are of, the loaded model); rows end by themselves, or as late as their texts allow."""
    place = tmp_path_factory.mktemp("cosyvoice")
    published = cosyvoice_folder(place, request.param[0], seed=request.param[1])
    return published, load(place)


def small(published):
    """A smaller CosyVoice of the same ids."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        cosyvoice_folder(Path(folder) / "small", published.version, layers=1, seed=3)
        return load(Path(folder) / "small")


def ids(text):
    return small_cosyvoice.tokenizer()(text)["input_ids"]


def before(published, model, text=""):
    """The prompt's text as the published frontend has it, marks included."""
    told = (PREFIX if published.version == 3 else "") + text
    return model.tokenizer(told)["input_ids"] if told else []


def codes_of(out):
    return [[one for one in row if one < CODES] for row in rows_of(out)]


def test_greedy_is_the_published_loop(pair):
    """Alone and in a ragged batch; at least 2 and at most 20 codes for each token of text."""
    published, model = pair
    wanted = [published.greedy(ids(text), before(published, model)) for text in TEXTS]
    assert len({len(row) for row in wanted}) > 1
    drafter = small(published)
    torch.manual_seed(5)
    heads = new_net("medusa", model.model, {"heads": 3}).eval()
    ways = ((None, None), (heads, None), ("lookup", None), (drafter, None), (drafter, (3, 2)))
    for texts, some in ((TEXTS[:1], ways[:2]), (TEXTS, ways)):
        for draft, tree in some:
            out = synthesize(model, texts, draft, temperature=0.0, tree=tree, draft_length="auto" if draft is None else 3)
            assert codes_of(out) == wanted[: len(texts)]


def test_published_sampling_is_the_same_however_drafted(pair):
    published, model = pair
    assert model.sampling == SAMPLING
    plain = synthesize(model, TEXTS, seed=4, max_seconds=1.2)
    drafter = small(published)
    for draft, tree in (("suffix", None), (drafter, None), (drafter, (2, 2)), (model, None)):
        out = synthesize(model, TEXTS, draft, seed=4, tree=tree, draft_length=3, max_seconds=1.2)
        assert rows_of(out) == rows_of(plain)
    assert out.stats.accepted == out.stats.judged > 0


def published_draw(scores, decoded, generator):
    """The published sampler: a nucleus of 0.8 and 25 values; what stands among the last 10 is ruled out and drawn again from all."""
    order = scores.softmax(0).sort(descending=True, stable=True)
    kept = int(((order.values.cumsum(0) - order.values) < 0.8).sum().clamp(max=25))
    drawn = int(order.indices[order.values[:kept].multinomial(1, generator=generator)])
    if decoded[-10:].count(drawn) >= 1:
        scores = scores.index_fill(0, torch.tensor(drawn), -torch.inf)
        drawn = int(scores.softmax(0).multinomial(1, generator=generator))
    return drawn


def test_the_sampler_is_the_published_one():
    """Chi-square of 4,000 draws of the published procedure against the distribution."""
    from scipy.stats import chisquare

    generator = torch.Generator().manual_seed(0)
    scores, decoded = torch.randn(12, generator=generator) * 2, [3, 5, 1, 5, 0, 7]
    best = int(scores.argmax())
    decoded = [*decoded, best]
    visible = torch.ones(1, 1, len(decoded), dtype=torch.bool)
    history = History(torch.tensor([decoded]), visible, torch.tensor([[len(decoded)]]))
    p = SAMPLING.last[0](scores[None, None], history)[0, 0].softmax(-1)
    counts = torch.zeros(12)
    for _ in range(4000):
        counts[published_draw(scores, decoded, generator)] += 1
    likely = p > 1e-3
    expected = torch.cat([p[likely], p[~likely].sum()[None]]).double()
    found = torch.cat([counts[likely], counts[~likely].sum()[None]]).double()
    keep = expected > 1e-6
    assert found[~keep].sum() == 0
    assert chisquare(found[keep], expected[keep] / expected[keep].sum() * 4000).pvalue > 1e-3


# --- sound by the package ---------------------------------------------------------------------------------------------


def recording():
    return VoiceSample(torch.ones(7000) * 0.1, 24000, "so")


@pytest.fixture
def sounding(pair):
    published, model = pair
    return published, CosyVoice(model.model, model.tokenizer, model.ids, CosyVoicePackage(small_cosyvoice.package()))


def test_a_recording_goes_before(sounding):
    published, model = sounding
    wanted = published.greedy(ids("hi"), before(published, model, "so"), list(range(7)))
    out = synthesize(model, ["yes", "hi"], "lookup", voice=recording(), temperature=0.0, draft_length=3)
    assert codes_of(out)[1] == wanted


def test_sound_comes_in_hops(sounding):
    """The schedule of the package's own streaming: hops of 5, 10, 10 codes, the first with 3 that make the prompt whole, and 3 ahead."""
    _, model = sounding
    flow, codes = model.codec.package.model, [7, 3, *[1] * 8, *range(2, 29)]
    voice, found = model.codec.prompt(recording()), []
    for size in (1, 4, 37):
        flow.asked.clear()
        sound, pieces = model.codec.stream(voice), []
        for first in range(0, len(codes), size):
            pieces += sound.push(codes[first : first + size])
        pieces += sound.close()
        assert flow.asked == [(0, 11, False), (8, 21, False), (18, 31, False), (28, 34, True)]  # 3 of 8 silent codes are left out
        found.append(torch.cat(pieces))
    assert len(found[0]) == 34 * 4
    assert all(torch.equal(each, found[0]) for each in found)
    assert not flow.hift_cache_dict


def test_sound_is_the_whole(sounding):
    _, model = sounding
    given = {"voice": recording(), "seed": 3, "max_seconds": 1.6}
    said = stream(model, "a bit more", "lookup", **given)
    pieces, whole = list(said), synthesize(model, ["a bit more"], **given)
    codes = [one for one in rows_of(said.speech)[0] if one < CODES]
    assert torch.equal(torch.cat(pieces) if pieces else torch.zeros(0), whole.waveforms[0])
    assert len(whole.waveforms[0]) > 0 or not codes


def test_stored_voices_have_names(sounding):
    _, model = sounding
    front = model.codec.package.frontend
    stored = front.frontend_zero_shot("", "so", _written(recording()), 24000, "")
    front.spk2info["ann"] = stored | {"prompt_text": torch.tensor([ids("so")])}
    assert model.voices == ("ann",)
    given = {"temperature": 0.0, "max_seconds": 1.0}
    named, heard = (synthesize(model, ["hi"], voice=voice, **given) for voice in ("ann", recording()))
    assert rows_of(named) == rows_of(heard)


def _written(voice):
    import tempfile

    from mmspec.speech.sound.audio import save

    place = tempfile.mkdtemp() + "/voice.wav"
    save(place, voice.samples, voice.rate)
    return place


# --- what cannot be had -----------------------------------------------------------------------------------------------


def test_what_is_wrong_is_told_in_one_line(tmp_path):
    cosyvoice_folder(tmp_path / "two", 2)
    model = load(tmp_path / "two")
    heard = CosyVoice(model.model, model.tokenizer, model.ids, CosyVoicePackage(small_cosyvoice.package()))
    (tmp_path / "two" / "cosyvoice2.yaml").rename(tmp_path / "two" / "cosyvoice3.yaml")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "cosyvoice.yaml").write_text("", encoding="utf-8")
    for ask, said in (
        (lambda: synthesize(model, ["hi"], voice=recording()), "a recording is read by the package cosyvoice"),
        (lambda: synthesize(heard, ["hi"]), "CosyVoice speaks in the voice of a recording"),
        (lambda: synthesize(heard, [" "], voice=recording()), "text ' ' is empty"),
        (lambda: CosyVoicePackage(torch.nn.Linear(2, 2)), "Linear has no frontend and model.token2wav"),
        (lambda: load(tmp_path / "two"), "llm.pt"),
        (lambda: load(tmp_path / "one"), "it lacks llm.pt, CosyVoice-BlankEN: expected CosyVoice 2 or 3"),
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            ask()
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
