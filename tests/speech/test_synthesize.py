"""`synthesize` and `stream`: the sound of plain decoding whatever drafts, in any batch, in pieces that are never taken back."""

from dataclasses import replace
from math import isnan
from statistics import pstdev
from unittest.mock import Mock, patch

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.stopping import DefaultStopping
from mmspec.speech import generation, stream, synthesize, whole_sentences
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.sound.pieces import Sounds
from mmspec.speech.sound.stream import AfterCodes
from tests.speech import small_models

TEXTS = ["one", "two three", "five", "six", "one nine", "zero", "two", "eight"]
SEEDS = list(range(3, 11))


@pytest.fixture(scope="module")
def target():
    return small_models.speaker()


@pytest.fixture(scope="module")
def drafters(target):
    small = small_models.speaker(layers=1, seed=1)
    heads = small_models.heads(target)
    return {
        "lookup": ("lookup", {"draft_length": 3}),
        "model": (small.model, {}),
        "speaker": (small, {"draft_length": 4}),
        "itself": (target, {"draft_length": 3}),
        "heads": (heads, {"draft_length": 3}),
        "tree": (heads, {"tree": (3, 2, 1)}),
        "model tree": (small, {"tree": (2, 2)}),
    }


@pytest.fixture(scope="module")
def plain(target):
    return synthesize(target, TEXTS, seed=SEEDS, voice="jackson")


def same(one, other) -> bool:
    """Steps and samples, bit for bit."""
    steps = [[speech.tokens[row, : speech.lengths[row]].tolist() for row in range(len(speech.lengths))] for speech in (one, other)]
    return steps[0] == steps[1] and all(torch.equal(a, b) for a, b in zip(one.waveforms, other.waveforms, strict=True))


@pytest.mark.parametrize("name", ["lookup", "model", "speaker", "itself", "heads", "tree", "model tree"])
def test_the_sound_is_plain_decodings_whatever_drafts(target, plain, drafters, name):
    drafter, options = drafters[name]
    out = synthesize(target, TEXTS, drafter, seed=SEEDS, voice="jackson", **options)
    assert same(out, plain)
    assert out.stats.exactness == "token-exact"
    assert (out.stats.tokens_per_call > 1.2) == (name != "lookup")  # lookup has next to nothing to look up
    if name == "itself":
        assert out.stats.rejected == 0
    assert plain.stats.tokens_per_call == 1
    assert len({tuple(row) for row in plain.tokens.tolist()}) > 4  # the rows differ, and so could have been mixed up


def test_another_seed_or_voice_is_another_sound(target, plain):
    assert not same(synthesize(target, TEXTS, seed=[seed + 50 for seed in SEEDS], voice="jackson"), plain)
    assert not same(synthesize(target, TEXTS, seed=SEEDS, voice="theo"), plain)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["speaker", "tree"])
def test_a_sound_does_not_depend_on_its_batch(target, plain, drafters, size, name):
    drafter, options = drafters[name]
    for first in range(0, 4, size):
        part = slice(first, first + size)
        out = synthesize(target, TEXTS[part], drafter, seed=SEEDS[part], voice=["jackson"] * size, **options)
        for row in range(size):
            assert torch.equal(out.waveforms[row], plain.waveforms[first + row])


def test_the_likeliest_codes_are_the_same_too(target, drafters):
    plain = synthesize(target, TEXTS[:3], temperature=0, max_seconds=0.3)
    assert same(plain, synthesize(target, TEXTS[:3], drafters["speaker"][0], temperature=0, max_seconds=0.3))
    assert plain.stats.exactness == "token-exact"
    assert synthesize(target, TEXTS[:1], drafters["speaker"][0], accept="block", max_seconds=0.1).stats.exactness == "distribution-exact"


# --- pieces -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(target):
    """The target under a sampling that says much: several pieces a row."""
    return replace(target, sampling=SpeechSampling(temperature=1.3))


def heard(model, drafter=None, **options):
    """(speech, pieces by row, [row, steps of the row committed when the piece came])."""
    pieces, moments, committed = [[] for _ in TEXTS], [], [0] * len(TEXTS)

    def on_sound(row, piece):
        pieces[row].append(piece)
        moments.append(row)

    def on_step(step):
        for row, values in enumerate(step.committed.values):
            committed[row] += len(values)

    out = synthesize(model, TEXTS, drafter, seed=SEEDS, on_sound=on_sound, on_step=on_step, **options)
    return out, pieces, moments


@pytest.mark.parametrize("name", [None, "speaker", "tree"])
def test_the_pieces_of_a_row_are_its_sound(long, drafters, name):
    drafter, options = drafters[name] if name else (None, {})
    out, pieces, moments = heard(long, drafter, **options)
    assert all(torch.equal(torch.cat(mine), wave) for mine, wave in zip(pieces, out.waveforms, strict=True) if mine)
    assert max(map(len, pieces)) >= 2
    assert moments != sorted(moments)  # rows take turns: nobody waits for a whole row
    for row, mine in enumerate(pieces):
        assert isnan(out.first_sound[row]) == (not mine)
        assert isnan(out.worst_gap[row]) == (len(mine) < 2)
        assert not mine or 0 < out.first_sound[row] <= out.seconds
        assert len(mine) < 2 or 0 < out.worst_gap[row] <= out.seconds - out.first_sound[row]
    assert out.real_time_factor == pytest.approx(out.seconds / (sum(map(len, out.waveforms)) / 8000))


@pytest.mark.parametrize("name", ["speaker", "tree"])
def test_drafting_begins_behind_the_first_sound_of_every_row(long, drafters, name):
    drafter, options = drafters[name]
    given, drafted, heard_of = {"seed": SEEDS} | options, [], set()

    def on_step(step):
        drafted.append((step.draft.size > step.draft.roots, len(heard_of)))

    out = synthesize(long, TEXTS, drafter, on_sound=lambda row, piece: heard_of.add(row), on_step=on_step, **given)
    rows = sum(map(bool, map(len, out.waveforms)))
    before = [made for made, rows_heard in drafted[:-1] if rows_heard < rows]
    assert len(before) > 3
    assert not any(before)
    assert any(made for made, _ in drafted)
    assert same(out, synthesize(long, TEXTS, drafter, **given))
    if name == "speaker":  # a controller of one's own drafts from the start
        drafted.clear()
        synthesize(long, TEXTS, drafter, on_step=on_step, on_sound=lambda row, piece: None, **given | {"draft_length": Fixed(3)})
        assert drafted[0][0]


def test_a_listener_who_runs_dry_is_counted():
    sounds = Sounds(10, [AfterCodes(Mock(), [], 1)], 0.0)
    with patch("mmspec.speech.sound.pieces.perf_counter", iter([1.0, 1.5, 2.6, 5.0]).__next__):
        for samples in (10, 5, 5, 5):  # heard until 2.0, 2.5, 3.1, 5.5
            list(sounds._told(0, iter([torch.zeros(samples)])))
    assert sounds.underruns == [2]
    assert sounds.worst == [pytest.approx(2.4)]
    assert sounds.jitter(0) == pytest.approx(pstdev([0.5, 1.1, 2.4]))


def test_a_row_that_has_ended_is_heard_at_once(long):
    """Its last piece does not wait for the others."""
    ended, last, round_now = {}, {}, [0]

    def on_step(step):
        for row, done in enumerate(step.committed.ended):
            if done:
                ended.setdefault(row, round_now[0])
        round_now[0] += 1

    synthesize(long, TEXTS, seed=SEEDS, on_sound=lambda row, piece: last.__setitem__(row, round_now[0]), on_step=on_step)
    assert last
    assert all(ended[row] == moment for row, moment in last.items())
    assert len(set(ended.values())) > 2


@pytest.mark.parametrize("name", [None, "speaker", "tree"])
def test_a_stream_gives_the_same_pieces(long, drafters, name):
    drafter, options = drafters[name] if name else (None, {})
    whole = synthesize(long, TEXTS[:1], seed=SEEDS[0], voice="theo", temperature=1.2)
    coming = stream(long, TEXTS[0], drafter, seed=SEEDS[0], voice="theo", temperature=1.2, **options)
    first = next(coming)
    assert torch.equal(coming.speech.waveforms[0], first)
    assert torch.equal(torch.cat([first, *coming]), whole.waveforms[0])
    assert same(coming.speech, whole)
    assert next(coming, None) is None
    assert not first.requires_grad


@pytest.mark.parametrize("name", [None, "speaker", "tree"])
def test_texts_that_arrive_one_by_one_are_spoken_as_all_at_once(long, drafters, name):
    """Each sounds as its row in a batch of all of them, and none is asked for before its turn."""
    drafter, options = drafters[name] if name else (None, {})
    whole = synthesize(long, TEXTS[:3], seed=5, voice="theo")
    asked, pieces = [], [[], [], []]

    def arriving():
        for text in TEXTS[:3]:
            asked.append(text)
            yield text

    coming = stream(long, arriving(), drafter, seed=5, voice="theo", **options)
    assert not asked
    for piece in coming:
        pieces[len(asked) - 1].append(piece)
        assert len(coming.speeches) == len(asked)
    assert all(torch.equal(torch.cat(mine), wave) for mine, wave in zip(pieces, whole.waveforms, strict=True))
    assert [each.tokens[0].tolist() for each in coming.speeches] == [
        whole.tokens[row, :length].tolist() for row, length in enumerate(whole.lengths.tolist())
    ]
    assert next(coming, None) is None


def test_a_text_that_cannot_be_spoken_is_told_when_it_arrives(long):
    coming = stream(long, iter(["one", "naïve"]), seed=3)
    with pytest.raises(ValueError, match="'ï'"):
        list(coming)
    assert len(coming.speeches) == 1
    with pytest.raises(ValueError, match="temperature is -1"):
        list(stream(long, iter(["one"]), temperature=-1.0))
    with pytest.raises(
        ValueError, match=r"text is \['one', 'two'\]: give text or the dict that a tokenizer or processor returned or an iterator"
    ):
        stream(long, ["one", "two"])


def test_sentences_are_whole_as_soon_as_the_next_begins():
    text = "It costs 3.5 pounds. Is it\nold?  Yes: very! And so on"
    for size in (1, 2, 5, 100):
        chunks = [text[first : first + size] for first in range(0, len(text), size)]
        assert list(whole_sentences(chunks)) == ["It costs 3.5 pounds.", "Is it", "old?", "Yes:", "very!", "And so on"]
    assert list(whole_sentences(["  ", "\n", ""])) == []
    assert next(whole_sentences(iter(["One. ", "never asked for"]))) == "One."


def test_the_first_piece_is_shorter_and_comes_sooner(long):
    """Of 2 codes in place of the 4 of later blocks, as soon as they and the codes that they rest on are committed."""
    config, committed = long.codec.config, []
    coming = stream(long, "one two three", seed=3, on_step=lambda step: committed.append(len(step.committed.values[0])))
    first = next(coming)
    assert sum(committed) == config.first_block + config.look_ahead - 1  # a round is told behind its sound
    second = next(coming)
    assert len(first) == config.first_block * config.samples == 160
    assert len(second) == config.block * config.samples == 320


def test_a_stream_may_be_left(long):
    coming = stream(long, "one two three", seed=3)
    next(coming)
    del coming
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_leaked_draft_tokens_are_heard(long, drafters, monkeypatch):
    """A stream that is given what was drafted, and not what was committed, fails the distributions above."""
    commit = DefaultStopping.commit

    def remember(self, draft, scored, verdict):
        verdict, found = commit(self, draft, scored, verdict)
        self.drafted = [
            [int(value) for value, parent in zip(nodes, parents, strict=True) if parent != -2][1:]
            for nodes, parents in zip(draft.nodes.tolist(), draft.parents.tolist(), strict=True)
        ]
        return verdict, found

    class Leaky(generation.Sounds):
        def push(self, values, ended):
            rows = [drafted if own else [] for drafted, own in zip(LIMITS[-1].drafted, values, strict=True)]
            return super().push(rows, ended)

    LIMITS = []
    init = DefaultStopping.__init__
    monkeypatch.setattr(DefaultStopping, "__init__", lambda self, *args, **named: (init(self, *args, **named), LIMITS.append(self))[0])
    monkeypatch.setattr(DefaultStopping, "commit", remember)
    drafter, options = drafters["speaker"]
    plain = synthesize(long, TEXTS, seed=SEEDS)
    assert same(synthesize(long, TEXTS, drafter, seed=SEEDS, **options), plain)
    monkeypatch.setattr(generation, "Sounds", Leaky)
    leaked = synthesize(long, TEXTS, drafter, seed=SEEDS, **options)
    assert torch.equal(leaked.tokens, plain.tokens)
    assert not same(leaked, plain)


# --- limits -------------------------------------------------------------------------------------------------------------


def test_max_seconds_cuts_and_changes_nothing_before(long):
    whole = synthesize(long, TEXTS[:4], seed=SEEDS[:4])
    cut = synthesize(long, TEXTS[:4], seed=SEEDS[:4], max_seconds=0.1)
    assert cut.lengths.tolist() == [min(10, length) for length in whole.lengths.tolist()]
    for row, length in enumerate(cut.lengths.tolist()):
        assert cut.tokens[row, :length].tolist() == whole.tokens[row, :length].tolist()
    assert all(len(wave) <= 800 for wave in cut.waveforms)


def test_nothing_said_is_no_sound(target):
    """A row that ends at once."""
    mute = replace(target, extra=(_OnlyTheEnd(),))
    out = synthesize(mute, ["one", "two"])
    assert out.lengths.tolist() == [1, 1]
    assert [len(wave) for wave in out.waveforms] == [0, 0]
    assert all(map(isnan, [*out.first_sound, *out.worst_gap]))
    assert list(stream(mute, "one")) == []


class _OnlyTheEnd:
    def __call__(self, scores, history):
        found = torch.full_like(scores, float("-inf"))
        found[..., 1] = 0
        return found


def test_one_code_is_a_sound(target):
    out = synthesize(target, ["one"], max_seconds=1 / target.pace, seed=5)
    assert len(out.waveforms[0]) in (0, 80)


REFUSED = {
    "no texts": (([],), {}, "give at least one"),
    "one text alone": (("one",), {}, "give a list"),
    "an empty text": ((["one", " "],), {}, "is empty"),
    "letters it lacks": ((["one 2"],), {}, "'2', which the tokenizer lacks"),
    "other letters": ((["naïve"],), {}, "'ï'"),
    "a long text": ((["one " * 9],), {}, "takes 24; cut it"),
    "an unknown voice": ((["one"],), {"voice": "bob"}, "unknown voice 'bob'; valid: george"),
    "too many voices": ((["one"],), {"voice": ["theo", "theo"]}, "2 voices for 1 texts"),
    "no time": ((["one"],), {"max_seconds": 0}, "max_seconds is 0"),
    "too much time": ((["one"],), {"max_seconds": 60}, "has room for 1.92"),
    "an unknown rule": ((["one"],), {"accept": "maybe"}, "'maybe'"),
    "an unknown drafter": ((["one"],), {"drafter": "oracle"}, "'oracle'"),
    "a negative temperature": ((["one"],), {"temperature": -1.0}, "temperature is -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_request_is_told_in_one_line(target, name):
    args, options, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as told:
        synthesize(target, *args, **options)
    assert "\n" not in str(told.value)
    if args[0] and not isinstance(args[0], str) and len(args[0]) == 1 and "voices" not in name:
        with pytest.raises(ValueError, match=words):  # before the first piece is asked for
            stream(target, args[0][0], **options)


def test_saving(target, plain, tmp_path):
    assert plain.save(tmp_path / "a.wav") == [tmp_path / f"a-{row}.wav" for row in range(8)]
    one = synthesize(target, ["one"])
    assert one.save(tmp_path / "b.flac") == [tmp_path / "b.flac"]
    with pytest.raises(ValueError, match=r"ends in \.mp3"):
        one.save(tmp_path / "b.mp3")
