"""Which speech models an engine serves: frames, delayed codebooks, guidance of pairs; all others are refused in one line."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from mmspec.models.guidance import PairedRows
from mmspec.speech import load, synthesize
from mmspec.speech.families import speech_model
from mmspec.speech.families.csm import CsmModel
from tests.serving.traffic import Asked, scheduler_for, serve
from tests.speech import small_cosyvoice, small_csm, small_delay, small_higgs, small_qwen3_tts

STEPS = 12
NAMES = ["musicgen", "melody", "dia", "higgs", "csm", "cosyvoice", "qwen3_tts"]


@cache
def parts(name):
    """A model, a smaller one that drafts, and prompts of different lengths."""
    small = {"layers": 1, "hidden": 16, "seed": 5}
    if name == "musicgen":
        return small_delay.musicgen(), small_delay.musicgen(**small), small_delay.music_prompts(3)
    if name == "melody":
        made = [speech_model(small_delay.musicgen_network(books=3, melody=True, **sizes)) for sizes in ({}, small)]
        return *made, small_delay.music_prompts(3)
    if name == "dia":
        return small_delay.dia(), small_delay.dia(**small), small_delay.TEXTS
    if name == "higgs":
        return small_higgs.higgs_audio(), small_higgs.higgs_audio(layers=1, seed=7), ["one two", "three", "four five six"]
    if name == "cosyvoice":
        return *loaded(small_cosyvoice.cosyvoice_folder, {"version": 2}, {"version": 2, "layers": 1, "seed": 3}), [
            "hi",
            "a bit more",
            "yes",
        ]
    if name == "qwen3_tts":
        return *loaded(small_qwen3_tts.published, {}, {"seed": 1}), ["hello there", "say a longer thing .", "three"]
    return CsmModel(small_csm.csm()), CsmModel(small_csm.csm(layers=1, seed=3)), small_csm.prompts(3)


def loaded(write, *sizes):
    """Models that are read from folders."""
    with TemporaryDirectory() as place:
        found = []
        for number, options in enumerate(sizes):
            folder = Path(place, str(number))
            write(folder, **options)
            found.append(load(folder))
    return found


def asked(name, scale):
    target, _, prompts = parts(name)
    found = []
    for number, (prompt, share) in enumerate(zip([*prompts, prompts[0]], (1, 0.6, 1.2, 0.5), strict=True)):
        options = {"seed": number, "temperature": (1.0, 0.0, 0.8, 1.0)[number], "max_seconds": (STEPS + 0.01) * share / target.pace}
        own = {"guidance": 2.0} if scale and number == 2 else {}
        found.append(Asked(prompt, options | own, 3 * number))
    return found


def served(name, scale, drafter):
    target, small, _ = parts(name)
    wanted = [each for each in asked(name, scale) if each.options["temperature"] or not target.draws_always]
    if scale is not None or target.sampling.guidance is not None:
        target.sampling = replace(target.sampling, guidance=scale)
    drafter = small if drafter else None
    scheduler, waiting = scheduler_for(target, drafter, max_rows=2, piece=4, draft_length=2)
    handles = serve(scheduler, waiting, wanted, most=500)
    alone = [synthesize(target, [each.ids], **each.options) for each in wanted]
    assert scheduler.counts.restarted == 0
    assert scheduler.counts.rows > scheduler.counts.rounds  # some ran together
    return [
        torch.equal(handle.result(0).tokens, right.tokens) and torch.equal(handle.result(0).waveforms[0], right.waveforms[0])
        for handle, right in zip(handles, alone, strict=True)
    ]


@pytest.mark.parametrize("drafter", [False, True])
@pytest.mark.parametrize(("name", "scale"), [(name, None) for name in NAMES] + [(name, 3.0) for name in ("musicgen", "melody", "dia")])
def test_every_request_has_the_sound_it_has_alone(name, scale, drafter):
    assert all(served(name, scale, drafter))


def test_likeliest_codes_need_an_engine_that_takes_them():
    """Where the codes behind the first one of a frame are drawn by settings of their own, whatever the temperature."""
    target, _, prompts = parts("qwen3_tts")
    assert target.draws_always
    scheduler, _ = scheduler_for(target)
    with pytest.raises(ValueError, match=r"temperature is 0\.0, but this engine draws the codes behind the first one") as caught:
        scheduler.model.read(prompts[0], scheduler.model.options(temperature=0.0))
    assert "\n" not in str(caught.value)
    options = {"temperature": 0.0, "max_seconds": (STEPS + 0.01) / target.pace}
    scheduler, waiting = scheduler_for(target, accept="greedy")
    (handle,) = serve(scheduler, waiting, [Asked(prompts[0], options)], most=500)
    assert torch.equal(handle.result(0).tokens, synthesize(target, [prompts[0]], **options).tokens)


def test_pairs_mixed_up_are_heard(monkeypatch):
    """The equality above fails where pairs that join get the unconditional rows of others."""
    own = PairedRows.join_rows

    def swapped(self, other):
        pairs, order = own(self, other)
        return pairs, [*order[: pairs.rows], *reversed(order[pairs.rows :])]

    monkeypatch.setattr(PairedRows, "join_rows", swapped)
    assert not all(served("musicgen", 3.0, False))


def test_a_request_without_guidance_among_pairs_is_refused_by_name():
    target, _, prompts = parts("musicgen")
    target.sampling = replace(target.sampling, guidance=3.0)
    scheduler, _ = scheduler_for(target)
    with pytest.raises(ValueError, match=r"guidance is 1\.0, but the model's own is 3\.0") as caught:
        scheduler.model.read(prompts[0], scheduler.model.options(guidance=1.0))
    assert "\n" not in str(caught.value)
