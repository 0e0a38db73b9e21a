"""Models that see: every drafter is lossless, pictures are encoded once, nobody drafts blind, and nothing stays on a model."""

import copy
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.records import PAD, Draft
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.shapes import Chain, drawn, most_likely
from mmspec.drafters.views.base import same_prompt, shared_modalities
from mmspec.models.compat.compiler import reset_compiler
from mmspec.models.families.mllama import EncodedImages
from mmspec.models.families.multimodal import never_generated_ids_of, placeholders_of
from mmspec.models.families.registry import SEES, family_of
from mmspec.models.rows.merged import Merged
from mmspec.models.slot_cache import SlotLayer
from mmspec.models.target import HFSession, HFTarget
from mmspec.run.settings.processors import constraints
from tests.companions import Seen, counted, llama, perturbed
from tests.crossing import as_one_batch, generated_alone, row_of
from tests.seeing import END, PLACE, SIGHTS, START, filmed, seen
from tests.sizes import VOCAB, build

TOKENS = 10
ALIKE = (
    "VipLLaVA",
    "Qwen3-VL-MoE",
    "GLM-4V",
    "Idefics2",
    "Aya Vision",
    "Mistral 3",
    "Qwen3.5-MoE",
)  # the engine knows no difference: fewer tests
NAMES = tuple(name for name in SIGHTS if name not in ALIKE)
DEEP = ("LLaVA", "Qwen2-VL", "Qwen3-VL", "Gemma-3 VLM", "PaliGemma 2", "Idefics3", "Qwen3.5", "Mllama")  # one of every kind
WORDS = VOCAB - 8


@cache
def model_of(name):
    """Shared by the tests: models are left as they were, which is a test of its own."""
    return build(SIGHTS[name].case)


@cache
def another(name):
    """A model of the same family that often disagrees."""
    return perturbed(copy.deepcopy(model_of(name)))


def tower(name, model):
    return model.get_submodule(SIGHTS[name].tower)


def distributions(model, new=TOKENS, **settings):
    return pipeline(**settings, first=constraints(model.generation_config, 0, new, never_generated_ids_of(model)))


@contextmanager
def endless(model):
    """Without an end token, so that every row fills its room and tokens per call are exact."""
    ends, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
    yield
    model.generation_config.eos_token_id = ends


def run(model, inputs, **options):
    return mmspec.text.generate(model, inputs, **{"max_new_tokens": TOKENS, "draft_length": 4} | options)


def greedy(model, inputs):
    if model.config.model_type == "mllama":
        return as_one_batch(generated_alone(model, inputs, max_new_tokens=TOKENS, suppress_tokens=list(never_generated_ids_of(model))))
    new = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, suppress_tokens=list(never_generated_ids_of(model)))
    return new[:, inputs["input_ids"].shape[1] :]


# --- the same tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rows_with_and_without_pictures_give_the_tokens_of_generate(name):
    model = model_of(name)
    drafters = ({"drafter": "lookup"}, {"drafter": llama()}, {"drafter": another(name), "tree": (3, 2)})
    for pictures, several in (((0, 2, 1), drafters), ((0, 0), drafters[:1])):
        inputs = seen(name, pictures)
        expected = greedy(model, inputs)
        for options in several:
            assert torch.equal(run(model, inputs, **options).sequences, expected), f"{pictures}, {options}"


@pytest.mark.parametrize("name", ["LLaVA-OneVision", "Qwen2-VL", "Qwen2.5-VL", "LFM3-VL"])
def test_videos_are_pictures_too(name):
    model, inputs = model_of(name), filmed(name)
    expected = greedy(model, inputs)
    for drafter in (model, llama(), another(name)):
        assert torch.equal(run(model, inputs, drafter=drafter).sequences, expected)
    with pytest.raises(ValueError, match="no pixel_values or pixel_values_videos"):
        run(model, {key: value for key, value in inputs.items() if not key.startswith("pixel_values")})
    if "video_grid_thw" in inputs:
        with pytest.raises(ValueError, match="pixel_values_videos but no video_grid_thw"):
            run(model, {key: value for key, value in inputs.items() if key != "video_grid_thw"})


@pytest.mark.parametrize("name", DEEP)
def test_the_padding_side_does_not_matter(name):
    model = model_of(name)
    one, other = (run(model, seen(name, (1, 2, 0), side), drafter=model) for side in ("left", "right"))
    assert torch.equal(one.sequences, other.sequences)


@pytest.mark.parametrize("name", DEEP)
def test_sampling_coupled_gives_the_tokens_of_plain_sampling(name):
    model, inputs = model_of(name), seen(name, (0, 1, 2))
    plain = run(model, inputs, temperature=1.0, seed=4)
    for options in ({"drafter": llama()}, {"drafter": EarlyExit(1)}, {"drafter": EarlyExit(1), "tree": (3, 2)}):
        assert torch.equal(run(model, inputs, temperature=1.0, seed=4, **options).sequences, plain.sequences), options


@pytest.mark.parametrize("name", DEEP)
def test_eager_attention_gives_the_same_tokens(name):
    model, inputs = build(SIGHTS[name].case), seen(name)
    expected = greedy(model, inputs)
    model.set_attn_implementation("eager")
    assert torch.equal(run(model, inputs, drafter=model, tree=(2, 2)).sequences, expected)


class Shaky:
    """Drafts what plain decoding will say, each value spoilt with probability 0.3: rounds end anywhere."""

    def __init__(self, truth):
        self.truth, self.random = truth, torch.Generator().manual_seed(0)

    def begin(self, prompt, session):
        return self

    def propose(self, pending, budget, noise):
        places = pending.start[:, None] + torch.arange(budget.length)
        values = self.truth.gather(1, places.clamp(max=self.truth.shape[1] - 1))
        wrong = torch.rand(values.shape, generator=self.random) < 0.3
        return pending.extend_chain(torch.where(wrong, (values + 7) % WORDS, values), budget.draft_tokens)

    def observe(self, draft, scored, verdict, committed):
        pass


@pytest.mark.parametrize("name", DEEP)
def test_rejections_anywhere_leave_no_trace(name):
    model, inputs, new = model_of(name), seen(name, (2, 1)), 20
    with endless(model):
        plain = run(model, inputs, max_new_tokens=new, temperature=1.0, seed=2)
        out = run(model, inputs, max_new_tokens=new, temperature=1.0, seed=2, drafter=Shaky(plain.sequences))
    assert torch.equal(out.sequences, plain.sequences)
    assert 2 < out.stats.tokens_per_call < 4.5


# --- logits -----------------------------------------------------------------------------------------------------------


def continued(name, inputs, new):
    """The prompt with `new` [B, M] behind it, as the family's processor would have tokenized the whole."""
    ids = torch.cat([inputs["input_ids"], new], 1)
    found = inputs | {"input_ids": ids, "attention_mask": torch.cat([inputs["attention_mask"], torch.ones_like(new)], 1)}
    for types in ("mm_token_type_ids", "token_type_ids"):
        if types in inputs:
            fill = torch.ones_like(new) if name.startswith("PaliGemma") else torch.zeros_like(new)  # there, a causal suffix
            found[types] = torch.cat([inputs[types], fill.to(inputs[types])], 1)
    if "cross_attention_mask" in inputs:
        last = inputs["cross_attention_mask"][:, -1:].expand(-1, new.shape[1], -1, -1)
        found["cross_attention_mask"] = torch.cat([inputs["cross_attention_mask"], last], 1)
    return found


def full_forward(name, model, inputs, keep):
    """Logits [B, keep, V] of the model's own forward without a cache, its positions told where it does not count padding out."""
    if name == "Mllama" and len(inputs["input_ids"]) > 1:
        return torch.cat([full_forward(name, model, row_of(inputs, row), keep) for row in range(len(inputs["input_ids"]))])
    places = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0) + name.startswith("PaliGemma")
    own = {} if "image_grid_thw" in inputs else {"position_ids": places}
    before = getattr(model.model, "rope_deltas", None)
    with torch.no_grad():
        logits = model(**inputs, **own).logits[:, -keep:]
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = before
    return logits


def chunk_error(name, model, pictures=(0, 1, 2)):
    """The greatest difference between a chunk's logits, drafted in two rounds with a rejection, and those of the model's own forward."""
    inputs, rows = seen(name, pictures), len(pictures)
    new = torch.randint(3, WORDS, (rows, 4))
    expected = full_forward(name, model, continued(name, inputs, new), 5)
    session, pending = HFTarget(model, family_of(model)).begin(inputs)
    first = session.score(pending.extend_chain(new[:, :2], torch.full((rows,), 4))).p.scores
    session.commit(torch.arange(2).expand(rows, -1), 2)  # the second draft token is taken back, and committed otherwise
    pending = Draft.root(new[:, 1], pending.start + 2)
    second = session.score(pending.extend_chain(new[:, 2:], torch.full((rows,), 4))).p.scores
    return (torch.cat([first[:, :2], second], 1) - expected).abs().max().item()


@pytest.mark.parametrize("name", SIGHTS)
def test_chunks_and_steps_give_the_logits_of_the_models_own_forward(name):
    model = model_of(name)
    for pictures in ((0, 1, 2), (2,)):
        assert chunk_error(name, model, pictures) <= 1e-4, pictures
    inputs, new = seen(name, (2, 1)), torch.randint(3, WORDS, (2, 4))
    expected = full_forward(name, model, continued(name, inputs, new), 5)
    session, draft = HFTarget(model, family_of(model)).begin(inputs)
    steps = [session.score(draft).p.scores]
    for column in range(4):
        draft = draft.extend_chain(new[:, column : column + 1], torch.full((2,), 4))
        steps.append(session.score(draft).p.scores)
    assert (torch.cat(steps, 1) - expected).abs().max() <= 1e-4


def offset_lost(self, positions):
    inside = positions < self.lengths[:, None]
    return torch.where(inside, self.axes.gather(2, self._place(positions).expand(3, -1, -1)), positions)


def first_lost(self, positions):
    return torch.where(positions < self.lengths[:, None], positions, positions - 1)


def mask_ends(self, positions):
    mask = looked_where(self, positions)
    return torch.where((positions < self.lengths[:, None])[..., None, None], mask, 0)


def pictures_rolled_back(self, keep, most):
    session_commit(self, keep, most)
    for layer in self.cache.layers:
        if not isinstance(layer, SlotLayer):
            layer.keys[:, :, -2:], layer.values[:, :, -2:] = 0, 0


looked_where, session_commit = EncodedImages.at, HFSession.commit
MUTANTS = {  # what is planted where, and in which families it must show
    "the offset of positions is dropped": ((Merged, "along", offset_lost), ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL", "GLM-4V")),
    "positions are a text's": ((Merged, "along", lambda self, positions: positions), ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL", "GLM-4V")),
    "positions behind the prompt count from 0": ((Merged, "along", first_lost), ("PaliGemma", "PaliGemma 2")),
    "blocks are causal": ((Merged, "visible", lambda self, kind, layout, visible: visible), ("Gemma-3 VLM", "PaliGemma", "PaliGemma 2")),
    "DeepStack is dropped": ((Merged, "deepened", lambda self, positions: {}), ("Qwen3-VL", "Qwen3-VL-MoE")),
    "the pictures' mask ends with the prompt": ((EncodedImages, "at", mask_ends), ("Mllama",)),
    "pictures are rolled back with the draft": ((HFSession, "commit", pictures_rolled_back), ("Mllama",)),
    "pictures are words": ((Merged, "over", lambda self, embeds, positions: embeds), ("LLaVA", "Idefics3", "InternVL", "Qwen2-VL")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_families_trip_over_shows_in_the_logits(mutant, monkeypatch):
    (owner, attribute, planted), names = MUTANTS[mutant]
    monkeypatch.setattr(owner, attribute, planted)
    for name in names:
        assert chunk_error(name, model_of(name)) > 1e-2, name


# --- what drafters see ------------------------------------------------------------------------------------------------


def drafters_of(name, model):
    """Drafters, and how often the tower of each runs besides the target's."""
    return {
        "itself": (model, 0),
        "another that sees": (another(name), 1),
        "text only, without the placeholder": (llama(vocab_size=VOCAB - 1), 0),
        "itself run short": (EarlyExit(1), 0),
    }


@pytest.mark.parametrize("name", NAMES)
def test_towers_run_once_a_request_over_every_picture_once(name):
    model, inputs = model_of(name), seen(name, (2, 1))
    with looked_at(tower(name, model)) as whole:
        model.generate(**inputs, do_sample=False, max_new_tokens=1)
    for kind, (drafter, own) in drafters_of(name, model).items():
        towers = [tower(name, model)] + ([tower(name, drafter)] if own else [])
        with counted(*towers) as runs, looked_at(towers[0]) as pixels:
            run(model, inputs, drafter=drafter, max_new_tokens=3)
        assert runs == [1, own][: len(runs)], kind
        assert pixels == whole, kind


@contextmanager
def looked_at(module):
    """How many numbers of pictures go into `module` inside, run by run."""
    sizes = []

    def note(module, args, kwargs):
        sizes.append(next(value.numel() for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    yield sizes
    handle.remove()


def raw(model):
    """A view for which pictures are the embeddings of their placeholders: nothing fails, and nothing is seen."""

    def view(prompt, session):
        state = session.state
        if isinstance(state, EncodedImages):
            return {**prompt, "merged": replace(state, states=torch.zeros_like(state.states))}
        embeds = model.get_input_embeddings()(prompt["input_ids"])
        order = torch.argsort(1 - prompt["attention_mask"], dim=1, stable=True)
        deep = None if state.deep is None else torch.zeros_like(state.deep)
        return {**prompt, "merged": replace(state, embeds=embeds.gather(1, order[..., None].expand_as(embeds)), deep=deep)}

    return view


@pytest.mark.parametrize("name", NAMES)
def test_a_blind_drafter_is_caught_by_what_it_gets_accepted(name):
    model, inputs, settings = model_of(name), seen(name), {"max_new_tokens": 10, "temperature": 1.0}
    with endless(model):
        plain = run(model, inputs, **settings)
        own, found = HFTarget(model, family_of(model), distributions(model, 10)), {}
        for view in (shared_modalities, same_prompt, raw(model)):
            out = run(model, inputs, drafter=ModelDrafter(own, Chain(drawn), view), **settings)
            assert torch.equal(out.sequences, plain.sequences)
            found[view.__name__] = out.stats.tokens_per_call
    assert found["shared_modalities"] == found["same_prompt"] == 5.0
    assert found["view"] < 4.5


@pytest.mark.parametrize("name", DEEP)
def test_the_target_drafts_whole_paths_of_trees(name):
    model, inputs = model_of(name), seen(name)
    with endless(model):
        for temperature in (0.0, 1.0):
            out = run(model, inputs, drafter=model, tree=(2, 2, 1), max_new_tokens=20, temperature=temperature)
            assert out.stats.tokens_per_call == 4.0


@pytest.mark.parametrize("name", ["LLaVA", "Mllama"])
def test_a_drafter_of_another_picture_gets_less_accepted(name):
    model, inputs = model_of(name), seen(name)
    other = HFTarget(model, family_of(model), distributions(model, 20, temperature=1.0)).begin(
        inputs | {"pixel_values": -inputs["pixel_values"]}
    )[0]
    with endless(model):
        own = HFTarget(model, family_of(model), distributions(model, 20))
        drafter = ModelDrafter(own, Chain(drawn), lambda prompt, session: {**prompt, "merged": other.state})
        assert run(model, inputs, max_new_tokens=20, temperature=1.0, drafter=drafter).stats.tokens_per_call < 4.9


# --- what is never said -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL", "Gemma-3 VLM"])
@pytest.mark.parametrize("sampled", [False, True])
def test_placeholders_and_brackets_are_never_written(name, sampled):
    model, inputs = build(SIGHTS[name].case), seen(name)
    never_generated_ids = list(never_generated_ids_of(model))
    assert set(never_generated_ids) >= ({PLACE, START, END} if name != "LLaVA" else {PLACE})
    model.get_output_embeddings().weight.data[never_generated_ids] *= 8  # now they would be, often
    said = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)[:, inputs["input_ids"].shape[1] :]
    assert torch.isin(said, torch.tensor(never_generated_ids)).any()
    rule = Seen() if sampled else "exact"
    Seen.rounds.clear()
    for drafter in (model, llama()):
        out = run(model, inputs, drafter=drafter, accept=rule, temperature=float(sampled))
        assert not torch.isin(out.sequences, torch.tensor(never_generated_ids)).any()
        for draft, p in Seen.rounds:
            assert torch.isneginf(p.scores[..., never_generated_ids]).all()
            assert draft.q is None or torch.isneginf(draft.q.scores[..., never_generated_ids]).all()


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL", "Mllama"])
@pytest.mark.parametrize("drafter", ["lookup", "suffix", "lookahead", "jacobi", "ngram"])
def test_drafters_that_read_ids_draft_token_no_placeholder(name, drafter):
    model, inputs = model_of(name), seen(name)
    never_generated_ids, drafted = torch.tensor([*never_generated_ids_of(model), *placeholders_of(model)]), []
    settings = {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3}
    plain = run(model, inputs, **settings)
    out = run(
        model,
        inputs,
        drafter=drafter,
        on_step=lambda step: drafted.append(step.draft.draft_tokens[step.draft.parents[:, 1:] != PAD]),
        **settings,
    )
    assert torch.equal(out.sequences, plain.sequences)
    assert sum(map(len, drafted)) > 0
    assert not torch.isin(torch.cat(drafted), never_generated_ids).any()


def test_a_prompt_of_one_picture_and_nothing_else_can_be_drafted_for():
    model, inputs = model_of("LLaVA"), seen("LLaVA", (1,))
    inputs |= {"input_ids": torch.full((1, 4), PLACE), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    expected = greedy(model, inputs)
    for drafter in ("lookup", "suffix", "lookahead", "ngram", llama()):
        assert torch.equal(run(model, inputs, drafter=drafter).sequences, expected)


# --- nothing stays ----------------------------------------------------------------------------------------------------


def residue(model):
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return hooks, getattr(model.model, "rope_deltas", None), copy.deepcopy(model.config.to_dict())


@pytest.mark.parametrize("name", DEEP)
def test_nothing_of_a_request_stays_on_the_model(name):
    model, inputs = model_of(name), seen(name)
    greedy(model, seen(name, (2,)))  # what transformers notes on its modules is another request's
    hooks, deltas, config = residue(model)
    run(model, inputs, drafter=EarlyExit(1))
    run(model, inputs, drafter=model, tree=(2, 2))
    assert residue(model)[0] == hooks
    assert residue(model)[1] is deltas
    assert residue(model)[2] == config


@pytest.mark.parametrize("name", DEEP)
def test_two_requests_may_take_turns_on_one_model(name):
    model = model_of(name)
    requests = [seen(name, (1, 2), seed=1), seen(name, (2, 0), seed=2)]

    def steps(inputs, stopping):
        own = HFTarget(model, family_of(model), distributions(model))
        drafter = ModelDrafter(replace(own, model=another(name)), Chain(most_likely))
        return decode(own, drafter, Greedy(), inputs, stopping=stopping, noise=Noise.from_seed(0, 2), control=Fixed(2))

    alone, turns = [[DefaultStopping(2, TOKENS) for _ in requests] for _ in range(2)]
    for inputs, stopping in zip(requests, alone, strict=True):
        list(steps(inputs, stopping))
    pair = [steps(inputs, stopping) for inputs, stopping in zip(requests, turns, strict=True)]
    while any(next(one, None) is not None for one in pair):
        pass
    assert [stopping.outputs for stopping in turns] == [stopping.outputs for stopping in alone]


# --- how it runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL", "Qwen3-VL", "Gemma-3 VLM", "Mllama"])
def test_the_scoring_step_traces_whole(name):
    model, inputs = model_of(name), seen(name)
    with endless(model):
        expected = run(model, inputs, max_new_tokens=12)
    reset_compiler()
    own, stopping = HFTarget(model, family_of(model), distributions(model, 12)), DefaultStopping(3, 12)
    torch._dynamo.utils.counters.clear()
    target = own.capture(100, backend="eager", mode=None)
    drafter = ModelDrafter(own, Chain(most_likely), shared_modalities)
    list(decode(target, drafter, Greedy(), inputs, stopping=stopping, noise=Noise.from_seed(0, 3), control=Fixed(3)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert stopping.outputs == expected.sequences.tolist()


class Sink:
    def __init__(self):
        self.ids = []

    def put(self, value):
        self.ids += value.flatten().tolist()

    def end(self):
        self.ids.append("end")


@pytest.mark.parametrize("name", ["LLaVA", "Qwen2-VL", "Mllama"])
def test_streams_and_limits(name):
    model, inputs, sink = model_of(name), seen(name, (2,)), Sink()
    out = run(model, inputs, drafter=another(name), streamer=sink)
    assert sink.ids == [*inputs["input_ids"][0].tolist(), *out.sequences[0].tolist(), "end"]
    with pytest.raises(ValueError, match="exceed the model's 128 positions: ask for at most") as caught:
        run(model, inputs, max_new_tokens=200)
    assert "\n" not in str(caught.value)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGHTS)
def test_pictures_that_do_not_fit_their_prompt_are_refused_in_one_line(name):
    model, inputs, vision = model_of(name), seen(name, (2,)), SIGHTS[name]
    words, fewer = inputs["input_ids"].clone(), inputs["input_ids"].clone()
    words[words == vision.place] = 7
    fewer[:, (fewer == vision.place).long().argmax(1)] = 7
    cases = {
        "no pixel_values": {k: v for k, v in inputs.items() if k != "pixel_values"},
        "no placeholder": inputs | {"input_ids": words},
        **{f"no {need}": {k: v for k, v in inputs.items() if k != need} for need in vision.needs},
    }
    cases["do not fit together"] = inputs | {"input_ids": fewer}
    if name == "Mllama":
        cases["expected"] = inputs | {"cross_attention_mask": inputs["cross_attention_mask"][:, 1:]}
    for match, given in cases.items():
        with pytest.raises(ValueError, match=match) as caught:
            run(model, given)
        assert "\n" not in str(caught.value)
    assert torch.equal(run(model, inputs).sequences, greedy(model, inputs))  # a refusal leaves nothing behind


def test_a_placeholder_for_a_whole_picture_is_refused_in_one_line():
    inputs = seen("LLaVA", (1,)) | {"input_ids": torch.tensor([[5, PLACE, 6, 7]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    with pytest.raises(ValueError, match=r"prompt and pictures do not fit together \(.*tokens: 1,") as caught:
        run(model_of("LLaVA"), inputs)
    assert "\n" not in str(caught.value)


def test_models_that_see_and_are_not_known_are_refused_in_one_line():
    model, inputs = build(SIGHTS["LLaVA"].case), seen("LLaVA")
    model.config.model_type = "owl_eyes"
    with pytest.raises(ValueError, match="reads pictures or sound; supported besides text") as caught:
        run(model, inputs)
    assert all(kind in str(caught.value) for kind in SEES)
    assert "\n" not in str(caught.value)
