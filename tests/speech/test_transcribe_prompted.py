"""`mmspec.speech.transcribe` with recognisers other than Whisper: the text of their own `generate` on each recording alone."""

import copy

import pytest
import torch
from peft import LoraConfig

import mmspec
from mmspec.loading.hearing import load_transcriber
from mmspec.speech.recognition.options import TranscriptionOptions
from mmspec.speech.recognition.prompted import request_inputs
from tests.companions import perturbed
from tests.speech.small_recognisers import RECOGNISERS, tekken
from tests.speech.small_whisper import sounds

SECONDS = (0.8, 0.5, 0.95)
MOST = 20
WAYS = {"plain": {}, "a chain": {"draft_length": 4}, "auto": {}, "a tree": {"tree": (3, 2)}, "lookup": {"draft_length": 3}}


@pytest.fixture(scope="module", params=RECOGNISERS)
def pair(request):
    return RECOGNISERS[request.param]()


@pytest.fixture(scope="module")
def waves():
    return sounds(*SECONDS)


def alone(model, processor, wave):
    """What the model's own `generate` writes about one recording."""
    inputs = request_inputs(model, processor, [wave], TranscriptionOptions())
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=MOST)[0].tolist()
    return ids if model.config.is_encoder_decoder else ids[inputs["input_ids"].shape[1] :]


def ended(ids, model):
    """`ids` without what stands behind the end."""
    end = model.generation_config.eos_token_id
    return ids[: ids.index(end) + 1] if end in ids else ids


@pytest.fixture(scope="module")
def expected(pair, waves):
    return [ended(alone(*pair, wave), pair[0]) for wave in waves]


@pytest.mark.parametrize("way", WAYS)
def test_every_recording_of_a_batch_is_that_of_generate_alone(pair, waves, expected, way):
    model, processor = pair
    drafter = {"plain": None, "lookup": "lookup"}.get(way, perturbed(copy.deepcopy(model)))
    out = mmspec.speech.transcribe(model, processor, waves, drafter, max_new_tokens=MOST, **WAYS[way])
    assert [ended(list(each.tokens), model) for each in out.transcripts] == expected
    assert [each.seconds for each in out.transcripts] == pytest.approx(SECONDS)
    assert out.texts == [processor.decode(ids, skip_special_tokens=True).strip() for ids in expected]


def test_its_own_drafter_is_accepted(pair, waves):
    model, processor = pair
    out = mmspec.speech.transcribe(model, processor, waves, copy.deepcopy(model), max_new_tokens=MOST, draft_length=4)
    assert out.stats.tokens_per_call > 3


@pytest.mark.parametrize(("name", "value"), [("timestamps", "word"), ("fallback", True), ("condition", True), ("task", "translate")])
def test_what_only_whisper_has_is_refused(pair, waves, name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        mmspec.speech.transcribe(*pair, waves, **{name: value})


def test_a_prompt_replaces_the_instruction_where_there_is_one(waves):
    model, processor = RECOGNISERS["GLM-ASR"]()
    asked = request_inputs(model, processor, waves, TranscriptionOptions(prompt="write down the input"))
    text = processor.tokenizer.decode(asked["input_ids"][0])
    assert "write down the input" in text
    assert "transcribe" not in text
    with pytest.raises(ValueError, match="prompt is 'red', but the request of Wav2Vec2Processor has none"):
        mmspec.speech.transcribe(*RECOGNISERS["Moonshine"](), waves, prompt="red")
    with pytest.raises(ValueError, match="language is 'de'"):
        mmspec.speech.transcribe(model, processor, waves, language="de")


def test_granite_speech_transcribes_with_its_adapter_and_needs_it_off_for_text_alone(waves):
    """Published checkpoints have an adapter that `generate` turns on for sound only."""
    model, processor = RECOGNISERS["Granite Speech"]()
    bare = alone(model, processor, waves[0])
    torch.manual_seed(0)
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    model.eval()
    expected = alone(model, processor, waves[0])
    assert expected != bare
    text = {"input_ids": torch.tensor([[10, 11, 12]])}
    with pytest.raises(ValueError, match=r"adapter is for sound and on: call model\.disable_adapters"):
        mmspec.text.generate(model, text, max_new_tokens=4)
    model.generate(**text, max_new_tokens=4, do_sample=False)  # turns it off
    out = mmspec.text.generate(model, text, "lookup", max_new_tokens=4)
    assert out.tokens.tolist() == model.generate(**text, max_new_tokens=4, do_sample=False)[:, 3:].tolist()
    inputs = request_inputs(model, processor, waves[:1], TranscriptionOptions())
    with pytest.raises(ValueError, match=r"adapter is for sound and off: call model\.enable_adapters"):
        mmspec.text.generate(model, inputs, max_new_tokens=4)
    heard = mmspec.speech.transcribe(model, processor, waves[:1], "lookup", max_new_tokens=MOST)
    assert list(heard.transcripts[0].tokens) == expected


def test_voxtral_is_asked_with_its_own_tokens(waves):
    """As `VoxtralProcessor.apply_transcription_request` with mistral-common 1.13.1: 25 places for each window of two seconds."""
    model, processor = RECOGNISERS["Voxtral"]()
    sounds = [waves[0], torch.cat([waves[0], waves[1], waves[2]])]
    asked = request_inputs(model, processor, sounds, TranscriptionOptions(language="en"))
    language = processor.tokenizer.encode("lang:en")
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(asked["input_ids"], asked["attention_mask"], strict=True)]
    assert rows == [[1, 3, 25, *[24] * 25 * windows, 4, *language, 34] for windows in (1, 2)]
    assert asked["input_features"].shape == (3, 16, 200)
    for option, message in (({"language": "english"}, "a code of two letters"), ({"prompt": "red"}, "prompt is 'red', but the request")):
        with pytest.raises(ValueError, match=message):
            mmspec.speech.transcribe(model, processor, sounds, **option)
    out = mmspec.speech.transcribe(model, processor, sounds, "lookup", max_new_tokens=MOST, draft_length=3)
    assert [ended(list(each.tokens), model) for each in out.transcripts] == [ended(alone(model, processor, each), model) for each in sounds]


def test_voxtral_is_loaded_with_its_processor(tmp_path):
    model, processor = RECOGNISERS["Voxtral"]()
    model.save_pretrained(tmp_path)
    processor.feature_extractor.save_pretrained(tmp_path)
    tekken(tmp_path)
    pair = load_transcriber(str(tmp_path), device="cpu")
    sound = sounds(0.8)
    expected = mmspec.speech.transcribe(model, processor, sound, max_new_tokens=MOST).texts
    assert mmspec.speech.transcribe(pair.target, pair.processor, sound, "lookup", max_new_tokens=MOST).texts == expected
