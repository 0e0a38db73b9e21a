"""Heads that draft for Whisper: its own text where they are verified, a metered one where they are kept unchecked, what they learn."""

import json
from functools import cache

import pytest
import torch

import mmspec
from mmspec.core.rules.lossy.always_accept import Threshold
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train
from mmspec.run.request import Request
from mmspec.speech.recognition.decoding import RecognitionDecoding
from mmspec.speech.recognition.whisper import features_of
from mmspec.speech.sound.audio import save
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.record import record_written
from tests.speech.small_whisper import IDS, RATE, SIZE, processor, sounds, whisper
from tests.speech.test_transcribe import by_generate, ids_of
from tests.speech.test_transcribe_command import run

SECONDS = (0.8, 2.3, 0.5)
PART = 40
KINDS = {"latent": {}, "latent in part": {"values": PART}, "independent": {}, "independent in part": {"values": PART}, "medusa": {}}
SHAPES = {"a chain": {"draft_length": 3}, "a tree": {"tree": (3, 2)}, "beams of prefixes": {"tree": "beams"}, "auto": {}}
TIMES = (None, "segment", "word")
VERIFIED = [(kind, shape, TIMES[(one + other) % 3]) for one, kind in enumerate(KINDS) for other, shape in enumerate(SHAPES)]
"""Every pair of heads, shape and times."""


@pytest.fixture(scope="module")
def model():
    return whisper().requires_grad_(False)


@pytest.fixture(scope="module")
def kit():
    return processor()


@pytest.fixture(scope="module")
def waves():
    return sounds(*SECONDS)


@pytest.fixture(scope="module")
def windows(model, kit, tmp_path_factory):
    """Short recordings as the model wrote them down, with its states."""
    heard = sounds(*[0.3 + 0.1 * number for number in range(6)])

    def write(first, end):
        found = []

        def keep(_, inputs, sequences):
            answers = sequences[:, inputs["decoder_input_ids"].shape[1] :]
            before = (answers == IDS["<|endoftext|>"]).cumsum(1)
            found.append((inputs, answers, ((before == 0).sum(1) + 1).clamp(max=answers.shape[1])))

        features, mask = features_of(kit.feature_extractor, heard[first:end])
        decoding = RecognitionDecoding(Request.of(drafter=None), on_window=keep)
        model.generate(features, attention_mask=mask, custom_generate=decoding, return_timestamps=first == 2, temperature=0.0)
        return found[0]

    return record_written(model, write, 6, (-1,), tmp_path_factory.mktemp("heads") / "states", 48, 2), write


@pytest.fixture(scope="module")
def heads(model, windows):
    """Heads of a kind after some steps on short recordings, each trained once."""
    return cache(lambda name, steps=30: trained(name, model, windows[0], steps))


@pytest.fixture(scope="module", params=KINDS)
def net(request, heads):
    return heads(request.param)


@pytest.fixture(scope="module")
def plain(model, kit, waves):
    """Tokens of plain decoding of the recordings from the first on, with options of a call, run once."""

    @cache
    def tokens(first, *options):
        return [each.tokens for each in mmspec.speech.transcribe(model, kit, waves[first:], **dict(options)).transcripts]

    return lambda first=0, **options: tokens(first, *options.items())


def trained(name, model, data, steps):
    torch.manual_seed(0)
    kind, options = name.split()[0], dict(KINDS[name])
    every = data.window(range(len(data)))
    made = net_to_train(kind, model, {"heads": 3}, options.pop("values", None))
    made = begin_training(made, model, every.ids[every.own])
    example = DistillationLoss(made, model, Aim(depth=3, distributions={"ce": 1.0}, decay=1.0, summed=True))
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        example(every).backward()
        optimizer.step()
    return made.eval()


def test_recorded_windows_are_what_the_decoder_read_and_wrote(model, windows):
    """Its states by one uncached forward; every lesson is the greedy token after its prefix."""
    data, write = windows
    for first in (0, 2, 4):
        inputs, answers, lengths = write(first, first + 2)
        prompt = inputs["decoder_input_ids"]
        found = data.window([first, first + 1])
        for row in range(2):
            size = prompt.shape[1] + int(lengths[row])
            ids = torch.cat([prompt[row], answers[row]])[:size]
            assert torch.equal(found.ids[row, :size], ids)
            assert found.own[row].nonzero()[:, 0].tolist() == list(range(prompt.shape[1], size))
            states = inputs["encoder_outputs"][0][row : row + 1]
            out = model(encoder_outputs=(states,), decoder_input_ids=ids[None], output_hidden_states=True)
            torch.testing.assert_close(found.last[row, :size], out.decoder_hidden_states[-1][0], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="raise width"):
        record_written(model, write, 6, (-1,), data.folder.parent / "narrow", 10, 2)


@pytest.mark.parametrize(("net", "shape", "times"), VERIFIED, indirect=["net"], scope="module")
def test_verified_heads_give_the_text_of_generate(model, kit, waves, net, shape, times):
    """Short and long recordings of one batch."""
    heard = mmspec.speech.transcribe(model, kit, waves, net, timestamps=times, **SHAPES[shape])
    for wave, got in zip(waves, heard.transcripts, strict=True):
        asked = bool(times) or len(wave) > RATE
        expected = by_generate(model, kit, wave, return_timestamps=asked, return_token_timestamps=times == "word")
        assert got.tokens == ids_of(expected)
        if times:
            assert [(part.start, part.end) for part in got.segments] == [(float(part["start"]), float(part["end"])) for part in expected]
    assert heard.stats.exactness == "token-exact"


@pytest.mark.parametrize("options", [{"fallback": True}, {"condition": True, "prompt": "ab"}], ids=["fallback", "condition"])
def test_verified_heads_in_other_modes(model, kit, waves, net, plain, options):
    heard = mmspec.speech.transcribe(model, kit, waves[1:], net, draft_length=3, **options)
    assert [each.tokens for each in heard.transcripts] == plain(1, **options)


def test_training_raises_what_is_accepted(model, kit, heads):
    heard = sounds(*[0.3 + 0.1 * number for number in range(6)])
    for name in KINDS:
        counts = [
            mmspec.speech.transcribe(model, kit, heard, heads(name, steps), draft_length=3).stats.tokens_per_call for steps in (0, 120)
        ]
        assert counts[1] > counts[0] + 0.5, name


def test_a_part_of_the_vocabulary_is_drafted_alone(model, kit, waves, windows):
    data = windows[0]
    every = data.window(range(len(data)))
    for kind in ("latent", "independent"):
        net = begin_training(net_to_train(kind, model, {"heads": 3}, PART), model, every.ids[every.own])
        assert set(net.vocabulary.tolist()) >= set(every.ids[every.own].unique().tolist()[:1])
        drafted = []
        told = lambda step: drafted.extend(step.draft.draft_tokens[step.draft.valid[:, 1:]].tolist())  # noqa: B023, E731
        mmspec.speech.transcribe(model, kit, waves, net.eval(), draft_length=3, on_step=told)
        assert drafted
        assert set(drafted) <= set(net.vocabulary.tolist())


@pytest.mark.parametrize("batch_size", [1, 4])
def test_heads_kept_unchecked_are_metered(model, kit, waves, net, plain, batch_size):
    """Fewer calls the lower the threshold, and the departures from greedy decoding are counted."""
    found = [
        mmspec.speech.transcribe(model, kit, waves, net, accept=Threshold(tau), draft_length=3, batch_size=batch_size).stats
        for tau in (0.0, 1.0)
    ]
    assert found[0].tokens_per_call > 3
    assert found[0].drift > 0
    assert found[0].exactness == "lossy"
    assert found[1].drift == 0
    exact = mmspec.speech.transcribe(model, kit, waves, net, accept=Threshold(1.0, verify=True), draft_length=3, batch_size=batch_size)
    assert [each.tokens for each in exact.transcripts] == plain()


def test_a_folder_of_heads_on_the_command_line(model, kit, waves, heads, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    kit.save_pretrained(tmp_path / "model")
    for name in KINDS:
        save_drafter(heads(name), tmp_path / name)
    for number, wave in enumerate(waves[:2]):
        save(tmp_path / f"{number}.wav", wave, RATE)
    sound = [tmp_path / "0.wav", tmp_path / "1.wav", "--model", tmp_path / "model", "--json"]
    plain = json.loads(run(capsys, *sound)[1])["recordings"]
    for name in KINDS:
        code, out, err = run(capsys, *sound, "--drafter", tmp_path / name, "--draft-length", 3)
        assert code == 0, err
        told = json.loads(out)
        assert [each["tokens"] for each in told["recordings"]] == [each["tokens"] for each in plain]
        assert told["stats"]["drafted"] > 0
    code, out, err = run(capsys, *sound, "--drafter", tmp_path / "latent", "--threshold", 0, "--draft-length", 3)
    assert code == 0, err
    told = json.loads(out)["stats"]
    assert (told["exactness"], told["tokens_per_call"] > 3) == ("lossy", True)
    for words, line in (
        (["--threshold", 2, "--drafter", tmp_path / "latent"], "threshold is 2"),
        (["--threshold", 0.5, "--accept", "greedy", "--drafter", tmp_path / "latent"], "--threshold and --accept"),
        (["--threshold", 0.5], "--threshold needs a drafter"),
        (["--threshold", 0.5, "--drafter", "lookup"], "reads the drafter's probabilities"),
    ):
        code, _, err = run(capsys, *sound, *words)
        assert (code, line in err, err.count("\n")) == (2, True, 1), err


def test_saved_heads_are_those_that_were_trained(model, net, tmp_path):
    save_drafter(net, tmp_path / "heads")
    again = load_drafter(tmp_path / "heads", model)
    for each in (net, again):
        if getattr(each, "shared_head", False):
            each.attach(model)
    state, head = torch.randn(3, 32), model.get_output_embeddings()
    for level in range(3):
        ours, theirs = (each.read(state, level) for each in (net, again))
        assert torch.equal(net.logits(ours, level, head), again.logits(theirs, level, head))
    with pytest.raises(ValueError, match="for another target"):
        load_drafter(tmp_path / "heads", whisper(width=16))


def test_sizes_are_checked():
    for kind in ("latent", "independent"):
        with pytest.raises(ValueError, match=f"values is {SIZE + 1} of the target's"):
            net_to_train(kind, whisper(), {"values": SIZE + 1})


def test_a_stopped_training_goes_on(model, windows, tmp_path):
    data = windows[0]
    every = data.window(range(len(data)))

    def weights(*stages):
        torch.manual_seed(0)
        for steps in stages:
            net = begin_training(net_to_train("latent", model, {"heads": 2}, PART), model, every.ids[every.own])
            example = DistillationLoss(net, model, Aim(depth=2, distributions={"ce": 1.0}, decay=1.0, summed=True))
            plan = Fit(steps=steps, lr=1e-3, checkpoint_every=2)
            fit(example, lambda m, turn: m(data.draw(turn, 3)), plan, tmp_path / f"{len(stages)}.pt")
        return torch.cat([each.flatten() for each in net.parameters()])

    assert torch.equal(weights(4), weights(4, 4))
