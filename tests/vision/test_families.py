"""Every image class: windows give what the class's own decoding gives, token by token, and the adapter says what it must."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.processors.raster import FREE, Grammar
from mmspec.core.records import Draft
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.decoding import Jacobi
from mmspec.drafters.shapes import drawn, most_likely
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.vision.families import image_model
from mmspec.vision.families.chameleon import Chameleon
from mmspec.vision.families.emu3 import Emu3
from mmspec.vision.families.glm_image import GlmImage, prior_tokens
from mmspec.vision.families.imagegpt import ImageGPT
from mmspec.vision.families.tokens import Vocabulary
from tests.vision import plain, small_models
from tests.vision.small_models import CASES

SCALE, SEED = 3.0, 11
NATIVE = [name for name in CASES if not name.startswith("llamagen")]
GUIDED = [name for name in NATIVE if CASES[name].guided]


@cache
def adapter_of(name):
    return CASES[name].make()


def row_of(prompts, row, rows=4):
    """One row of `prompts` alone, with its own padding."""
    if not isinstance(prompts, dict):
        return prompts[row : row + 1]
    return {key: value[row * len(value) // rows : (row + 1) * len(value) // rows] for key, value in prompts.items()}


def run(adapter, prompts, rows, window, scale=None, seeds=None):
    """Values [B, T] through the engine: greedy, or coupled draws of `seeds`."""
    rules = (Grammar(adapter.raster),) if adapter.raster.controls else ()
    target = HFTarget(adapter.model, adapter, Pipeline(rules) if scale is None else Guided(rules, scale=scale))
    target = target if scale is None else Pairs(target)
    drafter = Jacobi(window, draw=most_likely if seeds is None else drawn)
    rule = Greedy() if seeds is None else Coupled()
    made = generate(
        target,
        drafter,
        rule,
        adapter.encode(prompts, scale is not None),
        stopping=DefaultStopping(rows, adapter.raster.length),
        noise=Noise.from_seed(seeds or 0, rows),
        control=Fixed(window),
    )
    return made.sequences


def own(name, model, prompts, rows, scale=None, seeds=None):
    """The class's own decoding of the same prompts."""
    if name == "imagegpt":
        return plain.imagegpt(model, rows, seeds)
    if name == "janus":
        return plain.janus(model, prompts, scale, seeds)
    if name == "emu3":
        return plain.emu3(model, prompts, 4, 5, scale, seeds)
    if name == "glm_image":
        return plain.glm_image(model, prompts, 2 * 3 + 4 * 6 + 1, seeds)
    forced = [-1] * 25 if name == "chameleon" else ([-1] * 5 + [7]) * 3 + [8]
    return plain.chameleon(model, prompts, forced, scale, seeds)


@cache
def expected(name, rows, guided, seeds=None):
    adapter, case = adapter_of(name), CASES[name]
    return own(name, adapter.model, case.prompts(rows), rows, SCALE if guided else None, list(seeds) if seeds else None)


ADAPTERS_BY_GUIDANCE = [(name, guided) for name in NATIVE for guided in ((False, True) if CASES[name].guided else (False,))]


@pytest.mark.parametrize("window", [1, 5, 16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("name", "guided"), ADAPTERS_BY_GUIDANCE)
def test_windows_give_the_classs_own_greedy_picture(name, guided, rows, window):
    made = run(adapter_of(name), CASES[name].prompts(rows), rows, window, SCALE if guided else None)
    assert made.tolist() == expected(name, rows, guided).tolist()


@pytest.mark.parametrize(("name", "guided"), ADAPTERS_BY_GUIDANCE)
def test_sampled_pictures_are_plain_samplings_alone_and_in_a_batch(name, guided):
    case, seeds = CASES[name], [SEED + row for row in range(4)]
    wanted, scale = expected(name, 4, guided, tuple(seeds)), SCALE if guided else None
    assert wanted.tolist() != own(name, adapter_of(name).model, case.prompts(4), 4, scale).tolist()
    assert run(adapter_of(name), case.prompts(4), 4, 8, scale, seeds).tolist() == wanted.tolist()
    for row in (0, 2):
        alone = run(adapter_of(name), row_of(case.prompts(4), row), 1, 5, scale, seeds[row : row + 1])
        assert alone[0].tolist() == wanted[row].tolist()


@pytest.mark.parametrize("name", NATIVE)
def test_eager_attention_gives_the_same(name):
    adapter = CASES[name].make()
    if name != "imagegpt":  # which has no other
        adapter.model.set_attn_implementation("eager")
    assert run(adapter, CASES[name].prompts(3), 3, 5).tolist() == expected(name, 3, False).tolist()


# --- planted faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emu3", "chameleon", "lumina"])
def test_codes_that_are_tokens_plus_a_number_are_caught(name):
    adapter = CASES[name].make()
    codes = adapter.raster.codes
    shifted = adapter.vocabulary.ids.clone()
    shifted[:codes] = shifted[:codes].sort().values
    adapter.vocabulary = Vocabulary(shifted)
    assert run(adapter, CASES[name].prompts(3), 3, 5).tolist() != expected(name, 3, False).tolist()


@pytest.mark.parametrize("name", NATIVE)
def test_positions_off_by_one_are_caught(name):
    """Rotary positions only see distances, so the picture is moved against its prompt; learned ones are moved altogether."""
    adapter = CASES[name].make()
    hidden = adapter.hidden

    def moved(embeds, layout, cache, prompt):
        first = 0 if name == "imagegpt" else prompt.lengths[:, None]
        positions = layout.positions + (layout.positions >= first)
        most = 23 if name == "imagegpt" else 1000 if prompt.extra is None else prompt.extra.shape[2] - 1
        return hidden(embeds, replace(layout, positions=positions.clamp(max=most)), cache, prompt)

    adapter.hidden = moved
    assert run(adapter, CASES[name].prompts(3), 3, 5).tolist() != expected(name, 3, False).tolist()


@pytest.mark.parametrize("name", GUIDED)
def test_unconditional_rows_that_see_the_prompt_are_caught(name):
    adapter = CASES[name].make()
    encode = adapter.encode

    def leaking(prompts, guided):
        found = encode(prompts, guided)
        rows = len(found.mask) // 2
        return replace(found, embeds=found.embeds[:rows].repeat(2, 1, 1), mask=found.mask[:rows].repeat(2, 1))

    adapter.encode = leaking
    assert run(adapter, CASES[name].prompts(3), 3, 5, SCALE).tolist() != expected(name, 3, True).tolist()


def test_a_grid_of_positions_that_is_not_the_models_is_caught():
    adapter, wanted = CASES["glm_image"].make(), expected("glm_image", 3, False)
    places = adapter._places
    for fault in (lambda found: found[[0, 2, 1]], lambda found: found[[0, 0, 0]], lambda found: found[:, :1].expand_as(found)):
        adapter._places = lambda ids, sources, fault=fault: fault(places(ids, sources))
        assert run(adapter, CASES["glm_image"].prompts(3), 3, 5).tolist() != wanted.tolist()


# --- sessions ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def scores_after(adapter, prompts, rows, rejected):
    """Logits after three committed values, each committed behind `rejected` draft tokens that were not kept."""
    torch.manual_seed(5)
    session, draft = HFTarget(adapter.model, adapter).begin(adapter.encode(prompts, False))
    values, wrong = torch.randint(0, adapter.raster.codes, (3, rows)), torch.randint(0, adapter.raster.codes, (3, rows, 6))
    for step in range(3):
        full = draft.extend_chain(wrong[step, :, :rejected], torch.full((rows,), 6)) if rejected else draft
        session.score(full)
        session.commit(torch.zeros(rows, 1, dtype=torch.long), 1)
        draft = Draft.root(values[step], torch.full((rows,), step + 1))
    return session.score(draft).p.scores[:, -1]


@pytest.mark.parametrize("name", CASES)
def test_rejected_draft_tokens_leave_no_residue(name):
    adapter, prompts = adapter_of(name), CASES[name].prompts(3)
    clean = scores_after(adapter, prompts, 3, 0)
    assert (scores_after(adapter, prompts, 3, 6) - clean).abs().max() < 1e-5
    assert clean.std() > 0.1


@pytest.mark.parametrize("name", NATIVE)
def test_the_class_itself_is_left_as_it_was(name):
    """Generating through the adapter changes nothing the class's own decoding shows, and leaves nothing behind."""
    adapter, prompts = CASES[name].make(), CASES[name].prompts(1)
    before = {key: value.clone() for key, value in adapter.model.state_dict().items()}
    loose = set(vars(adapter.model)) | set(vars(adapter.model.base_model))
    run(adapter, prompts, 1, 5)
    assert own(name, adapter.model, prompts, 1).tolist() == expected(name, 1, False).tolist()
    assert all(torch.equal(value, before[key]) for key, value in adapter.model.state_dict().items())
    assert set(vars(adapter.model)) | set(vars(adapter.model.base_model)) == loose


def test_imagegpts_view_follows_its_model():
    """Weights and dtype may change after the adapter was made."""
    adapter = CASES["imagegpt"].make()
    adapter.model.double()
    adapter.model.transformer.h[1].attn.c_proj.weight.data.mul_(-3)
    wanted = plain.imagegpt(adapter.model, 2, None)
    assert run(adapter, [None] * 2, 2, 5).tolist() == wanted.tolist()
    assert wanted.tolist() != expected("imagegpt", 1, False).expand(2, -1).tolist()


def test_two_glm_sessions_at_once_keep_their_own_positions():
    """The class keeps its table on the module; prompts of other lengths in between must not move it."""
    adapter = adapter_of("glm_image")
    one, other = CASES["glm_image"].prompts(1), CASES["glm_image"].prompts(3)
    with torch.no_grad():
        session, root = HFTarget(adapter.model, adapter).begin(adapter.encode(one, False))
        session.score(root)
        session.commit(torch.zeros(1, 1, dtype=torch.long), 1)
        run(adapter, other, 3, 5)
        own("glm_image", adapter.model, other, 3)
        found = session.score(Draft.root(torch.tensor([7]), torch.tensor([1]))).p.scores
        alone, root = HFTarget(adapter.model, adapter).begin(adapter.encode(one, False))
        alone.score(root)
        alone.commit(torch.zeros(1, 1, dtype=torch.long), 1)
        assert torch.equal(found, alone.score(Draft.root(torch.tensor([7]), torch.tensor([1]))).p.scores)


@pytest.mark.parametrize("name", CASES)
def test_drafters_can_read_hidden_states(name):
    adapter, prompts = adapter_of(name), CASES[name].prompts(2)
    with torch.no_grad():
        session, root = HFTarget(adapter.model, adapter).begin(adapter.encode(prompts, False))
        session.watch((0, 1, -1))
        scored = session.score(root)
        states = scored.hidden.unflatten(-1, (3, -1))[:, -1]
        assert torch.equal(adapter.logits(states[:, None, 2]), scored.p.scores)
        first = adapter.encode(prompts, False).embeds[:, -1] + (adapter.model.get_decoder().wpe.weight[0] if name == "imagegpt" else 0)
        assert torch.equal(first, states[:, 0])
    assert not adapter.model.get_decoder()._forward_hooks


# --- vocabularies and heads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emu3", "chameleon", "lumina", "glm_image"])
def test_the_head_is_multiplied_by_its_own_rows_only(name):
    adapter = CASES[name].make()
    hidden, head = torch.randn(2, 3, 32), adapter.model.lm_head.weight
    mapping = getattr(adapter.model.model, "vocabulary_mapping", None)
    codes = [mapping.img2bpe[code] for code in range(adapter.raster.codes)] if mapping else list(range(adapter.raster.codes))
    controls = {"emu3": [7, 8, 9, 2], "chameleon": [], "lumina": [7, 8], "glm_image": [65]}[name]
    ids = torch.tensor(codes + controls)
    full = F.linear(hidden, head)[..., ids].detach()
    unused = torch.ones(len(head), dtype=torch.bool).scatter(0, ids, False)
    head.data[unused] = torch.nan
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found = adapter.logits(hidden)
    assert (found - full).abs().max() < 1e-5
    assert counter.get_total_flops() <= 2 * 6 * 32 * 2 * len(ids)
    assert found.shape[-1] == adapter.raster.values
    assert torch.equal(adapter.embed(torch.arange(len(ids))[None])[0], adapter.model.get_input_embeddings().weight[ids])


@pytest.mark.parametrize("ids", [[3, 4, 5, 6], [6, 3, 5, 4], [9, 3, 30, 4], [4, 5, 6, 39]])
def test_rows_of_a_head_wherever_they_stand(ids):
    head, hidden = torch.randn(40, 8), torch.randn(2, 3, 8)
    assert (Vocabulary(torch.tensor(ids)).logits(hidden, head) - (hidden @ head.T)[..., ids]).abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in NATIVE if adapter_of(name).raster.controls])
def test_controls_stand_where_they_are_forced_and_nowhere_else(name):
    adapter = CASES[name].make()
    raster = adapter.raster
    adapter.model.lm_head.weight.data[adapter.vocabulary.ids[raster.codes :]] *= 30  # controls the model would love to write
    forced, prompts = torch.tensor(raster.forced), CASES[name].prompts(4)
    free = forced == FREE
    assert not free.all()
    for seeds in (None, [1, 2, 3, 4]):
        made = run(adapter, prompts, 4, 6, seeds=seeds)
        assert (made[:, free] < raster.codes).all()
        assert (made[:, ~free] == forced[~free]).all()
    session, root = HFTarget(adapter.model, adapter).begin(adapter.encode(prompts, False))
    assert (session.score(root).p.mode() >= raster.codes).any()


@pytest.mark.parametrize("name", NATIVE)
def test_codebooks_have_a_vector_a_code(name):
    adapter = adapter_of(name)
    assert len(adapter.codebook) == adapter.raster.codes
    if name in ("janus", "glm_image"):
        assert (adapter.codebook.norm(dim=-1) - 1).abs().max() < 1e-5
        assert (adapter.model.model.vqmodel.quantize.embedding.weight.norm(dim=-1) - 1).abs().max() > 0.1


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_pictures_have_their_size(name):
    adapter = adapter_of(name)
    raster = adapter.raster
    made = torch.randint(0, raster.codes, (2, raster.length), generator=torch.Generator().manual_seed(0))
    first, second = adapter.decode(raster.picture(made))
    assert first.size == second.size == CASES[name].size
    assert first.tobytes() != second.tobytes()


def test_imagegpt_paints_with_its_clusters():
    adapter, codes = adapter_of("imagegpt"), torch.arange(24).view(1, 4, 6)
    picture = adapter.decode(codes)[0]
    wanted = torch.round(127.5 * (small_models.colours() + 1)).int()
    assert picture.mode == "RGB"
    assert picture.getpixel((2, 1)) == tuple(wanted[8].tolist())


def pixels_of(pictures) -> Tensor:
    return torch.stack([torch.tensor(list(picture.tobytes())).view(picture.height, picture.width, 3) for picture in pictures])


@torch.no_grad()
def test_decoding_is_the_classs_own():
    torch.manual_seed(0)
    adapter, codes = adapter_of("janus"), torch.randint(0, 48, (2, 4, 4))
    wanted = adapter.model.decode_image_tokens(codes.flatten(1))
    assert torch.equal(pixels_of(adapter.decode(codes)), ((wanted + 1) * 127.5).round().clamp(0, 255).int())
    adapter, made = adapter_of("emu3"), expected("emu3", 3, False)
    tokens = adapter.vocabulary.tokens(made)
    wanted = adapter.model.decode_image_tokens(image_tokens=tokens, height=4, width=5).permute(0, 2, 3, 1)
    found = pixels_of(adapter.decode(adapter.raster.picture(made)))
    assert torch.equal(found, ((wanted + 1) * 127.5).round().clamp(0, 255).int())
    assert len(found.unique()) > 20


def test_the_diffusion_stage_gets_what_the_pipeline_would_give_it():
    from diffusers import GlmImagePipeline

    made = expected("glm_image", 3, False)
    codes = adapter_of("glm_image").raster.picture(made)
    outputs = torch.cat([torch.zeros(3, 7, dtype=torch.long), made], 1)
    for row in range(3):
        large = GlmImagePipeline._extract_large_image_tokens(outputs[row : row + 1], 7, 2 * 3, 4 * 6)
        assert torch.equal(prior_tokens(codes)[row : row + 1], GlmImagePipeline._upsample_token_ids(large, 4, 6))


# --- sizes and what is refused ----------------------------------------------------------------------------------------


def test_sizes():
    assert image_model(small_models.emu3()).raster.height == 360  # 720 pixels, 2 a code here
    assert adapter_of("emu3").resized((6, 4)).raster.length == 3 * 3 + 3
    assert adapter_of("emu3").raster.length == 4 * 6 + 3
    assert adapter_of("lumina").resized(8).raster.length == 4 * 5 + 1
    assert image_model(small_models.chameleon()).raster.height == 5
    glm = image_model(small_models.glm_image())
    assert (glm.raster.height, glm.raster.width, glm.preview) == (36, 24, (19, 13))
    assert glm.resized((64, 96)).raster.length == 2 * 3 + 13 * 19 + 1
    assert adapter_of("imagegpt").resized((2, 12)).raster.width == 12
    assert adapter_of("janus").resized(8).raster == adapter_of("janus").raster


def test_a_resized_emu3_writes_its_own_picture():
    adapter, prompts = adapter_of("emu3").resized((6, 4)), CASES["emu3"].prompts(3)
    assert run(adapter, prompts, 3, 5, SCALE).tolist() == plain.emu3(adapter.model, prompts, 3, 2, SCALE, None).tolist()


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: adapter_of("imagegpt").resized(5), "makes pictures of 24 pixels"),
        (lambda: adapter_of("janus").resized(16), "pictures of 8 x 8 pixels only"),
        (lambda: adapter_of("emu3").resized(7), "multiples of 2 pixels"),
        (lambda: adapter_of("glm_image").resized(0), "multiples of 32 pixels"),
        (lambda: adapter_of("imagegpt").encode([None], True), "leave guidance out"),
        (lambda: adapter_of("imagegpt").encode(["a cat"], False), "give None for every picture"),
        (lambda: adapter_of("glm_image").encode(small_models.glm_prompts(1), True), "give it to the pipeline"),
        (lambda: adapter_of("emu3").encode(small_models.token_prompts(2, 4), True), "add negative_prompt_ids"),
        (lambda: adapter_of("chameleon").encode(small_models.token_prompts(2, 5), True), "add negative_prompt_ids"),
        (lambda: adapter_of("chameleon").encode(["a cat"], False), "no processor"),
        (lambda: adapter_of("janus").encode("a cat", False), "give a list"),
        (lambda: adapter_of("janus").encode({"input_ids": torch.ones(1, 2).long(), "pixel_values": torch.ones(1)}, False), "pixel_values"),
        (lambda: adapter_of("emu3").encode(small_models.token_prompts(1, 4) | {"image_sizes": [[9, 9]]}, False), "use resized"),
        (lambda: adapter_of("glm_image").resized(64).encode(small_models.glm_prompts(1), False), "use resized"),
        (lambda: Chameleon(small_models.chameleon()).decode(torch.zeros(1, 5, 5).long()), "give the adapter to_pictures"),
        (lambda: GlmImage(small_models.glm_image()).decode(torch.zeros(1, 5, 5).long()), "give the adapter to_pictures"),
        (lambda: ImageGPT(small_models.imagegpt(), size=(4, 6)).decode(torch.zeros(1, 4, 6).long()), "give the adapter clusters"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(attempt, said):
    with pytest.raises(ValueError, match=said) as error:
        attempt()
    assert "\n" not in str(error.value)


def test_janus_says_which_tokens_guidance_lacks():
    adapter = CASES["janus"].make()
    adapter.model.generation_config.generation_kwargs = None
    with pytest.raises(ValueError, match="boi_token_id"):
        adapter.encode(CASES["janus"].prompts(1), True)


def test_negative_prompts_one_for_all():
    adapter, prompts = adapter_of("emu3"), CASES["emu3"].prompts(3)
    shared = prompts | {name: prompts[name][:1] for name in ("negative_prompt_ids", "negative_prompt_attention_mask")}
    found = adapter.encode(shared, True)
    assert found.lengths[3:].unique().numel() == 1
    with pytest.raises(ValueError, match="2 negative prompts for 3"):
        adapter.encode(prompts | {"negative_prompt_ids": prompts["negative_prompt_ids"][:2], "negative_prompt_attention_mask": None}, True)


def test_emu3_without_names_for_its_closing_tokens_ends_with_the_last_row():
    model = small_models.emu3()
    del model.vocabulary_mapping.vocab_map["<|image end|>"]
    adapter = Emu3(model, size=(8, 10))
    made = run(adapter, CASES["emu3"].prompts(3), 3, 5)
    assert made.tolist() == expected("emu3", 3, False)[:, :-3].tolist()
