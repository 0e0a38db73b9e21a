"""Views of a request: what each says in place of a picture, what it leaves unchanged (the output), and what a drafter gains by it."""

import copy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.core.records import Draft
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.views.base import own_pixels, same_prompt, shared_modalities, text_alone
from mmspec.drafters.views.text_views import Drop, Newline, marks_of, runs
from mmspec.drafters.views.vision_inputs import Looking, Pooled, Pruned, importance, looking, select_positions
from mmspec.models.families.registry import family_of
from mmspec.models.module_copy import own_copy
from mmspec.models.target import HFTarget
from mmspec.run.views import view_for
from mmspec.text import aligned_drafter, view
from tests.drafters.looking import IMAGE, LINE, TAKES, asked, counted, llava, patches_of, perturbed, session_of, tokenizer, told, words_only
from tests.families import FAMILIES, VOCAB, build, inputs_for
from tests.seeing import END, PLACE, SIGHTS, START, seen

NEW = 16
FIXED = {"max_new_tokens": NEW, "draft_length": 4}


@pytest.fixture(scope="module")
def target():
    return llava()


@pytest.fixture(scope="module")
def small(target):
    return perturbed(target)


@pytest.fixture(scope="module")
def plain(target):
    return mmspec.text.generate(target, asked(), max_new_tokens=NEW).sequences


def captions(count=3):
    return view("caption", WORDS, captions=["red circle", "blue", "circle blue"][:count])


WORDS = tokenizer("?", "<bos>", "image:", "red", "circle", "blue", "\n", "<image>", "<fake>", "<row_1_col_1>", bos_token="<bos>")
TEXT = {"drop": "drop", "newline": Newline(LINE), "caption": captions()}
SEEN = {"own": "own", "pooled": "pooled", "pruned": "pruned", "pruned, filled up": Pruned(0.3, 0.5)}


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_text_views_say_what_they_promise(target, side):
    inputs = asked(side=side)
    session = session_of(target, inputs)
    assert told(text_alone(inputs, session)) == [[5, 7, 8, 9, 10], [5, 9, 11], [6, 7, 9, 11]]
    assert told(Newline(LINE)(inputs, session)) == [[5, LINE, 7, 8, 9, 10], [5, LINE, LINE, 9, 11], [6, 7, 9, 11]]
    expected = [[5, 2, 3, 4, 7, 8, 9, 10], [5, 2, 5, 2, 4, 5, 9, 11], [6, 7, 9, 11]]  # "image:" and the caption
    assert told(captions()(inputs, session)) == expected


def test_a_row_keeps_a_last_position_to_begin_behind(target):
    inputs = asked([[5, *[IMAGE] * TAKES], [IMAGE] * TAKES])
    session = session_of(target, inputs)
    assert told(text_alone(inputs, session)) == [[5, 5], [0]]
    assert told(Newline(LINE)(inputs, session)) == [[5, LINE, LINE], [LINE, LINE]]
    expected = mmspec.text.generate(target, inputs, max_new_tokens=NEW).sequences
    for name, each in {**TEXT, **SEEN, "caption": captions(2)}.items():
        assert torch.equal(mmspec.text.generate(target, inputs, drafter=perturbed(target), view=each, **FIXED).sequences, expected), name


def test_what_encloses_pictures_goes_with_them():
    family = SimpleNamespace(
        placeholders=(9,), never_generated_ids=(9, 8, 7), prompt=lambda model, prompt: (prompt["input_ids"], prompt["mask"])
    )
    session = SimpleNamespace(target=SimpleNamespace(family=family, model=SimpleNamespace(config=SimpleNamespace(model_type="x"))))
    ids = torch.tensor([[1, 8, 9, 9, 7, 8, 9, 9, 7, 2, 6, 3]])
    prompt = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
    assert told(Drop()(prompt, session)) == [[1, 2, 6, 3]]
    assert told(Newline(5)(prompt, session)) == [[1, 5, 5, 2, 6, 3]]
    assert told(Newline(5, (6,))(prompt, session)) == [[1, 5, 5, 2, 3]]
    assert told(Drop((6,))(prompt, session)) == [[1, 2, 3]]


def test_pictures_side_by_side_are_told_apart_where_all_take_the_same():
    assert runs([1, 9, 9, 9, 9, 2, 9], {9}) == [1, 6]
    assert runs([1, 9, 9, 9, 9, 2, 9, 9], {9}, 2) == [1, 3, 6]
    assert runs([9, 9, 9], {9}, 2) == [0]  # not so many times as long: one picture of some other size
    assert runs([9, 9, 8, 8], {8, 9}) == [0, 2]


class Processor(SimpleNamespace):
    """What a view reads of a processor."""

    __call__ = decode = None.__eq__


def test_views_made_with_a_tokenizer():
    made = view("newline", WORDS)
    assert isinstance(made, Newline)
    assert made.newline == 6
    processor = Processor(tokenizer=WORDS, image_token="<image>", fake_image_token="<fake>", chat_template="circle")
    assert view("newline", processor).brackets == (7, 8)
    assert view("drop", processor) == Drop((7, 8))
    assert view("newline", newline=3) == Newline(3)
    assert view("own") is same_prompt
    assert (view("pooled", size=4), view("pruned", keep=0.1, top=0.5)) == (Pooled(4), Pruned(0.1, 0.5))


def test_a_captioner_is_asked_once_for_every_picture(target, small, plain):
    seen = []

    def captioner(request):
        seen.append(request["pixel_values"].shape)
        return ["red"] * len(request["pixel_values"])

    made = view("caption", WORDS, captioner=captioner)
    out = mmspec.text.generate(target, asked(), drafter=words_only(target), view=made, **FIXED)
    assert torch.equal(out.sequences, plain)
    assert seen == [(3, 3, 16, 16)]
    given = view("caption", WORDS, captions=["red"] * 3)
    assert told(made(asked(), session_of(target, asked()))) == told(given(asked(), session_of(target, asked())))


# --- eyes -------------------------------------------------------------------------------------------------------------


def merged(model, prompt):
    return looking(family_of(model)).begin(model, prompt, 64)[1]


def test_pooled_patches_are_averaged_in_front_of_the_projector(target, small):
    inputs = asked()
    prompt = Pooled()(inputs, session_of(target, inputs))
    found = merged(small, prompt)
    assert found.lengths.tolist() == [9, 11, 4]
    with torch.no_grad():
        tower = small.model.vision_tower(inputs["pixel_values"], output_hidden_states=True).hidden_states[-1][:, 1:]
        grid = tower.unflatten(1, (4, 4))
        blocks = torch.stack([grid[:, i : i + 2, j : j + 2].flatten(1, 2).mean(1) for i in (0, 2) for j in (0, 2)], 1)
        expected = small.model.multi_modal_projector(blocks)
    assert (found.embeds[0, 1:5] - expected[0]).abs().max() < 1e-5
    assert (found.embeds[1, 1:9] - expected[1:].flatten(0, 1)).abs().max() < 1e-5
    words = small.get_input_embeddings()(torch.tensor([7, 8, 9, 10]))
    assert torch.equal(found.embeds[0, 5:9], words)
    session, _ = HFTarget(small, looking(family_of(small))).begin(prompt)
    assert session.context[1].tolist() == [8, 10, 3]


def test_pooling_by_one_changes_nothing(target, small):
    inputs = asked()
    found = merged(small, Pooled(1)(inputs, session_of(target, inputs)))
    assert (found.embeds - merged(small, inputs).embeds)[:, : found.embeds.shape[1]].abs().max() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
def test_importance_is_the_attention_of_the_text_behind_the_pictures(target, side):
    inputs = asked(side=side)
    session, pending = HFTarget(target, family_of(target)).begin(inputs)
    session.score(pending)
    session.commit(torch.zeros(3, 1, dtype=torch.long), 1)
    before = [session.lengths.tolist(), session.ids.clone()]
    with counted(own_copy(target).model.language_model.layers[0]) as calls:
        found = importance(session, torch.tensor([17, 33, 3]))
    assert calls == [[3]]
    assert [session.lengths.tolist(), session.ids[:, :64].tolist()] == [before[0], before[1][:, :64].tolist()]
    assert target.config._attn_implementation == target.config.text_config._attn_implementation == "sdpa"
    eager = copy.deepcopy(target)
    eager.set_attn_implementation("eager")
    left, pixels = inputs["pixel_values"], ([0], [1, 2], [])
    for row, since in enumerate((17, 33, 3)):
        ids = inputs["input_ids"][row : row + 1][inputs["attention_mask"][row : row + 1].bool()][None]
        given = {"input_ids": ids} | ({"pixel_values": left[pixels[row]]} if pixels[row] else {})
        with torch.no_grad():
            maps = eager(**given, output_attentions=True).attentions
        expected = torch.stack([layer[0].mean(0)[since:].mean(0) for layer in maps]).mean(0)
        assert (found[row, :since] - expected[:since]).abs().max() < 1e-5


def test_chosen_positions_are_the_best_and_then_evenly_spread():
    torch.manual_seed(0)
    of = torch.zeros(3, 20, dtype=torch.bool)
    of[0, 2:18] = of[1, 5:10] = True
    weights = torch.rand(3, 20)
    for keep, top in ((1.0, 1.0), (0.5, 1.0), (0.25, 0.0), (0.3, 0.5), (0.01, 1.0)):
        found = select_positions(weights, of, keep, top)
        assert not (found & ~of).any()
        for row, have in enumerate((16, 5, 0)):
            count = -(-round(have * keep * 1000) // 1000)
            best = -(-round(count * top * 1000) // 1000)
            assert found[row].sum() == count
            first = weights[row].where(of[row], torch.tensor(-1.0)).topk(best).indices
            assert found[row, first].all()
            rest = [i for i in range(20) if of[row, i] and i not in first.tolist()]
            filled = [place for place, i in enumerate(rest) if found[row, i]]
            gaps = [b - a for a, b in pairwise(filled)]
            assert not gaps or max(gaps) - min(gaps) <= 1


def test_pruned_prompts_hold_the_chosen_pictures_and_every_word(target, small):
    inputs = asked()
    session, pending = HFTarget(target, family_of(target)).begin(inputs)
    session.score(pending)
    session.commit(torch.zeros(3, 1, dtype=torch.long), 1)
    prompt = Pruned(0.25)(inputs, session)
    assert prompt["kept"].sum(1).tolist() == [5 + 4, 3 + 8, 4]
    assert prompt["kept"][inputs["input_ids"] % IMAGE != 0].all()
    found, whole = merged(small, prompt), merged(small, inputs)
    assert found.lengths.tolist() == [9, 11, 4]
    packed = [row[mask.bool()] for row, mask in zip(prompt["kept"], inputs["attention_mask"], strict=True)]
    for row, kept in enumerate(packed):
        assert torch.equal(found.embeds[row, : kept.sum()], whole.embeds[row, : len(kept)][kept])
    weights = importance(session, torch.tensor([17, 33, 3]))
    worst_kept, best_left = weights[0, 1:17][packed[0][1:17]].min(), weights[0, 1:17][~packed[0][1:17]].max()
    assert worst_kept >= best_left


def test_keeping_all_positions_is_seeing_everything_one_round_late(target):
    out = mmspec.text.generate(target, asked(), drafter=target, view=Pruned(1.0), draft_length=4, max_new_tokens=26)
    assert (out.stats.target_calls, out.stats.tokens_per_call) == (6, 26 / 6)
    copied = copy.deepcopy(target)
    out = mmspec.text.generate(target, asked(), drafter=copied, view=Pruned(1.0), draft_length=4, max_new_tokens=26)
    assert out.stats.tokens_per_call == 26 / 6


# --- whatever the view, the output is the target's ----------------------------------------------------------------------


@pytest.mark.parametrize("name", {**TEXT, **SEEN})
def test_every_view_leaves_the_output_alone(target, small, plain, name):
    chosen_view = {**TEXT, **SEEN}[name]
    for drafter in (small, target, *([words_only(target), words_only(target, vocab_size=VOCAB - 1)] if name in TEXT else [])):
        out = mmspec.text.generate(target, asked(), drafter=drafter, view=chosen_view, **FIXED)
        assert torch.equal(out.sequences, plain)
    for options in ({"tree": (3, 2), "max_new_tokens": NEW}, {"max_new_tokens": NEW, "draft_length": "auto"}):
        assert torch.equal(mmspec.text.generate(target, asked(), drafter=small, view=chosen_view, **options).sequences, plain)
    sampled = {"temperature": 1.0, "seed": 4}
    expected = mmspec.text.generate(target, asked(), max_new_tokens=NEW, **sampled).sequences
    assert torch.equal(mmspec.text.generate(target, asked(), drafter=small, view=chosen_view, **FIXED, **sampled).sequences, expected)
    text = asked([[5, 6, 7], [7, 8]])
    expected = mmspec.text.generate(target, text, max_new_tokens=NEW).sequences
    none = view("caption", WORDS, captions=[]) if name == "caption" else chosen_view
    assert torch.equal(mmspec.text.generate(target, text, drafter=small, view=none, **FIXED).sequences, expected)


@pytest.mark.parametrize("name", {**TEXT, **SEEN})
def test_towers_run_once_a_request(target, small, name):
    with counted(patches_of(target), patches_of(small)) as calls:
        mmspec.text.generate(target, asked(), drafter=small, view={**TEXT, **SEEN}[name], **FIXED)
    assert calls == [[3], [] if name in TEXT else [3]]


@pytest.mark.parametrize("name", ["own", "pooled", "pruned", "drop", "newline"])
def test_a_wrong_picture_costs_those_who_look_and_nobody_else(target, name):
    """The target as its own drafter, a copy, on pictures of one colour each: what the view shows is all that differs."""
    target = copy.deepcopy(target)
    next(m for m in target.modules() if hasattr(m, "position_embedding")).position_embedding.weight.data.zero_()
    drafter, found = copy.deepcopy(target), {}
    inputs, other = (asked([[5, *[IMAGE] * TAKES, 7, 8, 9 + row] for row in range(12)], seed=seed) for seed in (3, 8))
    inputs["pixel_values"], other = (given["pixel_values"][..., :1, :1].expand(-1, -1, 16, 16) for given in (inputs, other))
    given = {"own": same_prompt, "pooled": Pooled(), "pruned": Pruned(0.75), "drop": text_alone, "newline": Newline(LINE)}[name]

    def wrong(prompt, session):
        return given({**prompt, "pixel_values": other}, session)

    wrong.late = getattr(given, "late", False)
    for key, each in (("right", given), ("wrong", wrong)):
        out = mmspec.text.generate(target, inputs, drafter=drafter, view=each, draft_length=4, max_new_tokens=24)
        found[key] = out.stats.tokens_per_call
    if name in ("drop", "newline"):
        assert found["right"] == found["wrong"]
    else:
        assert found["right"] > found["wrong"] + 0.1, found


@pytest.mark.parametrize("name", ["LLaVA-NeXT", "Qwen2.5-VL", "Gemma-3 VLM", "PaliGemma", "Idefics3", "InternVL", "Mllama"])
def test_views_of_every_kind_of_prompt(name):
    model, inputs = build(SIGHTS[name].case), seen(name)
    model.generation_config.eos_token_id = None
    expected = mmspec.text.generate(model, inputs, max_new_tokens=10).sequences
    drafter = perturbed(model)
    pooled = ("PaliGemma", "InternVL")
    for each in ("drop", Newline(5), "own", *(() if name == "Mllama" else ("pruned",)), *(("pooled",) if name in pooled else ())):
        out = mmspec.text.generate(model, inputs, drafter=drafter, view=each, draft_length=4, max_new_tokens=10)
        assert torch.equal(out.sequences, expected), each
    for dropped, marks in ((text_alone, marks_of(session_of(model, inputs))), (Drop((START, END)), (PLACE, START, END))):
        assert not set(marks) & {i for row in told(dropped(inputs, session_of(model, inputs))) for i in row}
    if name not in pooled:
        with pytest.raises(ValueError, match=r"packs its pictures otherwise|Mllama's do not") as caught:
            mmspec.text.generate(model, inputs, drafter=drafter, view="pooled", draft_length=4, max_new_tokens=10)
        assert "\n" not in str(caught.value)
    if name != "Mllama":  # everything kept is everything seen, one round late
        out = mmspec.text.generate(model, inputs, drafter=copy.deepcopy(model), view=Pruned(1.0), draft_length=4, max_new_tokens=11)
        assert out.stats.tokens_per_call == 11 / 3


def test_without_a_view_one_is_chosen(target, small):
    mine = HFTarget(target, family_of(target))
    assert view_for(None, mine, target) is shared_modalities
    assert view_for(None, mine, small) is own_pixels
    assert view_for(None, mine, words_only(target)) is text_alone
    assert view_for("own", mine, target) is view_for(view("own"), mine, target) is shared_modalities
    assert view_for("pruned", mine, target) == Pruned(base=shared_modalities)
    assert isinstance(looking(family_of(small)), Looking)


def test_a_view_may_be_late_however_long_nobody_drafts(target, small, plain):
    class Sometimes:
        lengths = (0, 0, 3, 0, 4, 1)

        def begin(self):
            self.left = list(self.lengths) * 8
            return self

        def length(self):
            return self.left.pop(0)

        def observe(self, *args):
            pass

    for each in ("pruned", "own", ("own", "pruned")):
        out = mmspec.text.generate(target, asked(), drafter=small, view=each, draft_length=Sometimes(), max_new_tokens=NEW)
        assert torch.equal(out.sequences, plain)


def test_bad_views_are_refused_in_one_line(target, small):
    inputs = asked()
    llama = build(FAMILIES["Llama"])
    text, both = inputs_for("Llama", 1), {"newline": "view\\('newline', processor\\)", "caption": "needs the target's tokenizer"}
    cases = [
        (target, inputs, small, "blurred", "unknown view 'blurred'; valid: 'drop'"),
        (llama, text, llama, "drop", "prompts of LlamaForCausalLM hold none"),
        (target, inputs, small, "cropped", "view 'cropped' is for Whisper models"),
        (target, inputs, words_only(target), "own", "'own' needs a drafter that reads"),
        (target, inputs, words_only(target), Pooled(), "'pooled' needs a drafter that reads"),
        (target, inputs, "lookup", "drop", "drafter is 'lookup': leave view out"),
        (target, inputs, None, "drop", "drafter is None: leave view out"),
        (target, inputs, small, (), "at least one view"),
        (target, inputs, small, Pooled(3), "no square grid that divides so"),
        (target, inputs, small, captions(2), "2 captions for 3 pictures"),
        *((target, inputs, small, name, words) for name, words in both.items()),
    ]
    for model, given, drafter, each, words in cases:
        with pytest.raises(ValueError, match=words) as caught:
            mmspec.text.generate(model, given, drafter=drafter, view=each, **FIXED)
        assert "\n" not in str(caught.value)
    makers = {
        "unknown view": lambda: view("blurred"),
        "needs the target's processor": lambda: view("newline"),
        "has no newline": lambda: view("newline", tokenizer("?", "a")),
        "one of the two": lambda: view("caption", WORDS),
        "keep is 0": lambda: view("pruned", keep=0),
        "size is 0": lambda: view("pooled", size=0),
    }
    for words, make in makers.items():
        with pytest.raises(ValueError, match=words):
            make()


# --- vocabularies -------------------------------------------------------------------------------------------------------


def spelt(order):
    names = ["?", *(f"w{i}" for i in range(1, VOCAB - 1)), "<image>"]
    return tokenizer(*(names[i] for i in order))


def renamed(model, order, image):
    """`model` with its values renamed: new id j is old id order[j]."""
    moved = copy.deepcopy(model)
    for table in (moved.get_input_embeddings().weight, moved.lm_head.weight):
        table.data = table.data[torch.tensor(order)].clone()
    if hasattr(moved.config, "image_token_id"):
        moved.config.image_token_id = moved.config.image_token_index = image
    return moved


def test_a_drafter_of_another_numbering_is_aligned_by_spelling(target, plain):
    order = [0, *range(VOCAB - 1, 0, -1)]
    ours, theirs = spelt(range(VOCAB)), spelt(order)
    moved, words = renamed(target, order, 1), renamed(words_only(target, by=0), order, 1)
    cases = ((moved, None, 4), (moved, ("own", "drop"), 3), (moved, "pruned", 1.2), (words, None, 1.2), (words, Newline(LINE), 1.2))
    for drafter, each, least in cases:
        out = mmspec.text.generate(target, asked(), drafter=aligned_drafter(target, ours, drafter, theirs, view=each), **FIXED)
        assert torch.equal(out.sequences, plain)
        assert out.stats.tokens_per_call >= least  # 16 tokens are four rounds at the least
    same = mmspec.text.generate(target, asked(), drafter=words_only(target, by=0), **FIXED)
    other = mmspec.text.generate(target, asked(), drafter=aligned_drafter(target, ours, words, theirs), **FIXED)
    assert same.stats.tokens_per_call == other.stats.tokens_per_call
    blind = mmspec.text.generate(target, asked(), drafter=moved, **FIXED)  # another placeholder: it would see none
    assert torch.equal(blind.sequences, plain)
    unaligned = mmspec.text.generate(target, asked(), drafter=words, **FIXED)  # one size, and another meaning: sizes cannot tell
    assert unaligned.stats.tokens_per_call < other.stats.tokens_per_call


def test_tables_padded_to_other_sizes_are_one_vocabulary(target, plain):
    for size in (VOCAB + 2, VOCAB + 3):
        padded = llava(vocab_size=size)
        kept = {name: weight.clone() for name, weight in target.state_dict().items()}
        for name, weight in padded.state_dict().items():
            weight[: len(kept[name])] = kept[name]
        for each, least in ((None, 4), (("own", "pooled", "drop"), 3), ("pruned", 1.2)):
            out = mmspec.text.generate(target, asked(), drafter=padded, view=each, **FIXED)
            assert torch.equal(out.sequences, plain)
            assert out.stats.tokens_per_call >= least


def test_placeholders_beyond_either_table_are_translated_and_never_drafted(target):
    ours, theirs = spelt(range(VOCAB)), spelt(range(VOCAB - 1))
    few = words_only(target, vocab_size=VOCAB - 1)
    drafter = aligned_drafter(target, ours, few, theirs)
    assert isinstance(drafter, ModelDrafter)
    inputs = asked([[5, *[IMAGE] * TAKES], [6, *[IMAGE] * TAKES, 8]])
    expected = mmspec.text.generate(target, inputs, max_new_tokens=NEW).sequences
    assert torch.equal(mmspec.text.generate(target, inputs, drafter=drafter, **FIXED).sequences, expected)
    overlap = drafter.target.overlap
    assert overlap.read(torch.tensor([3, IMAGE, IMAGE + 7])).tolist() == [3, 0, 0]
    seeing = aligned_drafter(target, ours, target, spelt(range(VOCAB)))
    assert seeing.target.overlap.read(torch.tensor([IMAGE])).tolist() == [IMAGE]
    assert IMAGE not in seeing.target.overlap.to_target.tolist()
    session, pending = seeing.target.begin(asked())
    distributions = session.score(Draft(pending.nodes, pending.parents, pending.start)).p.scores
    assert torch.isneginf(distributions[..., IMAGE]).all()
    assert torch.isfinite(distributions[..., :IMAGE]).all()
