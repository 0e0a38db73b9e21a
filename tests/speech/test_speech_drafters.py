"""Drafters of speech models in the layouts they are published in: `speculators` for CosyVoice's language model, SpecForge's for
Qwen2-Audio.

The sizes that the published settings name are kept: DSpark of 3 layers and blocks of 8 over a part of the vocabulary with a Markov head and
an estimate of acceptance, DFlash of 5 layers and blocks of 4, EAGLE-3 of one layer. The weights are random.
"""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

import mmspec
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.drafters.checkpoints.nets import begin_training, new_net
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.speech import synthesize
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.recognition.options import TranscriptionOptions
from mmspec.speech.recognition.prompted import request_inputs
from mmspec.speech.sampling.ras import repetition_aware
from tests.speech.small_recognisers import qwen2_audio
from tests.speech.small_whisper import sounds
from tests.speech.test_codec_lm import TEXTS, VALUES, llasa, rows_of
from tests.speech.test_transcribe_prompted import MOST, alone, ended

PUBLISHED = {
    "dspark": {"layers": 3, "block": 8, "markov": 8, "markov_kind": "vanilla", "confidence": True, "from_anchor": True, "values": 24},
    "dflash": {"layers": 5, "block": 4},
    "eagle3": {"values": 24},
}
SPARK = {
    "num_hidden_layers": 3,
    "block_size": 8,
    "draft_vocab_size": 24,
    "markov_head_type": "vanilla",
    "confidence_head_with_markov": True,
}
SHAPES = {"a chain": {"draft_length": 3}, "a tree": {"tree": (3, 2)}, "auto": {}}


def lively(net, target):
    """`net` with weights that matter, drafting the values that come first."""
    torch.manual_seed(3)
    begin_training(net, target, torch.arange(60).repeat(2))
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return net.eval()


def made(kind, target):
    """A net of the published settings for `target`, without the norms that newly trained ones have."""
    options = PUBLISHED[kind] | {"reads": [1, 2, 3], "fc_norm": False}
    if kind != "eagle3":
        options["mask_id"] = target.config.get_text_config(decoder=True).vocab_size - 1
    return lively(new_net(kind, target, options | ({"shared_head": False} if "values" in options else {})), target)


def by_authors(kind, net, target, folder):
    """Write `net` as SpecForge writes it: layer ids number outputs, and the target's embedding and head are left out."""
    folder.mkdir()
    config, state = target.config.get_text_config(decoder=True), dict(net.state_dict())
    sizes = {name: getattr(config, name) for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")}
    sizes |= {"vocab_size": config.vocab_size, "max_position_embeddings": config.max_position_embeddings, "rms_norm_eps": 1e-6}
    if kind == "dflash":
        own = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5, "block_size": 4}
        own |= {"head_dim": net.layer_config.head_dim, "hidden_act": "silu", "attention_bias": False}
        own |= {"rope_theta": net.layer_config.rope_parameters["rope_theta"]}
        own["dflash_config"] = {"mask_token_id": net.mask_id, "target_layer_ids": [read - 1 for read in net.reads]}
    else:
        own = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "draft_vocab_size": 24}
        own |= {"rope_theta": net.llama.rope_parameters["rope_theta"], "hidden_act": "silu", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(sizes | own), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


# --- CosyVoice 2 and 3: a Qwen2 that writes codes, and files of `speculators` -----------------------------------------


@pytest.fixture(scope="module")
def voice():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VALUES, max_position_embeddings=120, **sizes, **ids)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    return llasa(model=model)


@pytest.fixture(scope="module", params=PUBLISHED)
def spoken_drafter(request, voice, tmp_path_factory):
    """A `speculators` folder of the verifier `voice.model`, loaded."""
    folder = tmp_path_factory.mktemp("speculators") / request.param
    net = made(request.param, voice.model)
    export_speculators(net, folder, voice.model, verifier_name="a codec language model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["speculators_model_type"] == request.param
    assert config["speculators_config"]["verifier"]["architectures"] == ["Qwen2ForCausalLM"]
    if request.param == "dspark":
        assert SPARK.items() <= {**config["transformer_layer_config"], **config}.items()
    found = load_drafter(folder, voice.model)
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in net.state_dict().items())
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_codes_are_those_of_plain_decoding(voice, spoken_drafter, temperature, shape):
    """Greedy, and coupled at CosyVoice's temperature; a batch of texts of different lengths, and each alone."""
    options = {"temperature": temperature, "seed": [3, 8, 5], "max_seconds": 24.5 / voice.pace}
    plain = rows_of(synthesize(voice, TEXTS, **options))
    assert len({tuple(row) for row in plain}) > 1
    out = synthesize(voice, TEXTS, spoken_drafter, **options, **SHAPES[shape])
    assert rows_of(out) == plain
    assert out.stats.exactness == "token-exact"
    if shape != "auto":
        assert out.stats.drafted > 0
    for row, text in enumerate(TEXTS):
        one = synthesize(voice, [text], spoken_drafter, **options | {"seed": options["seed"][row]}, **SHAPES[shape])
        assert rows_of(one) == [plain[row]]


def test_codes_under_the_samplers_of_cosyvoice(voice, spoken_drafter):
    """Repetition-aware sampling (2), and a repetition penalty with top-k (3): the drafter's distributions are penalised, too."""
    for sampling in (SpeechSampling(top_p=0.8, top_k=25), SpeechSampling(temperature=0.8, top_k=15, repetition_penalty=1.1)):
        speaker = replace(voice, sampling=sampling, extra=(repetition_aware(),) if sampling.top_k == 25 else ())
        options = {"seed": [3, 8, 5], "max_seconds": 24.5 / voice.pace}
        plain = rows_of(synthesize(speaker, TEXTS, **options))
        for shape in ("a chain", "a tree"):
            assert rows_of(synthesize(speaker, TEXTS, spoken_drafter, **options, **SHAPES[shape])) == plain


# --- Qwen2-Audio: SpecForge's files and those of `speculators` --------------------------------------------------------


@pytest.fixture(scope="module")
def hearing():
    return qwen2_audio(4)


@pytest.fixture(scope="module", params=["dflash by its authors", "eagle3 by SpecForge", "dflash", "dspark"])
def heard_drafter(request, hearing, tmp_path_factory):
    kind, model = request.param.split()[0], hearing[0]
    folder, net = tmp_path_factory.mktemp("audio") / kind, made(kind, model)
    if "by" in request.param:
        found = load_drafter(by_authors(kind, net, model, folder), model, **({"states": net.reads} if kind == "eagle3" else {}))
    else:
        export_speculators(net, folder, model, verifier_name="an audio language model")
        found = load_drafter(folder, model)
    state = found.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items() if name in state)
    assert found.reads == net.reads
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_transcripts_are_those_of_generate_alone(hearing, heard_drafter, shape):
    model, processor = hearing
    waves = sounds(0.8, 0.5, 0.95)
    out = mmspec.speech.transcribe(model, processor, waves, heard_drafter, max_new_tokens=MOST, **SHAPES[shape])
    expected = [ended(alone(model, processor, wave), model) for wave in waves]
    assert [ended(list(each.tokens), model) for each in out.transcripts] == expected
    assert out.stats.exactness == "token-exact"


@pytest.mark.parametrize("shape", ["a chain", "a tree"])
def test_sampled_answers_are_those_of_plain_decoding(hearing, heard_drafter, shape):
    model, processor = hearing
    waves = sounds(0.8, 0.5)
    inputs = request_inputs(model, processor, waves, TranscriptionOptions())
    options = {"temperature": 1.0, "seed": 4, "max_new_tokens": MOST}
    plain = mmspec.text.generate(model, inputs, **options)
    out = mmspec.text.generate(model, inputs, heard_drafter, **options, **SHAPES[shape])
    assert out.sequences.tolist() == plain.sequences.tolist()
    assert out.stats.drafted > 0
