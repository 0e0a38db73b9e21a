"""Plain decoding asks torch for about as many operations as the class's own `generate`. Counts, so that a busy machine is no fault."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.bench.operations import operations, operations_a_step
from mmspec.models.slot_cache import SlotLayer
from mmspec.vision.families import image_model
from tests.vision import small_models

MOST = 1.10
GREEDY = {"do_sample": False}
DRAWN = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
TRUNCATED = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9}


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


def prompts(mini, rows: int) -> dict[str, torch.Tensor]:
    """Prompts of unequal lengths, padded on the left."""
    texts = mini.processor.batch_decode(mini.examples["input_ids"], skip_special_tokens=True)
    found = mini.processor(
        [texts[row % len(texts)][: 12 + 3 * row] for row in range(rows)], return_tensors="pt", padding=True, padding_side="left"
    )
    return {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}


def ours(model, inputs, most, **options):
    return mmspec.text.generate(model, inputs, max_new_tokens=most, **options).tokens.shape[1]


def theirs(model, inputs, most, **options):
    torch.manual_seed(0)
    return model.generate(**inputs, max_new_tokens=most, **options).shape[1] - inputs["input_ids"].shape[1]


def ratio(model, inputs, own, other, **lengths) -> float:
    mine = operations_a_step(partial(ours, model, inputs, **own), **lengths)
    return mine / operations_a_step(partial(theirs, model, inputs, **other), **lengths)


@pytest.mark.parametrize(
    ("own", "other"),
    [({}, GREEDY), ({"temperature": 1.0}, DRAWN), ({"temperature": 0.7, "top_p": 0.9}, TRUNCATED)],
    ids=["greedy", "drawn", "truncated"],
)
@pytest.mark.parametrize("rows", [1, 32])
def test_text(mini, rows, own, other):
    assert ratio(mini.target, prompts(mini, rows), own, other) <= MOST


def test_windows():
    """Layers with and without a window, past its length."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    kinds = ["sliding_attention", "full_attention"] * 4
    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(vocab_size=99, num_hidden_layers=8, layer_types=kinds, sliding_window=8, eos_token_id=None, **sizes)
    inputs = {"input_ids": torch.arange(5, 25)[None], "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    assert ratio(hf.Gemma3ForCausalLM(config).eval(), inputs, {}, GREEDY) <= MOST


def test_large_vocabulary():
    """Distributions on their support, at the depth of Gemma 3 270M."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(
        vocab_size=9216, num_hidden_layers=18, sliding_window=512, eos_token_id=None, initializer_range=1.0, **sizes
    )
    inputs = {"input_ids": torch.arange(5, 25)[None], "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    assert ratio(hf.Gemma3ForCausalLM(config).eval(), inputs, {"temperature": 0.7, "top_p": 0.9}, TRUNCATED) <= MOST


@pytest.mark.parametrize(("temperature", "other", "layers"), [(0.0, GREEDY, None), (1.0, DRAWN, 24)], ids=["greedy", "drawn"])
def test_speech(monkeypatch, temperature, other, layers):
    """Without the codec: `generate` stops at the codes. Draws at the depth of published codec language models."""
    mini = mmspec.load("speech")
    model, texts, voices = mini.target, mini.examples["texts"][:1], mini.examples["voice"][:1]
    prompt = model.encode(texts, voices)
    monkeypatch.setattr(type(model), "stream", lambda self: Silent())
    if layers is not None:
        config = copy.deepcopy(model.model.config)
        config.num_hidden_layers = layers
        torch.manual_seed(0)
        model = replace(model, model=type(model.model)(config).eval())

    def spoken(most):
        options = {"max_seconds": most / model.pace + 1e-3, "temperature": temperature}
        return mmspec.speech.synthesize(model, texts, voice=voices, **options).tokens.shape[1]

    inputs = {name: prompt[name] for name in ("input_ids", "attention_mask")}
    found = operations_a_step(spoken) / operations_a_step(partial(theirs, model.model, inputs, **other))
    assert found <= MOST


class Silent:
    """A stream that makes no sound."""

    def push(self, values):
        return iter(())

    def close(self):
        return iter(())


def test_pictures_with_guidance(monkeypatch):
    """Eight layers. The class draws by torch's generator, mmspec by keyed noise."""
    monkeypatch.setitem(small_models.TEXT, "num_hidden_layers", 8)
    model = small_models.janus()
    ids = torch.tensor([[1, 12, 13, 14, 5]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    adapter = image_model(model)

    def painted():
        mmspec.vision.generate(adapter, inputs, method="plain", guidance=3.0)

    painted()
    own = operations(painted).total
    options = {"generation_mode": "image", "guidance_scale": 3.0, "do_sample": True, "top_k": 0}
    assert own / operations(lambda: model.generate(ids, attention_mask=inputs["attention_mask"], **options)).total <= MOST


# --- the counter ------------------------------------------------------------------------------------------------------


def test_operations_are_counted_by_name():
    x = torch.ones(3, 5)
    found = operations(lambda: (x + 1).t().sum())
    assert found.by_name == {"add": 1, "t": 1, "sum": 1}
    assert (found.total, found.copying, found.largest) == (3, 2, 15)


def test_steps_are_those_of_the_longer_generation_only():
    def run(most):
        for _ in range(7 + 3 * most):
            torch.ones(1) + 1
        return most

    assert operations_a_step(run) == 6
    with pytest.raises(ValueError, match="both took 5 steps"):
        operations_a_step(lambda most: run(5))


def test_copied_keys_and_values_are_counted(mini, monkeypatch):
    """A cache that hands out copies is over the limit."""
    inputs, update = prompts(mini, 1), SlotLayer.update
    monkeypatch.setattr(
        SlotLayer, "update", lambda self, *given: tuple(store.clone().view(-1).view(store.shape) for store in update(self, *given))
    )
    assert ratio(mini.target, inputs, {}, GREEDY) > MOST
