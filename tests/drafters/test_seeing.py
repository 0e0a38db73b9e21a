"""Drafters that read a target that sees: the target's own tokens, pictures found where they are, and in use as in training."""

from dataclasses import replace

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.features import eagle_guide as feature_guide
from mmspec.drafters.features import vispec
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.eagle_guide import EagleFeed, FeatureGuide
from mmspec.drafters.features.hivis import HiViS
from mmspec.drafters.features.reading import Columns, VisionView, numbered_pictures
from mmspec.drafters.features.vispec import Adaptor, ViSpec
from mmspec.drafters.guided import GuidedDrafter, head_of
from mmspec.drafters.heads.medusa import Medusa
from mmspec.train.distillation import unroll
from mmspec.train.record import record_window
from tests.seeing import SIGHTS, seen
from tests.sizes import LLAMA, VOCAB, Case, build

IMAGE, TAKES = VOCAB - 1, 4
SIZES = {name: LLAMA[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")}
SIZES["max_position_embeddings"] = 128
PROMPTS = [
    [5, 9, 30, 7],
    [8, *[IMAGE] * 2 * TAKES, 11, 12],  # two pictures that touch
    [3, 4, *[IMAGE] * TAKES, 13, 14, 15, *[IMAGE] * TAKES, 16, 17],
    [*[IMAGE] * TAKES, 20],
]
TEXT, PAIR, APART, FIRST = range(4)
NEW = 18
MAKE = {
    "medusa": lambda: Medusa(32, 4),
    "eagle1": lambda: Eagle1(SIZES),
    "eagle3": lambda: Eagle3((0, 1, 2), SIZES, VOCAB),
    "eagle3-own-words": lambda: Eagle3((0, 1), {**SIZES, "hidden_size": 16}, VOCAB, own_embedding=True, target_hidden=32),
    "hivis": lambda: HiViS(SIZES, steps=3),
    "vispec": lambda: ViSpec(SIZES),
    "vispec-no-tokens": lambda: ViSpec(SIZES, queries=1),
    "vispec-three-tokens": lambda: ViSpec(SIZES, queries=4),
}


@pytest.fixture(scope="module")
def target():
    def llava():
        tower = hf.CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=8,
            patch_size=4,
            projection_dim=16,
        )
        options = {"image_token_index": IMAGE, "image_seq_length": TAKES, "vision_feature_layer": -1}
        config = hf.LlavaConfig(vision_config=tower.to_dict(), text_config=hf.LlamaConfig(**LLAMA).to_dict(), **options)
        return hf.LlavaForConditionalGeneration(config)

    model = build(Case(llava, "")).requires_grad_(False)
    model.generation_config.eos_token_id = None
    return model


def lively(net):
    """Weights large enough that every input makes a difference."""
    torch.manual_seed(3)
    for parameter in net.parameters():
        parameter.data.add_(0.15 * torch.randn_like(parameter))
    return net.eval()


@pytest.fixture(scope="module")
def nets():
    return {name: lively(make()) for name, make in MAKE.items()}


@pytest.fixture(params=MAKE)
def net(request, nets):
    return nets[request.param]


def asked(*rows, seed=0):
    """What a processor would return for these of `PROMPTS`, padded on the left; every picture is another one."""
    chosen = [PROMPTS[row] for row in rows]
    longest = max(map(len, chosen))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in chosen])
    counts = [prompt.count(IMAGE) // TAKES for prompt in PROMPTS]
    pixels = 2 * torch.randn(sum(counts), 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    own = [part for row in rows for part in pixels.split(counts)[row]]
    return {"input_ids": ids, "attention_mask": (ids != 0).long()} | ({"pixel_values": torch.stack(own)} if own else {})


ALL = asked(*range(4))


def run(target, drafter, inputs=ALL, **more):
    return mmspec.text.generate(target, inputs, drafter, **{"max_new_tokens": NEW, "draft_length": 4} | more)


# --- the target's own tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [None, "comb", (3, 2, 1), "expand"], ids=str)
def test_greedy_output_is_that_of_transformers(target, net, tree):
    expected = target.generate(**ALL, do_sample=False, max_new_tokens=NEW, suppress_tokens=[IMAGE])[:, ALL["input_ids"].shape[1] :]
    out = run(target, net, tree=tree)
    assert out.sequences.tolist() == expected.tolist()
    assert out.stats.drafted > 0


@pytest.mark.parametrize("tree", [None, (3, 2, 1)], ids=str)
def test_sampled_output_is_that_of_plain_sampling(target, net, tree):
    plain = run(target, None, temperature=1.0, seed=5)
    assert run(target, net, temperature=1.0, seed=5, tree=tree).sequences.tolist() == plain.sequences.tolist()


class Kept:
    """A shape that grows what `inner` grows, and keeps every row's drafts."""

    def __init__(self, inner):
        self.inner, self.drafts = inner, []

    def grow(self, score, draft, budget, noise):
        grown, origin = self.inner.grow(score, draft, budget, noise)
        self.drafts.append((grown.start.tolist(), grown.nodes[:, grown.roots :].tolist()))
        return grown, origin


def drafts_of(target, net, rows):
    """{row: {output position: draft tokens}}"""
    from mmspec.drafters.shapes import Chain, most_likely

    shape = Kept(Chain(most_likely))
    run(target, GuidedDrafter(net, shape), asked(*rows))
    found = {row: {} for row in rows}
    for starts, draft_tokens in shape.drafts:
        for row, start, line in zip(rows, starts, draft_tokens, strict=True):
            if start + len(line) < NEW:
                found[row].setdefault(start, line)
    return found


def test_a_row_drafts_the_same_alone_and_in_a_batch(target, net):
    together = drafts_of(target, net, (0, 1, 2, 3))
    for row in range(4):
        alone = drafts_of(target, net, (row,))[row]
        assert alone == together[row]
        assert alone


def test_a_drafter_read_back_drafts_the_same(target, nets, tmp_path):
    for name in ("hivis", "vispec"):
        save_drafter(nets[name], tmp_path / name)
        again = load_drafter(tmp_path / name, target)
        assert again.config == nets[name].config
        assert drafts_of(target, again, (1, 2)) == drafts_of(target, nets[name], (1, 2))


def test_a_new_net_fits_its_target_and_reads_text_as_eagle_does(target):
    """Before training ViSpec mixes nothing in and HiViS adds nothing: where there are no pictures both are EAGLE."""
    torch.manual_seed(1)
    eagle = lively(new_net("eagle1", target))
    for kind in ("hivis", "vispec"):
        made = new_net(kind, target)
        made.load_state_dict(eagle.state_dict(), strict=False)
        assert drafts_of(target, made.eval(), (TEXT,)) == drafts_of(target, eagle, (TEXT,))


@pytest.mark.parametrize(("kind", "options"), [("hivis", {"steps": 0}), ("vispec", {"queries": 0})])
def test_impossible_options_are_refused(target, kind, options):
    with pytest.raises(ValueError, match="is 0: at least one"):
        new_net(kind, target, options)


# --- pictures found where they are ------------------------------------------------------------------------------------


def test_pictures_are_numbered_by_row_touching_ones_apart():
    width = max(map(len, PROMPTS))
    ids = torch.tensor([prompt + [-1] * (width - len(prompt)) for prompt in PROMPTS])
    found = numbered_pictures(ids, (IMAGE,), TAKES)
    one, two = [1] * TAKES, [2] * TAKES
    expected = [[0] * 4, [0, *one, *two, 0, 0], [0, 0, *one, 0, 0, 0, *two, 0, 0], [*one, 0]]
    assert [row[: len(prompt)] for row, prompt in zip(found.tolist(), PROMPTS, strict=True)] == expected
    assert numbered_pictures(ids, (IMAGE,)).amax(1).tolist() == [0, 1, 2, 1]
    clip = torch.tensor([[IMAGE, IMAGE, 7, 7, 3]])
    assert numbered_pictures(clip, (IMAGE, 7)).tolist() == [[1, 1, 2, 2, 0]]


def random_columns(seed=0):
    """Prompts of `PROMPTS`'s forms as `FeatureGuide` hands them over, with random states and pictures."""
    torch.manual_seed(seed)
    width = max(map(len, PROMPTS))
    ids = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in PROMPTS])
    lengths = torch.tensor([len(prompt) for prompt in PROMPTS])
    pictures = numbered_pictures(ids.masked_fill(torch.arange(width) >= lengths[:, None], -1), (IMAGE,), TAKES)
    vision = VisionView(torch.randn(len(ids), width, 32), pictures)
    return Columns.of(ids[:, 1:], lengths - 1, torch.randn(len(ids), width - 1, 32), vision)


def by_hand(net, columns, row):
    """One row of ViSpec's prefill, picture by picture: (position, what stands for the value, state with the picture mixed in)."""
    adaptor, tokens = net.adaptor, len(net.adaptor.queries) - 1
    end, embeds, pictures = int(columns.lengths[row]) + 1, columns.vision.embeds[row], columns.vision.pictures[row].tolist()
    found, whole, place = [], torch.zeros(32), 0
    while place < end:
        if pictures[place] == 0:
            if place:
                state = net.mix(torch.cat([columns.features[row, place - 1], whole]))
                found.append((place - 1, embeds[place], state))
            place += 1
            continue
        stop = place
        while stop < end and pictures[stop] == pictures[place]:
            stop += 1
        span = embeds[place:stop]
        parts = (x.view(len(x), 4, 8).unbind(1) for x in (adaptor.queries, adaptor.k_proj(span), adaptor.v_proj(span)))
        heads = [(asked @ keys.T / 8**0.5).softmax(-1) @ values for asked, keys, values in zip(*parts, strict=True)]
        out = adaptor.o_proj(torch.cat(heads, -1))
        for index in range(tokens):
            at = stop - tokens + index
            if at >= max(place, 1):
                found.append((at - 1, out[index], torch.zeros(32)))
        whole, place = out[-1], stop
    return found, whole


def gap_to_hand(net, columns):
    """The largest difference between ViSpec's reading of a ragged batch and that of each row by hand."""
    read, worst = net.reading(columns), 0.0
    slots = torch.arange(read.values.shape[1]).expand(len(read.values), -1)
    states = net.enter(net.take(read.features), 0, read.beside[:, :-1])
    for row in range(len(columns.values)):
        expected, whole = by_hand(net, columns, row)
        if int(read.lengths[row]) != len(expected):
            return float("inf")
        if read.along(slots)[row, : len(expected)].tolist() != [position for position, *_ in expected]:
            return float("inf")
        later = read.along(slots.new_full((len(slots), 1), len(expected)))[row].item()
        assert later == columns.lengths[row]  # text that follows keeps the target's positions
        for slot, (_, value, state) in enumerate(expected):
            worst = max(worst, (read.embeds[row, slot] - value).abs().max().item(), (states[row, slot] - state).abs().max().item())
        worst = max(worst, (read.beside[row, -1] - whole).abs().max().item())
    return worst


@pytest.mark.parametrize("name", ["vispec", "vispec-no-tokens", "vispec-three-tokens"])
@torch.no_grad()
def test_vispec_reads_a_ragged_batch_as_each_row_by_hand(nets, name):
    assert gap_to_hand(nets[name], random_columns()) < 1e-5


def segments_of_the_first(pictures):
    """Positions left in each picture if every picture came as far behind the one before as the first behind the beginning."""
    before = (pictures == 1).long().argmax(1, keepdim=True)
    return (TAKES - 1 - (torch.arange(pictures.shape[1]) - before) % (before + TAKES)).clamp_min(0)


RIGHT = Adaptor.forward
MIXED_UP = {
    "the first picture for all": (
        Adaptor,
        "forward",
        lambda self, vision, count: RIGHT(self, vision, count)[:, :1].expand(-1, count, -1, -1),
    ),
    "another row's pictures": (Adaptor, "forward", lambda self, vision, count: RIGHT(self, vision, count).roll(1, 0)),
    "the first one's place for all": (vispec, "_left", segments_of_the_first),
    "the last picture from the beginning": (
        VisionView,
        "newest",
        lambda self: self.pictures.amax(1, keepdim=True).expand_as(self.pictures),
    ),
}


@pytest.mark.parametrize("bug", MIXED_UP)
@torch.no_grad()
def test_pictures_taken_for_one_another_are_caught(nets, bug, monkeypatch):
    """The release uses the first picture's and the first text's sizes for all others."""
    monkeypatch.setattr(*MIXED_UP[bug])
    assert gap_to_hand(nets["vispec"], random_columns()) > 1e-2


def test_hivis_takes_in_text_alone_and_counts_it_anew():
    columns = random_columns()
    read = HiViS(SIZES).reading(columns)
    slots = torch.arange(read.values.shape[1]).expand(len(read.values), -1)
    assert read.along(slots).equal(slots)
    for row, prompt in enumerate(PROMPTS):
        wanted = [place for place in range(1, len(prompt)) if prompt[place] != IMAGE]
        count = int(read.lengths[row])
        assert read.values[row, :count].tolist() == [prompt[place] for place in wanted]
        assert read.features[row, :count].equal(columns.features[row, [place - 1 for place in wanted]])
    assert read.values.shape[1] == 6  # the longest text, not the longest prompt


def test_what_pictures_show_reaches_the_drafter(target, nets):
    """Another picture changes the drafts of a net that reads the projected picture; the target's states are left as they are."""

    class Blinded(FeatureGuide):
        def _columns(self, draft, scored):
            found = super()._columns(draft, scored)
            other = found.vision.embeds.flip(1)
            vision = VisionView(torch.where((found.vision.pictures > 0)[..., None], other, found.vision.embeds), found.vision.pictures)
            return replace(found, vision=vision, embeds=vision.embeds[:, 1:])

    for name, reads in (("eagle1", True), ("vispec", True), ("hivis", False)):
        net = nets[name]
        drafts = []
        for guide in (FeatureGuide, Blinded):
            net.guide = lambda session, guide=guide, net=net: guide(net, session)
            drafts.append(drafts_of(target, net, (PAIR, APART)))
            del net.guide
        assert (drafts[0] != drafts[1]) is reads


# --- what is trained is what is run -----------------------------------------------------------------------------------


def gap_to_training(target, net, wrong=(1, 2, 9, 0)):
    """As in `test_guided`: the largest relative difference between a distribution in a generation and the one at the same place in
    training."""
    from tests.drafters.test_guided import Scripted

    texts = run(target, None).sequences
    shape = Scripted(texts.tolist(), wrong)
    out = run(target, GuidedDrafter(net, shape))
    assert out.sequences.equal(texts)
    window = record_window(target, ALL, texts, torch.full((4,), NEW), net.reads)
    with torch.no_grad():
        levels = list(unroll(net, window, target.get_input_embeddings(), head_of(target), 4))
    worst, compared = 0.0, 0
    for start, depth, distribution in shape.seen:
        for row, prompt in enumerate(PROMPTS):
            place = len(prompt) + int(start[row]) - 1 + depth - levels[depth].after
            if depth > NEW - 1 - start[row] or wrong[row] < depth or place >= levels[depth].logits.shape[1]:
                continue
            a, b = distribution[row], levels[depth].logits[row, place].clone()
            b[IMAGE] = -torch.inf  # no distribution says a placeholder
            b, real = b.log_softmax(-1), torch.arange(VOCAB) != IMAGE
            worst, compared = max(worst, ((a - b).abs() / (1 + b.abs()))[real].max().item()), compared + 1
    assert compared > 40
    return worst


def test_a_net_drafts_with_the_distributions_it_was_trained_on(target, net):
    assert gap_to_training(target, net) < 1e-4


BUGS = ("blind", "pictures late")
CAUGHT = [*((name, bug) for name in ("eagle1", "hivis", "vispec") for bug in BUGS), ("vispec", "closing up"), ("hivis", "no levels")]


@pytest.mark.parametrize(("name", "bug"), CAUGHT)
def test_use_unlike_training_is_caught(target, nets, name, bug, monkeypatch):
    right = feature_guide.sight_of
    if bug == "blind":
        monkeypatch.setattr(feature_guide, "sight_of", lambda session, ids, lengths: None)
    elif bug == "pictures late":

        def late(session, ids, lengths):
            found = right(session, ids, lengths)
            return VisionView(found.embeds.roll(1, 1), found.pictures.roll(1, 1))

        monkeypatch.setattr(feature_guide, "sight_of", late)
    elif bug == "closing up":
        monkeypatch.setattr(feature_guide, "EagleFeed", lambda prompt: EagleFeed(replace(prompt, gone=None)))
    else:
        monkeypatch.setattr(FeatureGuide, "level", property(lambda self: 0, lambda self, value: None), raising=False)
    assert gap_to_training(target, nets[name]) > 1e-2


# --- every family -----------------------------------------------------------------------------------------------------

SOME = ("LLaVA", "LLaVA-OneVision", "Qwen2.5-VL", "Qwen3-VL", "Idefics3", "InternVL", "Gemma-3 VLM", "PaliGemma", "Mllama")


@pytest.mark.parametrize("name", SOME)
def test_every_family_is_read_and_says_what_it_says_anyway(name, monkeypatch):
    """Ragged prompts of one, two and one pictures: each row's are found, and nothing the target says changes."""
    model, inputs, found = build(SIGHTS[name].case), seen(name), []
    right = feature_guide.sight_of
    monkeypatch.setattr(feature_guide, "sight_of", lambda *a: found.append(right(*a)) or found[-1])
    more = {"max_new_tokens": 8, "draft_length": 3}
    plain = mmspec.text.generate(model, inputs, **more).sequences.tolist()
    for kind in ("eagle1", "eagle3", "hivis", "vispec"):
        torch.manual_seed(2)
        net = lively(new_net(kind, model))
        if (kind, name) == ("vispec", "Mllama"):
            with pytest.raises(ValueError, match=r"a vispec drafter reads pictures that stand in the prompt, but Mllama.*: use eagle1"):
                mmspec.text.generate(model, inputs, net, **more)
            continue
        out = mmspec.text.generate(model, inputs, net, tree=(2, 1, 1), **more)
        assert out.sequences.tolist() == plain
        assert out.stats.drafted > 0
    assert all(vision is None if name == "Mllama" else vision.pictures.amax(1).tolist() == [1, 2, 1] for vision in found)
