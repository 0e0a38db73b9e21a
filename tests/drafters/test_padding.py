"""Vocabulary sizes that one tokenizer's models have are accepted, and those of other tokenizers refused in one line."""

from types import SimpleNamespace

import pytest

import mmspec
from mmspec.drafters.model.padding import refuse_other_tokenizer
from tests.text.test_whisper import inputs, multilingual, narrower


def model(size, model_type="llama", **ids):
    config = SimpleNamespace(vocab_size=size, model_type=model_type, **ids)
    config.get_text_config = lambda decoder: config
    return SimpleNamespace(config=config, generation_config=SimpleNamespace())


QWEN = {"bos_token_id": 151643, "eos_token_id": 151645}
SAME = {
    "Qwen2.5 7B and 0.5B": (model(152064, "qwen2", **QWEN), model(151936, "qwen2", **QWEN)),
    "Qwen2.5, instructed and base": (model(152064, **QWEN), model(151936, bos_token_id=151643, eos_token_id=151643)),
    "Pythia 12B and 70M": (model(50688, "gpt_neox", eos_token_id=0), model(50304, "gpt_neox", eos_token_id=0)),
    "GPT-J and GPT-2": (model(50400, "gptj", eos_token_id=50256), model(50257, "gpt2", eos_token_id=50256)),
    "Phi-2 and CodeGen": (model(51200, "phi", eos_token_id=50256), model(50295, "codegen", eos_token_id=[50256])),
    "Llama-2 with a pad token added": (model(32001, bos_token_id=1, eos_token_id=2), model(32000, bos_token_id=1, eos_token_id=2)),
    "LLaVA and Vicuna": (model(32064, "llava", bos_token_id=1, eos_token_id=2), model(32000, bos_token_id=1, eos_token_id=2)),
    "Gemma-3 with and without pictures": (model(262208, eos_token_id=[1, 106]), model(262144, eos_token_id=1)),
    "nothing named": (model(32000), model(32003)),
    "one size": (model(32000, eos_token_id=2), model(32000, eos_token_id=7)),
}
OTHER = {
    "target has 51864 tokens, the drafter 51865, and Whisper's ids": (model(51864, "whisper"), model(51865, "whisper")),
    "the drafter 51866, and Whisper's ids": (model(51865, "whisper", eos_token_id=7), model(51866, "whisper", eos_token_id=7)),
    "eos_token_id is 50256 in the target and 2 in the drafter": (model(50257, eos_token_id=50256), model(50272, eos_token_id=2)),
    "eos_token_id is 0 in": (model(50432, eos_token_id=0, bos_token_id=0), model(50257, eos_token_id=50256, bos_token_id=50256)),
    "eos_token_id is 1 in": (model(32128, "t5", eos_token_id=1), model(32000, bos_token_id=1, eos_token_id=2)),
    "49155 is no padded size": (model(49155), model(49024)),
    "target has 1000 tokens, the drafter 2000;": (model(1000), model(2000)),
}


@pytest.mark.parametrize("name", SAME)
def test_one_tokenizers_sizes_are_accepted(name):
    for pair in (SAME[name], SAME[name][::-1]):
        refuse_other_tokenizer(*pair)


@pytest.mark.parametrize("words", OTHER)
def test_other_tokenizers_are_refused_in_one_line(words):
    with pytest.raises(ValueError, match=words) as caught:
        refuse_other_tokenizer(*OTHER[words])
    assert "\n" not in str(caught.value)
    assert "aligned_drafter" in str(caught.value)


def test_an_english_whisper_does_not_draft_for_a_multilingual_one():
    target, given, english = multilingual(), inputs(), narrower(vocab_size=59)
    for call in (
        lambda: mmspec.text.generate(target, given, drafter=english, max_new_tokens=4),
        lambda: target.generate(**given, max_new_tokens=4, custom_generate=mmspec.text.speculate(english)),
    ):
        with pytest.raises(ValueError, match="target has 60 tokens, the drafter 59, and Whisper's ids differ where its sizes do"):
            call()
