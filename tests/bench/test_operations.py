"""Plain decoding asks torch for about as many operations as the class's own `generate`. Counts, so that a busy machine is no fault."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.bench.operations import operations, operations_a_step
from mmspec.core.chains.denoiser import SpeculativeDenoiser
from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.noise import Noise
from mmspec.models.slot_cache import SlotLayer
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.families import image_model
from mmspec.vision.families.emu3 import Emu3
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen
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
        [texts[row % len(texts)][: 12 + row] for row in range(rows)], return_tensors="pt", padding=True, padding_side="left"
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
    lengths = {} if (rows, other) == (1, GREEDY) else {"short": 4, "long": 16}  # one case sees the cache grow
    assert ratio(mini.target, prompts(mini, rows), own, other, **lengths) <= MOST


def test_windows():
    """Layers with and without a window, past its length."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    kinds = ["sliding_attention", "full_attention"] * 4
    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(vocab_size=99, num_hidden_layers=8, layer_types=kinds, sliding_window=8, eos_token_id=None, **sizes)
    inputs = {"input_ids": torch.arange(5, 25)[None], "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    assert ratio(hf.Gemma3ForCausalLM(config).eval(), inputs, {}, GREEDY, short=4, long=16) <= MOST


def test_large_vocabulary():
    """Distributions on their support, at the depth of Gemma 3 270M."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(
        vocab_size=9216, num_hidden_layers=18, sliding_window=512, eos_token_id=None, initializer_range=1.0, **sizes
    )
    inputs = {"input_ids": torch.arange(5, 25)[None], "attention_mask": torch.ones(1, 20, dtype=torch.long)}
    own, model = {"temperature": 0.7, "top_p": 0.9}, hf.Gemma3ForCausalLM(config).eval()
    assert ratio(model, inputs, own, TRUNCATED, short=4, long=16) <= MOST


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
    lengths = {"short": 4, "long": 16}
    found = operations_a_step(spoken, **lengths) / operations_a_step(partial(theirs, model.model, inputs, **other), **lengths)
    assert found <= MOST


class Silent:
    """A stream that makes no sound."""

    def push(self, values):
        return iter(())

    def close(self):
        return iter(())


def painted(adapter, prompts, guidance) -> int:
    """Operations of plain pictures, without what a process does only once."""
    run = partial(mmspec.vision.generate, adapter, prompts, method="plain", guidance=guidance)
    run()
    return operations(run).total


@pytest.mark.parametrize("rows", [1, 4])
def test_janus(monkeypatch, rows):
    """Eight layers, with guidance. The class draws by torch's generator, mmspec by keyed noise."""
    monkeypatch.setitem(small_models.TEXT, "num_hidden_layers", 8)
    model, inputs = small_models.janus(), small_models.token_prompts(rows, end=5)
    options = {"generation_mode": "image", "guidance_scale": 3.0, "do_sample": True, "top_k": 0}
    other = operations(lambda: model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **options)).total
    assert painted(image_model(model), inputs, 3.0) / other <= MOST


@pytest.mark.parametrize("rows", [1, 4])
def test_emu3(monkeypatch, rows):
    """Eight layers, by its documentation's recipe: the tokens that are allowed at every step are a function of the row."""
    monkeypatch.setitem(small_models.TEXT, "num_hidden_layers", 8)
    model, (height, width) = small_models.emu3(), (4, 5)
    inputs, codes = small_models.token_prompts(rows, end=4), model.vocabulary_mapping.image_tokens
    tail = [[token] for token in (8, 9, small_models.EOS)]
    last, end = inputs["input_ids"].shape[1] - 1, (width + 1) * height

    def allowed(row, ids):
        offset = len(ids) - last
        return tail[offset - end - 1] if offset > end else [7] if offset % (width + 1) == 0 else codes

    options = {"do_sample": True, "top_k": 0, "max_new_tokens": end + 3, "prefix_allowed_tokens_fn": allowed}
    other = operations(lambda: model.generate(**inputs, **options)).total
    assert painted(Emu3(model, size=(8, 10)), inputs, None) / other <= MOST


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_llamagen(rows, guidance):
    """At the depth of LlamaGen-L, against the shortest loop over the network: keys are concatenated, nothing ends early."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 24, "num_attention_heads": 2, "intermediate_size": 16}
    network, classes = LlamaGen(LlamaGenConfig(vocab_size=30, grid=4, classes=5, **sizes)).eval(), list(range(rows))
    other = operations(partial(shortest, network, classes, guidance)).total
    assert painted(LlamaGenPictures(network), classes, guidance) / other <= MOST


def shortest(network, classes, guidance):
    """Codes [B, T] of pictures, with guidance by doubled rows."""
    rows = torch.tensor(classes if guidance is None else classes + [network.config.classes] * len(classes))
    embeds, cells, cache, codes = network.cls_embedding(rows), torch.full((len(rows), 1), -1), Concatenated(), []
    for cell in range(network.config.grid**2):
        logits = network.output(network(embeds, cells, None, cache)[0][:, -1])
        if guidance is not None:
            cond, uncond = logits.chunk(2)
            logits = uncond + guidance * (cond - uncond)
        codes.append(torch.multinomial(logits.softmax(-1), 1))
        embeds = network.tok_embeddings(codes[-1] if guidance is None else torch.cat([codes[-1]] * 2))
        cells = torch.full_like(cells, cell)
    return torch.cat(codes, 1)


class Concatenated:
    """Keys and values of every layer, one more column a step."""

    def __init__(self):
        self.layers = {}

    def update(self, keys, values, layer):
        before = self.layers.get(layer)
        self.layers[layer] = (keys, values) if before is None else (torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2))
        return self.layers[layer]


@pytest.mark.parametrize(("rows", "most"), [(1, 1.5), (8, 2.0)])
def test_a_round_inside_a_chain(rows, most):
    """Beside the call of the head, a round takes the operations of at most two; its tables, made once a token, are left out."""
    mini, keys = mmspec.load("continuous").target, Noise.from_seed(0, rows).value(torch.zeros(rows, 1, dtype=torch.long))
    head, schedule = mini.model.head, Sampling(steps=64).filled(mini.model.config).noise_schedule(1.0)
    with torch.no_grad():
        z = mini.model.states(torch.arange(rows), torch.zeros(rows, 1, 8))[:, -1:]
        modulations = head.condition(head.embed_times(schedule.timesteps[:rows]), z[:, 0])
    call = operations(lambda: head.denoise(torch.zeros(rows, 8), modulations)).total
    denoiser, counted = SpeculativeDenoiser.of(head, schedule, None, mini.linear), []
    assert denoiser.sampler is not None
    run = denoiser.sampler._round

    def counting(*given):
        kept = []
        counted.append(operations(lambda: kept.append(run(*given))).total)
        return kept[0]

    denoiser.sampler._round = counting
    denoiser.draw(z, keys, 8)  # what is made once
    once = len(counted)
    denoiser.draw(z, keys, 8)
    rounds = counted[once + 1 :]
    assert sum(rounds) / len(rounds) - call <= most * call
    denoiser.sampler._round = run
    plain = operations(lambda: Denoiser(head, schedule).draw(z, keys, 8)).total
    assert operations(lambda: denoiser.draw(z, keys, 8)).total < plain / 2.5


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
    assert ratio(mini.target, inputs, {}, GREEDY, short=4, long=16) > MOST
