"""A canary for every reach into transformers' internals: each fails when a release no longer works as `core.compat` assumes."""

import ast
import inspect
import os
from pathlib import Path

import pytest
import torch
import transformers as hf

from mmspec.core import compat
from tests.conftest import llama
from tests.families import LLAMA
from tests.speech.small_codecs import encodec
from tests.speech.small_csm import csm

ROOT = Path(__file__).parents[2]


def test_this_is_the_release_that_was_asked_for():
    """`.ci/oldest` names the one it has installed."""
    assert hf.__version__ == os.environ.get("MMSPEC_TRANSFORMERS", hf.__version__)


def test_attention_can_be_read_and_asked_for():
    config = hf.LlamaConfig(**LLAMA)
    compat.ask_attention(config, "eager")
    assert compat.attention_of(config) == "eager"
    assert compat.attention_of(hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)).config) == "sdpa"


def test_eager_configs_are_copies():
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    own = compat.eager_configs([model.config, model.model.config])
    assert compat.attention_of(own[id(model.config)]) == "eager"
    assert compat.attention_of(model.config) == "sdpa"
    model.config = model.model.config = own[id(model.config)]
    for layer in model.model.layers:
        layer.self_attn.config = model.config
    assert model(torch.arange(3, 8)[None], output_attentions=True).attentions[0].shape[-1] == 5


def test_models_say_that_they_keep_a_state():
    assert compat.is_stateful(hf.MambaForCausalLM(hf.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1)))
    assert not compat.is_stateful(llama(1, seed=0))


def test_configs_know_where_they_were_loaded_from(tmp_path):
    llama(1, seed=0).save_pretrained(tmp_path)
    assert compat.name_of(hf.LlamaForCausalLM.from_pretrained(tmp_path).config) == str(tmp_path)


def test_csm_embeds_prompts_without_sound_by_its_table():
    model, ids = csm(), torch.tensor([[3, 5, 7]])
    assert torch.equal(compat.csm_embeddings(model, ids, None, None), model.embed_text_tokens(ids))


def test_pocket_tts_names_its_placeholders():
    if (kind := getattr(hf, "PocketTTSForConditionalGeneration", None)) is not None:
        assert list(inspect.signature(kind._placeholder_token_ids).parameters) == ["self"]


def test_vibevoice_makes_a_scheduler_and_draws_sound():
    kind = hf.VibeVoiceForConditionalGeneration
    assert list(inspect.signature(kind._build_default_noise_scheduler).parameters) == ["generation_config"]
    assert compat.is_vibevoice(kind)
    assert not compat.is_vibevoice(hf.LlamaForCausalLM)


def test_encodec_decodes_one_chunk_as_it_decodes_all():
    codec = encodec()
    codes = torch.randint(codec.config.codebook_size, (1, codec.quantizer.get_num_quantizers_for_bandwidth(None), 6))
    whole = codec.decode(codes[None], [None]).audio_values
    assert torch.allclose(compat.encodec_frame(codec, codes), whole[..., : compat.encodec_frame(codec, codes).shape[-1]], atol=1e-5)


def test_the_compilers_limits_are_put_back():
    before = torch._dynamo.config.recompile_limit, torch._dynamo.config.accumulated_recompile_limit
    with compat.many_shapes(1000):
        assert torch._dynamo.config.recompile_limit == 1000
        assert torch._dynamo.config.accumulated_recompile_limit == 4000
    assert (torch._dynamo.config.recompile_limit, torch._dynamo.config.accumulated_recompile_limit) == before


# --- no reach elsewhere -----------------------------------------------------------------------------------------------

ALLOWED = {  # (file, name): why
    ("core/cache.py", "_dynamo"): "torch: addresses of the cache are static",
    ("core/memo.py", "_version"): "torch: how often a tensor was written to",
    ("core/module_copy.py", "_modules"): "torch: a module's parts",
    ("core/module_copy.py", "_buffers"): "torch: a module's parts",
    ("core/module_copy.py", "_parameters"): "torch: a module's parts",
    ("core/module_copy.py", "_hf_hook"): "accelerate: marks modules whose hooks move weights",
    ("core/module_copy.py", "_torchdynamo_orig_callable"): "torch: what a compiled function was made from",
    ("vision/families/imagegpt.py", "_modules"): "torch: a module's parts",
    ("core/kernel.py", "_with_noise"): "mmspec's own",
    ("core/thinning.py", "_tries"): "mmspec's own",
    ("minis/shop.py", "_base"): "mmspec's own",
    ("vision/families/glm_image.py", "_resize"): "mmspec's own",
    ("vision/lanes.py", "_cut"): "mmspec's own",
    ("core/encoder_decoder.py", "_relative_position_bucket"): "moves to core.compat with the other encoder-decoder models",
    ("text/speculate.py", "currentframe"): "moves to core.compat with the drop-in",
}


BY_NAME = ("getattr", "hasattr", "setattr", "delattr")
MUTANTS = ("model._a", "getattr(model, '_a')", "inspect.currentframe()", "sys._getframe(1)", "from transformers import _a")


def reaches(source: str) -> set[str]:
    """Private names that are read of anything but self and cls, by attribute or by name, and reaches for frames."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        name = None
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            name = node.attr
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
        ):
            own = isinstance(node.args[0], ast.Name) and node.args[0].id in ("self", "cls")
            name = node.args[1].value if not own and isinstance(node.args[1], ast.Constant) else None
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("transformers", "torch"):
            found |= {part for part in (*node.module.split("."), *(alias.name for alias in node.names)) if part.startswith("_")}
        if isinstance(name, str) and ((name.startswith("_") and not name.startswith("__")) or name in ("currentframe", "_getframe")):
            found.add(name)
    return found


def test_nothing_else_reaches_into_other_libraries():
    files = {str(path.relative_to(ROOT / "mmspec")): path for path in (ROOT / "mmspec").rglob("*.py")}
    found = {
        (name, private)
        for name, path in files.items()
        if not name.startswith("core/compat")
        for private in reaches(path.read_text(encoding="utf-8"))
    }
    assert not found - ALLOWED.keys(), "put these into mmspec/core/compat.py, each with a canary here"
    assert not ALLOWED.keys() - found, "these are gone: take them off the list"


@pytest.mark.parametrize(
    "line",
    ["model._private", "getattr(model, '_private')", "inspect.currentframe()", "sys._getframe(1)", "from transformers import _private"],
)
def test_mutant_a_new_reach_is_found(line):
    assert reaches(line)
