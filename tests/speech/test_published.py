"""Llasa and Orpheus in their published layouts, loaded by one call: the codes of the class's own generate, sound in pieces, voices."""

import json

import pytest
import torch

from mmspec.speech import VoiceSample, load, synthesize
from mmspec.speech.codecs.snac import SnacCodec, load_snac
from mmspec.speech.families.base import SpeechSampling
from tests.speech.small_codecs import SIZE
from tests.speech.small_published import KINDS, SNAC_SIZES, llama, llasa_folder, orpheus_folder, snac_folder
from tests.speech.test_codec_lm import rows_of

TEXTS = ["hello", "A longer thing to say.", "three five"]
STEPS = 22


@pytest.fixture(scope="module")
def llasa(tmp_path_factory):
    return load(llasa_folder(tmp_path_factory.mktemp("llasa")))


@pytest.fixture(scope="module")
def orpheus(tmp_path_factory):
    return load(orpheus_folder(tmp_path_factory.mktemp("orpheus")))


def llasa_prompt(tokenizer, text, codes=()):
    """The published recipe."""
    told = f"Convert the text to speech:<|TEXT_UNDERSTANDING_START|>{text}<|TEXT_UNDERSTANDING_END|>"
    answer = "<|SPEECH_GENERATION_START|>" + "".join(f"<|s_{code}|>" for code in codes)
    chat = [{"role": "user", "content": told}, {"role": "assistant", "content": answer}]
    return tokenizer.apply_chat_template(chat, tokenize=True, return_tensors="pt", continue_final_message=True, return_dict=False)


def orpheus_prompt(tokenizer, text, before=()):
    """The published recipe, its numbers 128,256 less and counted from <custom_token_0>."""
    base, eot = tokenizer.convert_tokens_to_ids(["<custom_token_0>", "<|eot_id|>"])
    return torch.tensor([[*before, base + 3, *tokenizer(text).input_ids, eot, base + 4, base + 5, base + 1]])


def allowed_llasa(speaker, place):
    return [speaker.end, *range(speaker.first, speaker.first + SIZE)]


def allowed_orpheus(speaker, place):
    first = speaker.first + place % 7 * SIZE
    return [speaker.end] * (place % 7 == 0) + list(range(first, first + SIZE))


FAMILIES = {"llasa": (llasa_prompt, allowed_llasa), "orpheus": (lambda *a: orpheus_prompt(a[0], f"tara: {a[1]}"), allowed_orpheus)}


def reference(speaker, prompt, allowed, **options):
    """Ids that the class's own `generate` writes, codes and the end allowed."""
    width = prompt.shape[1]
    out = speaker.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS, eos_token_id=speaker.end, pad_token_id=0,
        prefix_allowed_tokens_fn=lambda row, ids: allowed(speaker, len(ids) - width), do_sample=False, **options,
    )  # fmt: skip
    return out[0, width:].tolist()


def seconds(speaker):
    return (STEPS + 0.5) / speaker.pace


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_is_the_class_own_generate(name, request):
    """Alone and in a ragged batch, with the published penalty, plain and drafted."""
    speaker, (prompt, allowed) = request.getfixturevalue(name), FAMILIES[name]
    penalty = speaker.sampling.repetition_penalty
    options = {} if penalty is None else {"repetition_penalty": penalty}
    wanted = [reference(speaker, prompt(speaker.letters.tokenizer, text), allowed, **options) for text in TEXTS]
    small = llama(speaker.model.config.vocab_size, 1, 3)
    for texts in (TEXTS[1:2], TEXTS):
        for drafter, tree in ((None, None), ("lookup", None), (small, None), (small, (3, 2, 1))):
            length = "auto" if drafter is None else 3
            given = {"temperature": 0.0, "top_p": 1.0, "max_seconds": seconds(speaker), "draft_length": length, "tree": tree}
            out = synthesize(speaker, texts, drafter, **given)
            assert rows_of(out) == (wanted if len(texts) > 1 else wanted[1:2])


@pytest.mark.parametrize("name", FAMILIES)
def test_published_sampling_is_the_same_however_drafted(name, request):
    speaker = request.getfixturevalue(name)
    given = {"seed": 5, "max_seconds": seconds(speaker)}
    plain = synthesize(speaker, TEXTS, **given)
    assert len({tuple(row) for row in rows_of(plain)}) == 3
    small = llama(speaker.model.config.vocab_size, 1, 3)
    for drafter, tree in (("suffix", None), (small, None), (small, (2, 2)), (speaker, None)):
        out = synthesize(speaker, TEXTS, drafter, tree=tree, draft_length=3, **given)
        assert rows_of(out) == rows_of(plain)
        assert all(torch.equal(a, b) for a, b in zip(out.waveforms, plain.waveforms, strict=True))


def test_published_settings(llasa, orpheus):
    assert llasa.sampling == SpeechSampling(temperature=0.8)
    assert orpheus.sampling == SpeechSampling(temperature=0.6, top_p=0.8, repetition_penalty=1.3)
    assert (llasa.usual, orpheus.usual) == (2048, 1200)
    assert (llasa.rate, llasa.pace, orpheus.rate, round(orpheus.pace, 4)) == (16000, 50, 24000, 82.0312)
    assert orpheus.voices[:2] == ("tara", "leah")


def test_orpheus_speaks_in_pieces(orpheus):
    pieces: list = []
    long = 7 * 9 / orpheus.pace + 0.001
    given = {"seed": 2, "max_seconds": long, "voice": "leo", "samplers": [Never(orpheus.end)]}
    out = synthesize(orpheus, ["hello"], "lookup", on_sound=lambda row, piece: pieces.append(piece), **given)
    assert len(pieces) > 2
    assert torch.equal(torch.cat(pieces), out.waveforms[0])
    frames = [[one - orpheus.first - place % 7 * SIZE for place, one in enumerate(rows_of(out)[0])][7 * at : 7 * at + 7] for at in range(9)]
    whole = orpheus.codec.decode(frames)
    assert len(whole) == 9 * 2048
    assert (whole - out.waveforms[0]).abs().max() < 1e-5


class Never:
    """Processor: forbids an id."""

    def __init__(self, end):
        self.end = end

    def __call__(self, scores, history):
        return scores.index_fill(-1, torch.tensor([self.end]), -torch.inf)


# --- voices -----------------------------------------------------------------------------------------------------------


def recording(rate, samples):
    return VoiceSample(torch.sin(torch.arange(samples) * 0.05) * 0.5, rate, "words in it")


def test_llasa_imitates_a_recording(llasa):
    """The published recipe: its text before the text, its codes begin the answer, and its sound is cut off."""
    from transformers import Xcodec2FeatureExtractor

    voice, codec = recording(16000, 320 * 6), llasa.codec.model
    heard = Xcodec2FeatureExtractor()(voice.samples.numpy(), sampling_rate=16000, return_tensors="pt")
    codes = codec.encode(**heard).audio_codes[0, 0].tolist()[:6]
    prompt = llasa_prompt(llasa.letters.tokenizer, "words in it hello", codes)
    wanted = reference(llasa, prompt, allowed_llasa)
    given = {"voice": [None, voice, None], "temperature": 0.0, "max_seconds": seconds(llasa)}
    out = synthesize(llasa, [TEXTS[1], "hello", TEXTS[2]], "lookup", draft_length=3, **given)
    plain = synthesize(llasa, [TEXTS[1], "hello", TEXTS[2]], **given | {"voice": None})
    assert rows_of(out)[1] == wanted != rows_of(plain)[1]
    assert (rows_of(out)[0], rows_of(out)[2]) == (rows_of(plain)[0], rows_of(plain)[2])
    said = [one - llasa.first for one in wanted if one != llasa.end]
    assert torch.equal(out.waveforms[1], llasa.codec.decode(codes + said)[6 * 320 :])


def test_orpheus_imitates_a_recording(orpheus):
    """The published recipe: its text and codes are an earlier turn."""
    tokenizer, voice = orpheus.letters.tokenizer, recording(24000, 4000)
    base = tokenizer.convert_tokens_to_ids("<custom_token_0>")
    books = orpheus.codec.model.encode(voice.samples[None, None])
    codes = []
    for at in range(books[0].shape[1]):
        slow, mid, fast = books[0][0, at], books[1][0, 2 * at :], books[2][0, 4 * at :]
        frame = (slow, mid[0], fast[0], fast[1], mid[1], fast[2], fast[3])
        codes += [base + 10 + place * SIZE + int(code) for place, code in enumerate(frame)]
    turn = [*orpheus_prompt(tokenizer, "words in it")[0].tolist(), *codes, base + 2, base + 6]
    wanted = reference(orpheus, orpheus_prompt(tokenizer, "hello", turn), allowed_orpheus)
    given = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "max_seconds": seconds(orpheus)}
    assert rows_of(synthesize(orpheus, ["hello"], "lookup", voice=voice, draft_length=3, **given))[0] == wanted


# --- SNAC -------------------------------------------------------------------------------------------------------------


def frames(count):
    return torch.randint(0, SIZE, (count, 7), generator=torch.Generator().manual_seed(1)).tolist()


def test_snac_is_its_packages_own(tmp_path, monkeypatch):
    """With the package's own noise in place of ours, and the order in which Orpheus writes the books."""
    codec, steps = load_snac(snac_folder(tmp_path / "snac")), frames(5)
    books = [[f[0] for f in steps], [f[at] for f in steps for at in (1, 4)], [f[at] for f in steps for at in (2, 3, 5, 6)]]
    asked = []

    def drawn(shape, **options):
        asked.append(shape)
        return noise(len(asked) - 1, 0, torch.zeros(shape))

    from mmspec.speech.codecs.snac import _noise as noise

    monkeypatch.setattr(torch, "randn", drawn)
    with torch.no_grad():
        wanted = codec.model.decode([torch.tensor([book]) for book in books]).flatten()
    monkeypatch.undo()
    assert len(asked) == 4
    assert len(wanted) == 5 * 2048
    assert (codec.decode(steps) - wanted).abs().max() < 1e-6
    again = codec.encode(wanted)
    assert len(again) == 5
    assert [f[0] for f in again] == codec.model.encode(wanted[None, None])[0][0].tolist()


def test_snac_noise_is_normal():
    from mmspec.speech.codecs.snac import _noise

    drawn = _noise(1, 7, torch.zeros(1, 1, 40_000))[0, 0]
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1) < 0.02
    assert torch.equal(_noise(1, 107, torch.zeros(1, 1, 50))[0, 0], drawn[100:150])
    assert abs(float(torch.corrcoef(torch.stack([drawn, _noise(2, 7, drawn[None, None])[0, 0]]))[0, 1])) < 0.02


@pytest.mark.parametrize("sizes", [(1,), (40,), (3, 1, 5)])
def test_snac_pieces_are_the_whole(tmp_path, sizes):
    codec, steps = load_snac(snac_folder(tmp_path / "snac")), frames(13)
    stream, found, known = codec.stream(), [], 0
    while known < len(steps):
        run = sizes[known % len(sizes)]
        found += stream.push(steps[known : known + run])
        known += run
    early = len(found)
    found += stream.close()
    assert early >= (len(sizes) > 1 or sizes[0] < 13)
    assert (torch.cat(found) - codec.decode(steps)).abs().max() < 1e-5


# --- what cannot be loaded --------------------------------------------------------------------------------------------


def test_what_is_wrong_is_told_in_one_line(tmp_path):
    from snac import SNAC

    place = llasa_folder(tmp_path / "llasa")
    with pytest.raises(ValueError, match="SNAC is not the SNAC that Orpheus writes codes for: expected vq_strides") as caught:
        SnacCodec(SNAC(**SNAC_SIZES | {"vq_strides": [8, 4, 2, 1]}))
    assert "\n" not in str(caught.value)
    (place / "codec").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"model .*llasa cannot be loaded: its codec .*nowhere") as caught:
        load(place, codec=str(tmp_path / "nowhere"))
    assert "\n" not in str(caught.value)
    assert load(place, codec=tmp_path / "elsewhere").rate == 16000
    told = json.loads((place / "tokenizer_config.json").read_text(encoding="utf-8"))
    (place / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in told.items() if k != "chat_template"}), encoding="utf-8")
    for written in place.glob("chat_template*"):
        written.unlink()
    with pytest.raises(ValueError, match="Llasa's tokenizer has no chat template"):
        load(place, codec=tmp_path / "elsewhere")
    assert len(KINDS) == 8
