"""Jobs under a generation config that changes what is generated: their outputs are those of the calls, in batches and joining."""

from typing import Any

import pytest
from transformers import GenerationConfig

import mmspec
from mmspec.jobs.recommendations import Recommend
from mmspec.jobs.speech import Say
from mmspec.jobs.text import Continue
from mmspec.loading.recsys import Recommender
from mmspec.loading.speech import Speaker
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, RunSection
from mmspec.speech.families.base import sampling_of
from mmspec.speech.sound.files import sound_bytes
from tests.beam_world import OFFSET, make, perturbed, shop, users
from tests.speech.small_models import speaker

WAYS = pytest.mark.parametrize("joining", [False, True], ids=["in batches", "joining"])


@WAYS
def test_text(joining, monkeypatch):
    prompts, run = ["Once upon", "The king", "How many"], RunSection(max_new_tokens=12)
    pair = load_pair(Config(run=run))
    plain = [line["tokens"] for line in Continue(pair, rows=2, continuous=joining)([(n, {"prompt": p}) for n, p in enumerate(prompts)])]
    for name, value in {"repetition_penalty": 1.7, "no_repeat_ngram_size": 1, "begin_suppress_tokens": [row[0] for row in plain]}.items():
        monkeypatch.setattr(pair.target.generation_config, name, value)
    told = [pair.generate(pair.inputs([prompt])).tokens[0].tolist() for prompt in prompts]
    work = Continue(pair, rows=2, continuous=joining)
    assert work._model is not None  # rows can join
    assert [line["tokens"] for line in work([(n, {"prompt": p}) for n, p in enumerate(prompts)])] == told
    assert told != plain
    monkeypatch.setattr(pair.target.generation_config, "num_beams", 3)
    with pytest.raises(ValueError, match=r"generation_config.num_beams is 3"):
        [*Continue(pair, rows=2, continuous=joining)([(0, {"prompt": prompts[0]})])]


def test_recommendations():
    catalogue, model = shop(), make("qwen2")
    histories = users(catalogue, 5)
    recommender = Recommender("small", model, catalogue, perturbed(model, 0.05))
    batch = [(number, (number, history)) for number, history in enumerate(histories)]
    plain = [found["item"] for found in Recommend(recommender, {"k": 5}, rows=2)(batch)]
    settings = {"repetition_penalty": 1.4, "sequence_bias": [[[OFFSET + 1], 3.0]], "suppress_tokens": [OFFSET]}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    told = [mmspec.recsys.recommend(model, [history], k=5, catalogue=catalogue).items[0] for history in histories]
    assert [found["item"] for found in Recommend(recommender, {"k": 5}, rows=2)(batch)] == told != plain


@WAYS
def test_sound(joining):
    """What a checkpoint's generation config says is the model's `sampling`."""
    texts, waves = ["ab", "cd e", "f"], []
    limits: dict[str, Any] = {"max_seconds": 0.5}
    for config in (GenerationConfig(), GenerationConfig(do_sample=True, temperature=0.6, top_k=3)):
        model = speaker(sampling=sampling_of(config))
        voice = next(iter(model.voices))
        told = [mmspec.speech.synthesize(model, [text], seed=row, voice=voice, **limits).waveforms[0] for row, text in enumerate(texts)]
        work = Say(Speaker("small", model), limits, rows=2, continuous=joining)
        assert work._model is not None
        found = [sound for sound, _ in work([(row, {"text": text}) for row, text in enumerate(texts)])]
        assert found == [sound_bytes(wave, model.rate, "wav") for wave in told]
        waves.append(found)
    assert waves[0] != waves[1]
