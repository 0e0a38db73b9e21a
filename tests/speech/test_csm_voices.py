"""CSM by one call from a folder: texts, speakers and voices from recordings, as its processor lays them out."""

from functools import cache

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

from mmspec.speech import VoiceSample, synthesize
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.csm import CsmModel
from tests.speech.small_csm import SOUND, SOUND_END, csm

RATE, HOP, STEPS = 24000, 1920, 8
LETTERS = " abcdefghijklmnopqrstuvwxyz"
TEMPLATE = """{% for message in messages %}{{ '[' + message['role'] + ']' }}{% for part in message['content'] %}
{%- if part['type'] == 'audio' %}{{ '<|AUDIO|><|audio_eos|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"""


def network(**changes):
    """With Mimi's own strides, which the processor counts frames by."""
    return csm(upsampling_ratios=[8, 6, 5, 4], sampling_rate=RATE, **changes)


def processor():
    words = ["<pad>", "[", "]", "0", "1", *LETTERS, "<unk>"]
    ids = dict(zip(words, range(len(words)), strict=True)) | {"<|AUDIO|>": SOUND, "<|audio_eos|>": SOUND_END}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    told = {"pad_token": "<pad>", "unk_token": "<unk>", "additional_special_tokens": ["<|AUDIO|>", "<|audio_eos|>"]}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=made, **told)
    return hf.CsmProcessor(hf.EncodecFeatureExtractor(sampling_rate=RATE), tokenizer, chat_template=TEMPLATE)


@cache
def parts():
    return network(), processor()


def voice():
    return VoiceSample(torch.randn(3 * HOP, generator=torch.Generator().manual_seed(2)), RATE, "red bird")


def said(text, speaker="0", sample=None):
    """The class's own frames [S, K] for one conversation."""
    net, reader = parts()
    told, sound = f"[{speaker}]{text}", {}
    if sample is not None:
        told, sound = f"[0]red bird<|AUDIO|><|audio_eos|>{told}", {"audio": [sample.samples.numpy()]}
    inputs = reader(text=[told], add_special_tokens=False, return_tensors="pt", **sound)
    frames = net.generate(**inputs, do_sample=False, max_new_tokens=STEPS)[0].tolist()
    ends = [step + 1 for step, frame in enumerate(frames) if not any(frame[:-1])]
    return frames[: min(ends, default=len(frames))]


def rows_of(out):
    return [row[:length] for row, length in zip(out.tokens.tolist(), out.lengths.tolist(), strict=True)]


def test_a_folder_speaks_as_the_class_does(tmp_path):
    net, reader = parts()
    net.save_pretrained(tmp_path)
    reader.save_pretrained(tmp_path)
    model = load_checkpoint(str(tmp_path))
    small = CsmModel(network(seed=1, layers=1, width=24))
    expected = [said("three", sample=voice()), said("no"), said("a bird", "1")]
    assert said("three") != expected[0]
    for drafter in (None, small):
        how = {"temperature": 0, "draft_length": 3, "max_seconds": (STEPS + 0.5) / model.pace}
        out = synthesize(model, ["three", "no", "a bird"], drafter, voice=[voice(), None, "1"], **how)
        assert rows_of(out) == expected


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("", None, "is empty"),
        ("no", VoiceSample(torch.ones(3), RATE), "the voice has no text"),
        ("no", "ann", "unknown voice 'ann'; valid: 0, 1"),
    ],
)
def test_bad_requests_are_told_in_one_line(text, given, message):
    with pytest.raises(ValueError, match=message):
        synthesize(CsmModel(*parts()), [text], voice=given)
