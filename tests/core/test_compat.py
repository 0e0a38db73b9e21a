"""A canary for every reach into transformers' internals: each fails when a release no longer works as `mmspec.models.compat` assumes."""

import ast
import copy
import inspect
import os
from pathlib import Path

import accelerate
import pytest
import torch
import transformers as hf
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import logits_process as known
from transformers.generation.streamers import BaseStreamer
from transformers.video_utils import VideoMetadata

import mmspec
from mmspec.models import compat
from mmspec.models.changed import replaced
from mmspec.models.compat import mtp, shared_states
from mmspec.models.compat.compiler import reset_compiler
from mmspec.models.module_copy import own_copy
from tests.conftest import llama
from tests.families import FAMILIES, LLAMA, build, inputs_for
from tests.films import batch, row
from tests.seeing import SIGHTS
from tests.sizes import STATES
from tests.speech import small_whisper
from tests.speech.small_codecs import encodec
from tests.speech.small_csm import csm
from tests.sweep import image as pictures
from tests.sweep.causal import DYNAMIC, LONGROPE, VARIANTS, make

ROOT = Path(__file__).parents[2]
NEW = pytest.mark.skipif(not STATES, reason="needs transformers 5.23")


def test_whisper_openings_are_made_by_the_models_own_method():
    model = build(FAMILIES["Whisper"])
    config = compat.copied(model.generation_config)
    config.decoder_start_token_id, config.return_timestamps = 3, False
    config.lang_to_id, config.task_to_id, config.no_timestamps_token_id = {"<|en|>": 40, "<|de|>": 41}, {"transcribe": 44}, 49
    states = model.get_encoder()(inputs_for("Whisper", 3)["input_features"])
    found = compat.whisper_opening(model, config, states, 3)
    expected = model.detect_language(encoder_outputs=states, generation_config=config)
    assert found.tolist() == [[3, language, 49] for language in expected.tolist()]
    config.language = "en"
    assert compat.whisper_opening(model, config, None, 2).tolist() == [[3, 40, 44, 49]] * 2
    assert not hasattr(model.generation_config, "lang_to_id")


def test_a_whisper_encoder_reads_fewer_frames_as_one_of_a_shorter_window_does():
    model, frames = build(FAMILIES["Whisper"]), inputs_for("Whisper", 2)["input_features"][..., :40]
    config = copy.deepcopy(model.config)
    config.max_source_positions = 20
    short, weights = hf.WhisperForConditionalGeneration(config).eval(), model.state_dict()
    weights["model.encoder.embed_positions.weight"] = weights["model.encoder.embed_positions.weight"][:20]
    short.load_state_dict(weights)
    with torch.no_grad():
        own = own_copy(model)
        with replaced(*compat.whisper_window_changes(own, 40)):
            found = own.get_encoder()(frames)[0]
        assert torch.equal(found, short.get_encoder()(frames)[0])
        for encoder in (own.get_encoder(), model.get_encoder()):
            with pytest.raises(ValueError, match="length 100"):
                encoder(frames)


def test_words_of_a_whisper_segment_have_the_times_of_their_tokens():
    letters = small_whisper.tokenizer()
    ids = [small_whisper.STAMPS, *letters(" ab cd", add_special_tokens=False)["input_ids"], small_whisper.STAMPS + 40]
    times = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8]
    assert compat.whisper_words(letters, ids, times, None) == [(" ab", 0.0, 0.3), (" cd", 0.3, 0.6)]
    assert compat.whisper_words(letters, ids, times, small_whisper.IDS["<|de|>"]) == [(" ab", 0.0, 0.3), (" cd", 0.3, 0.6)]


def test_a_custom_decoding_function_finds_what_the_encoder_was_given():
    seen = []

    def custom(model, input_ids, **kwargs):
        seen.append(compat.encoder_source(len(input_ids)))
        return torch.cat([input_ids, input_ids], 1)

    for name in ("Whisper", "T5"):
        model, given = build(FAMILIES[name]), inputs_for(name, 2)
        model.generate(**given, custom_generate=custom, max_new_tokens=2)
        found, source = seen.pop(), model.main_input_name
        assert list(found) == [source]
        assert torch.equal(found[source], given[source])
    model.generate(**given, custom_generate=custom, max_new_tokens=2, do_sample=True, num_return_sequences=2)
    assert torch.equal(seen.pop()["input_ids"], given["input_ids"].repeat_interleave(2, 0))
    model.generate(encoder_outputs=model.get_encoder()(**given), custom_generate=custom, max_new_tokens=2)
    assert seen.pop() == {}
    assert compat.encoder_source(1) == {}


def test_positions_that_generate_hands_to_a_forward():
    """From 0; a forward that gets none may count in another way, as RoBERTa's does, from behind the padding id."""
    config = hf.RobertaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, is_decoder=True)
    model, seen = hf.RobertaForCausalLM(config).eval(), []
    model.roberta.embeddings.position_embeddings.register_forward_pre_hook(lambda _, args: seen.append(args[0].tolist()))
    ids = torch.tensor([[5, 6, 7]])
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)
    model(input_ids=ids, **compat.generation_positions(model, ids))
    model(input_ids=ids)
    assert seen == [[[0, 1, 2]], [[0, 1, 2]], [[2, 3, 4]]]
    assert compat.generation_positions(build(SIGHTS["Qwen2-VL"].case), ids) == {}


def test_decoders_that_read_pooled_states_are_known():
    cases = {case.name: case for case in pictures.cases()}
    model, inputs = cases["pp_formulanet"].make(), cases["pp_formulanet"].alone(None, 0)
    assert compat.decodes_pooled_states(model)
    assert not compat.decodes_pooled_states(cases["vision-encoder-decoder"].make())
    with pytest.raises(ValueError, match="decoder reads what its encoder pools"):
        mmspec.text.generate(model, inputs, max_new_tokens=2)


def test_rope_deltas_are_noted_on_the_base_module_and_put_back():
    model, inputs = build(SIGHTS["Qwen2-VL"].case), batch("Qwen2-VL", [row("Qwen2-VL", 2, ("picture", 4, 8), 3)])
    with torch.no_grad(), compat.rope_deltas_kept(model):
        model(**inputs)
        assert model.model.rope_deltas is not None
    assert model.model.rope_deltas is None


def test_an_embedding_that_norms_what_it_looks_up_is_known():
    muse = pytest.importorskip("transformers.models.muse_glimmer.modeling_muse_glimmer", reason="transformers has it since 5.23")
    normed = muse.MuseGlimmerTextNormedEmbedding(9, 4, 0)
    ids = torch.arange(9)
    assert compat.norms_embeddings(normed)
    assert not compat.norms_embeddings(torch.nn.Embedding(9, 4))
    assert not torch.allclose(normed(ids), normed.weight)
    source = inspect.getsource(hf.generation.DFlashTokenCandidateGenerator)
    assert "embed_norm" in source
    assert all(f"config.{key}" in source for key in ("target_layer_ids", "block_size", "mask_token_id"))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    assistant = hf.MuseGlimmerAssistantModel(hf.MuseGlimmerAssistantConfig(**sizes, num_hidden_layers=1))
    assert compat.is_block_assistant(assistant)
    assert not compat.is_block_assistant(llama(1, 0))


@pytest.fixture(scope="module")
def model():
    return build(FAMILIES["Llama"])


def caught(model, inputs, ask, **options):
    """What `ask` finds inside a custom decoding function."""
    found = []

    def decode(model, input_ids, **kwargs):
        found.append(ask())
        return input_ids

    model.generate(**inputs, max_new_tokens=2, do_sample=False, **options, custom_generate=decode)
    return found[0]


class Silent(BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


def test_the_call_of_generate_is_found_with_what_it_does_not_pass_on(model):
    inputs, streamer = inputs_for("Llama", 1), Silent()
    call = caught(model, inputs, compat.generate_call, streamer=streamer, assistant_model=model, synced_gpus=False, top_k=3)
    assert call.streamer is streamer
    assert call.assistant_model is model
    assert call.synced_gpus is False
    assert call.keywords["input_ids"] is inputs["input_ids"]
    assert call.keywords["top_k"] == 3


def test_pictures_are_found_as_the_caller_gave_them():
    model, inputs = build(FAMILIES["LLaVA"]), inputs_for("LLaVA", 3)
    assert caught(model, inputs, compat.generate_call).keywords["pixel_values"] is inputs["pixel_values"]


def test_no_call_of_generate_is_found_where_there_is_none():
    assert compat.generate_call() is None
    assert compat.encoder_source(1) == {}
    compat.keep_tokenizer()


def test_the_innermost_call_is_found(model):
    def nested():
        return caught(model, inputs_for("Llama", 1), compat.generate_call, top_k=7).keywords["top_k"]

    assert caught(model, inputs_for("Llama", 1), nested, top_k=3) == 7


def test_the_tokenizer_reaches_a_function_that_names_it(model):
    class Decode:
        @property
        def __signature__(self):
            compat.keep_tokenizer()
            return inspect.signature(type(self).__call__)

        def __call__(self, model, input_ids, tokenizer=None, **kwargs):
            self.seen = tokenizer
            return input_ids

    decode, tokenizer = Decode(), object()
    model.generate(**inputs_for("Llama", 1), max_new_tokens=2, tokenizer=tokenizer, custom_generate=decode)
    assert decode.seen is tokenizer


@pytest.mark.parametrize("rows", [1, 3])
def test_what_an_encoder_reads_is_found(rows):
    model, inputs = build(FAMILIES["T5"]), inputs_for("T5", rows)
    source = caught(model, inputs, lambda: compat.encoder_source(2 * rows))
    assert torch.equal(source["input_ids"], inputs["input_ids"].repeat_interleave(2, 0))


def test_plain_sampling_is_generate_itself(model):
    inputs = inputs_for("Llama", 3)

    def decode(model, input_ids, **kwargs):
        return compat.plain_sample(model, input_ids, **kwargs)

    options = {"do_sample": False, "max_new_tokens": 8}
    expected = model.generate(**inputs, **options)
    assert torch.equal(model.generate(**inputs, **options, custom_generate=decode), expected)


def test_the_prefix_function_and_the_defaults_are_where_they_were():
    def allowed(row, ids):
        return [1]

    assert compat.prefix_function(known.PrefixConstrainedLogitsProcessor(allowed, 1)) == (allowed, 1)
    assert compat.generation_defaults()["num_beams"] == 1
    assert "_get_default_generation_params" in vars(GenerationConfig)


def test_settings_and_sampling_processors_are_read_as_generate_reads_them(model):
    config, others = compat.generation_settings(model, {"top_k": 3, "guidance_scale": 2.0, "do_sample": True, "attention_mask": 1})
    assert (config.top_k, config.guidance_scale, others) == (3, 2.0, {"attention_mask": 1})
    given = GenerationConfig(do_sample=True, top_p=0.5)
    assert compat.generation_settings(model, {"generation_config": given})[0].top_p == 0.5
    found = compat.sampling_processors(model, config, torch.ones(1, 4).long())
    assert [type(each) for each in found] == [known.TopKLogitsWarper]
    assert config.guidance_scale == 2.0


def test_replaced_inputs_are_noticed(model):
    assert not compat.inputs_replaced(model)
    model.prepare_inputs_for_generation = model.prepare_inputs_for_generation
    try:
        assert compat.inputs_replaced(model)
    finally:
        del model.prepare_inputs_for_generation


def test_generation_goes_through_the_mixins_generate(model):
    assert "generate" not in vars(type(model))
    assert "_extract_generation_mode_kwargs" in vars(GenerationMixin)
    assert {"streamer", "assistant_model", "synced_gpus", "kwargs"} <= set(inspect.unwrap(GenerationMixin.generate).__code__.co_varnames)


def test_mask_makers_are_read_from_the_modelling_module():
    assert "create_sliding_window_causal_mask" in compat.mask_makers(make("MistralForCausalLM"))
    assert "create_sliding_window_causal_mask" not in compat.mask_makers(make("MoshiForCausalLM"))
    assert "create_chunked_causal_mask" in compat.mask_makers(make("Llama4ForCausalLM"))
    assert compat.mask_makers(make("CpmAntForCausalLM")) == frozenset()


def test_arguments_are_read_from_signatures():
    assert compat.takes_argument(make("LlamaForCausalLM"), "position_ids")
    assert not compat.takes_argument(make("BartForCausalLM"), "position_ids")


def test_phi3_computes_a_sequence_anew_at_the_switch():
    assert compat.recomputes_at_rope_switch(make("Phi3ForCausalLM", **VARIANTS["phi3 (longrope)"][1]))
    assert not compat.recomputes_at_rope_switch(make("LlamaForCausalLM", rope_parameters=LONGROPE))


@pytest.mark.parametrize("parameters", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_rope_at_a_length_is_what_a_forward_of_that_length_gives(parameters):
    model = make("LlamaForCausalLM", rope_parameters=parameters, max_position_embeddings=12)
    (rotary,) = compat.ropes_by_length(model)
    before = {name: value.clone() for name, value in rotary.named_buffers()}
    for length in (9, 15, 30):
        positions = torch.arange(length)[None]
        found = compat.rope_at_length(rotary, torch.zeros(1), positions, length)
        assert all(torch.equal(value, before[name]) for name, value in rotary.named_buffers())
        expected = copy.deepcopy(rotary)(torch.zeros(1), positions)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert compat.ropes_by_length(make("LlamaForCausalLM")) == []


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
    assert compat.config_path(hf.LlamaForCausalLM.from_pretrained(tmp_path).config) == str(tmp_path)


def test_a_model_that_is_not_split_has_no_device_mesh():
    """Split models are in `tests/text/test_tensor_parallel.py`, whose processes end where this reads nothing."""
    assert hf.PreTrainedModel._device_mesh is None
    assert compat.tensor_parallel_group(llama(1, seed=0)) is None
    assert compat.tensor_parallel_group(torch.nn.Linear(2, 2)) is None


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


def test_the_compiler_is_reset_although_a_reset_drops_other_compiled_functions(monkeypatch):
    table: dict = {}

    class Backend:
        def reset(self):
            table.pop("second", None)

    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", table)
    table |= {"first": Backend(), "second": Backend()}
    with pytest.raises(RuntimeError, match="changed size"):
        torch._dynamo.reset()
    table |= {"first": Backend(), "second": Backend()}
    reset_compiler()
    assert not table


def test_video_processors_sample_as_assumed():
    video = hf.Qwen2VLVideoProcessor(patch_size=4, temporal_patch_size=2, do_sample_frames=True, fps=2, max_frames=6)
    metadata = VideoMetadata(70, fps=7.0, duration=10.0)
    found = video(torch.zeros(70, 3, 32, 32), video_metadata=[metadata], return_metadata=True)["video_metadata"][0].frames_indices
    assert compat.sampled_frames(video, metadata) == found.tolist()
    assert len(found) == 6
    assert compat.sampled_frames(hf.Qwen2VLVideoProcessor(), metadata) == list(range(70))


# --- no reach elsewhere -----------------------------------------------------------------------------------------------

ALLOWED = {  # (file, name): why
    ("models/slot_cache.py", "_dynamo"): "torch: addresses of the cache are static",
    ("bench/operations.py", "_python_dispatch"): "torch: the module that documents TorchDispatchMode",
    ("core/distributions/value_cache.py", "_version"): "torch: how often a tensor was written to",
    ("models/module_copy.py", "_modules"): "torch: a module's parts",
    ("models/module_copy.py", "_buffers"): "torch: a module's parts",
    ("models/module_copy.py", "_parameters"): "torch: a module's parts",
    ("models/module_copy.py", "_hf_hook"): "accelerate: marks modules whose hooks move weights",
    ("models/module_copy.py", "_torchdynamo_orig_callable"): "torch: what a compiled function was made from",
    ("models/alterations.py", "_modules"): "torch: a module's parts",
    ("models/alterations.py", "_parameters"): "torch: a module's parts",
    ("models/alterations.py", "_torchdynamo_orig_callable"): "torch: what a compiled function was made from",
    ("serving/http/endpoints/shared.py", "_body"): "starlette: the body that a request keeps, let go of for the time of the answer",
    ("serving/http/protocol.py", "_stop_waiting"): "mmspec's own",
    ("utils/strict.py", "_is_protocol"): "typing: whether a class is a Protocol",
    ("vision/families/imagegpt.py", "_modules"): "torch: a module's parts",
    ("core/distributions/noise_schedule.py", "_with_noise"): "mmspec's own",
    ("core/distributions/thinning.py", "_tries"): "mmspec's own",
    ("minis/shop.py", "_base"): "mmspec's own",
    ("core/rows/rounds.py", "_parts"): "mmspec's own",
    ("core/noise_ring.py", "_rings"): "mmspec's own",
    ("core/draft_length/tree_size.py", "_best"): "mmspec's own",
    ("drafters/block/pard.py", "_grow"): "mmspec's own",
    ("drafters/features/reading.py", "_later"): "mmspec's own",
    ("drafters/jacobi/windows.py", "_draws"): "mmspec's own",
    ("drafters/jacobi/windows.py", "_recorded"): "mmspec's own",
    ("serving/models/speech.py", "_check_rows"): "mmspec's own",
    ("serving/models/speech.py", "_work"): "mmspec's own",
    ("speech/families/delayed_codebooks.py", "_layers"): "mmspec's own",
    ("models/beam_target.py", "_forward"): "mmspec's own",
    ("models/rows/session_rows.py", "_piece"): "mmspec's own",
    ("models/slot_cache.py", "_resize"): "mmspec's own",
    ("models/slot_cache.py", "_base"): "torch: the tensor that a view shows a part of",
    ("bench/catalogues.py", "_exit"): "os: ends a forked child without the parent's clean-up",
    ("vision/families/glm_image.py", "_resize"): "mmspec's own",
    ("vision/families/glm_image.py", "_write"): "mmspec's own",
    ("vision/codes/row_streams.py", "_cut"): "mmspec's own",
    ("speech/families/dia.py", "_row"): "mmspec's own",
    ("core/rows/rounds.py", "_pack_roots"): "mmspec's own",
    ("core/rows/rounds.py", "_move_roots"): "mmspec's own",
    ("serving/models/recommendations.py", "_refuse_fixed_rows"): "mmspec's own",
    ("serving/replicas/totals.py", "_replace"): "Python: a named tuple's public method",
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


def test_gemma4_looks_up_what_layers_add_by_ids_and_not_by_embeddings():
    from tests.sweep.image import make as small_vlm

    model = small_vlm("gemma4", "Gemma4ForConditionalGeneration")
    text, ids = model.get_decoder(), torch.tensor([[5, 6, 7, 8]])
    found = compat.per_layer_inputs(model, ids, (7,), 0)
    assert found.shape == (1, 4, model.config.text_config.num_hidden_layers, model.config.text_config.hidden_size_per_layer_input)
    assert torch.equal(found, text.get_per_layer_inputs(torch.tensor([[5, 6, 0, 8]]), None))
    assert torch.equal(found[:, :2], text.get_per_layer_inputs(None, model.get_input_embeddings()(ids[:, :2])))


def test_children_of_a_view_are_replaced_in_the_view_only():
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    view = compat.own_children(whole)
    setattr(view, "1", torch.nn.Tanh())
    assert isinstance(whole[1], torch.nn.ReLU)
    assert isinstance(view[1], torch.nn.Tanh)
    assert view[0] is whole[0]


def test_writes_to_a_tensor_are_counted():
    tensor = torch.ones(3)
    before = compat.models.writes_of(tensor)
    tensor.add_(1)
    assert compat.models.writes_of(tensor) == before + 1
    with torch.inference_mode():
        assert compat.models.writes_of(torch.ones(3)) == 0


def test_nothing_else_reaches_into_other_libraries():
    files = {str(path.relative_to(ROOT / "mmspec")): path for path in (ROOT / "mmspec").rglob("*.py")}
    found = {
        (name, private)
        for name, path in files.items()
        if not name.startswith("models/compat")
        for private in reaches(path.read_text(encoding="utf-8"))
    }
    assert not found - ALLOWED.keys(), "put these into mmspec/models/compat.py, each with a canary here"
    assert not ALLOWED.keys() - found, "these are gone: take them off the list"


@pytest.mark.parametrize(
    "line",
    ["model._private", "getattr(model, '_private')", "inspect.currentframe()", "sys._getframe(1)", "from transformers import _private"],
)
def test_mutant_a_new_reach_is_found(line):
    assert reaches(line)


def test_relative_buckets_are_those_of_the_models_own_bias():
    for name in ("T5", "LongT5"):
        model = build(FAMILIES["T5"]) if name == "T5" else make("LongT5ForConditionalGeneration")
        attention = model.get_decoder().block[0].layer[0].SelfAttention
        distance = torch.arange(9)[None, None, :] - torch.arange(9)[None, :, None]
        found = attention.relative_attention_bias(compat.relative_buckets(attention, distance)).permute(0, 3, 1, 2)
        assert torch.equal(found, attention.compute_bias(9, 9))


def test_a_forward_that_only_brings_weights_is_known():
    linear, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert not compat.only_brings_weights(linear)
    accelerate.hooks.add_hook_to_module(linear, accelerate.hooks.SequentialHook(accelerate.hooks.AlignDevicesHook()))
    assert compat.only_brings_weights(linear)
    accelerate.hooks.add_hook_to_module(other, type("Own", (accelerate.hooks.ModelHook,), {"__module__": "elsewhere"})())
    assert not compat.only_brings_weights(other)


def test_attention_functions_are_found_by_name():
    config = hf.LlamaConfig(**LLAMA, attn_implementation="sdpa")
    assert compat.attention_function(config).__module__ == "transformers.integrations.sdpa_attention"
    config._attn_implementation = "eager"
    assert compat.attention_function(config) is None


def test_gpt_neos_causal_table_is_its_buffer_bias():
    model = make("GPTNeoForCausalLM")
    attention = model.get_decoder().h[0].attn.attention
    module, name, value = compat.with_bias_table(attention, torch.ones(1))
    assert (module, name) == (attention, "_buffers")
    assert value.keys() == attention._buffers.keys()
    assert attention._buffers["bias"].dtype == torch.bool


def test_hooks_and_weights_without_data_are_seen():
    linear = torch.nn.Linear(2, 2)
    after, before = linear.register_forward_hook(print), linear.register_forward_pre_hook(repr)
    assert compat.hooks_of(linear) == {after.id: print, before.id: repr}
    every = torch.nn.modules.module.register_module_forward_hook(print)
    assert compat.global_hooks() == {every.id: print}
    every.remove()
    assert compat.has_weights(linear)
    empty = torch.nn.Linear(2, 2, device="meta")
    assert not compat.has_weights(empty)
    empty._hf_hook = object()
    assert compat.has_weights(empty)


def test_whisper_reads_how_timestamps_are_weighed_from_the_generation_config():
    config = GenerationConfig(eos_token_id=1, no_timestamps_token_id=40, return_timestamps=True)
    assert compat.weighs_timestamps(config)
    config._detect_timestamp_from_logprob = False
    assert not compat.weighs_timestamps(config)
    config.no_timestamps_token_id = 40
    assert known.WhisperTimeStampLogitsProcessor(config, begin_index=1)._detect_timestamp_from_logprob is False


@NEW
def test_a_config_declares_modules_and_a_shallow_copy_declares_them_for_it(tmp_path):
    from tests.shipped_mtp import folder_of, loaded

    target = loaded(folder_of("Qwen3.5", tmp_path))
    assert not hasattr(target.config, "num_mtp_layers")
    assert mtp.declares_modules(target.config)
    assert not mtp.declares_modules(build(FAMILIES["T5"]).config)
    found = mtp.shipped_modules(target)
    assert found.num_mtp_layers == len(found.layers) == 1
    assert found.embed_tokens is target.get_input_embeddings()
    assert found.layers[0].mtp_block.self_attn.layer_idx == 0
    assert not hasattr(target.config, "num_mtp_layers")
    assert set(target._keys_to_ignore_on_load_unexpected) == set(type(target)._keys_to_ignore_on_load_unexpected)


@NEW
def test_an_assistant_that_shares_all_layers_is_built_here():
    """transformers 5.23 refuses to build it; 5.24 does not."""
    from tests.gemma4_assistants import assistant_config

    config = assistant_config()
    if hf.__version__.startswith("5.23."):
        with pytest.raises(ValueError, match="The set of layer types producing a cache is different"):
            hf.Gemma4AssistantForCausalLM(config)
    assert shared_states.buildable(config) is config
    assert type(config.text_config).__name__ == "Gemma4TextConfig"
    assert isinstance(config.text_config, hf.Gemma4TextConfig)
    assert shared_states.reads_shared_states(hf.Gemma4AssistantForCausalLM(config))
    assert shared_states.buildable(llama(1, 0).config).model_type == "llama"


@NEW
@pytest.mark.parametrize("ordered", [False, True])
def test_an_assistants_parts_are_put_together_as_its_forward_does(ordered):
    from tests.gemma4_assistants import KINDS, assistant, target

    model = target()
    drafter = assistant(model, ordered=ordered)
    assert shared_states.sharing_layers(model.config) == {"sliding_attention": 0, "full_attention": 1}
    assert shared_states.sharing_layers(target(0).config) == {"sliding_attention": 2, "full_attention": 3}
    assert not shared_states.sharing_layers(llama(1, 0).config)
    shared = model(torch.tensor([[5, 6, 7, 8]]), return_shared_kv_states=True).shared_kv_states
    inputs, positions = torch.randn(1, 3, 64), torch.full((1, 3), 4)
    whole = drafter(inputs_embeds=inputs[:, :1], position_ids=positions[:, :1], shared_kv_states=shared)
    mask = torch.ones(1, 1, 3, 4, dtype=torch.bool)
    logits, states = shared_states.drafted(drafter, inputs, positions, dict.fromkeys(KINDS[:2], mask), dict(shared))
    assert logits.shape == (1, 3, model.config.vocab_size)
    assert torch.allclose(logits[:, :1], whole.logits, atol=1e-5) or ordered
    assert logits[0, 0].argmax() == whole.logits[0, 0].argmax()
    assert torch.allclose(states[:, :1], whole.last_hidden_state, atol=1e-5)
