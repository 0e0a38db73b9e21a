"""Lighter drafters for Whisper: cropped recordings, a part of the vocabulary, int8 weights; and encoders that do not run without need."""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.noise import Noise
from mmspec.core.protocols import StartWork
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.lighter import drafted_part, lighter
from mmspec.drafters.model.vocabulary import Overlap
from mmspec.drafters.views.base import own_encoder, own_opening, shared_encoder
from mmspec.drafters.views.sound import Cropped, decoder_bytes, encoder_start, encoder_work, heard_frames
from mmspec.loading.text import load_pair
from mmspec.models.families.registry import family_of
from mmspec.models.module_copy import state_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.run.views import view_for
from mmspec.text import aligned_drafter, view
from tests import tiny
from tests.companions import counted, perturbed
from tests.families import FAMILIES, VOCAB, Case, build, inputs_for
from tests.text.test_hearing import alone, distilled, spelt

TOKENS = 20
LENGTHS = (30, 71, 44)  # frames of sound of each row, of 100


def recordings(rows: int = 3) -> dict[str, torch.Tensor]:
    """Rows of several lengths, padded to a window with a constant each."""
    features = inputs_for("Whisper", 3)["input_features"]
    for row, length in enumerate(LENGTHS):
        features[row, :, length:] = -1.0 - row
    return {"input_features": features[:rows]}


@pytest.fixture
def target():
    return build(FAMILIES["Whisper"])


def ending(rows):
    """An id that ends the rows at different lengths."""
    first = {token: [row.index(token) if token in row else TOKENS for row in rows] for row in rows for token in row}
    return next(token for token, places in first.items() if len(set(places)) == 3 and min(places) > 0)


def small_whisper():
    config = copy.deepcopy(build(FAMILIES["Whisper"]).config)
    config.encoder_layers, config.d_model, config.decoder_layers = 1, 16, 1
    return build(Case(lambda: hf.WhisperForConditionalGeneration(config), ""), seed=3)


def encoder_inputs(model):
    """Frames that the encoder of `model` reads, one entry a run."""
    seen = []
    model.get_encoder().conv1.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-1]))
    return seen


# --- all settings, the same text --------------------------------------------------------------------------------------

WORDS = spelt(range(VOCAB))
SETTINGS = {
    "cropped": {"view": "cropped"},
    "cropped to the sound": {"view": Cropped(0.0)},
    "a part of the vocabulary": {"vocabulary": 24},
    "a single value": {"vocabulary": [9]},
    "int8": {"int8": True},
    "all": {"view": "cropped", "vocabulary": 24, "int8": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_generate_in_ragged_batches(target, name):
    target.generation_config.eos_token_id = None
    plain = mmspec.text.generate(target, recordings(), max_new_tokens=TOKENS)
    target.generation_config.eos_token_id = ending(plain.tokens.tolist())
    rows = [{"input_features": recordings()["input_features"][row : row + 1]} for row in range(3)]
    expected = [target.generate(**row, do_sample=False, max_new_tokens=TOKENS)[0].tolist() for row in rows]
    made = aligned_drafter(target, WORDS, small_whisper(), WORDS, **SETTINGS[name])
    before = state_of(target), state_of(made.target.target.model)
    for given, said in ((recordings(), expected), (rows[1], expected[1:2])):
        for length in (1, 4, "auto"):
            out = mmspec.text.generate(target, given, drafter=made, draft_length=length, max_new_tokens=TOKENS)
            for row, tokens in enumerate(said):
                assert out.tokens[row, : len(tokens)].tolist() == tokens, (length, row)
            assert length == "auto" or out.stats.drafted > 0
    assert (state_of(target), state_of(made.target.target.model)) == before


@pytest.mark.parametrize("accept", ["exact", "match"])
@pytest.mark.parametrize("name", SETTINGS)
def test_sampling_is_plain_sampling(target, name, accept):
    settings = {"max_new_tokens": TOKENS, "temperature": 0.8, "seed": 4}
    plain = mmspec.text.generate(target, recordings(), **settings)
    made = aligned_drafter(target, WORDS, small_whisper(), WORDS, 0.8, accept, **SETTINGS[name])
    out = mmspec.text.generate(target, recordings(), drafter=made, draft_length=4, accept=accept, **settings)
    if accept == "exact":  # coupled: the very tokens
        assert torch.equal(out.tokens, plain.tokens)
    assert out.stats.drafted > 0


# --- cropped recordings -----------------------------------------------------------------------------------------------


def test_a_recording_ends_with_the_last_frame_that_differs_from_the_windows_last():
    assert heard_frames(recordings()["input_features"]) == 71
    assert heard_frames(recordings(1)["input_features"]) == 30
    assert heard_frames(torch.zeros(2, 16, 100)) == 0
    noise = torch.randn(1, 16, 100)
    assert heard_frames(noise) == 99
    assert Cropped(0.0).frames(noise) == Cropped(5.0).frames(noise) == 100
    assert [Cropped(margin).frames(recordings()["input_features"]) for margin in (0.0, 0.1, 0.29, 1.0)] == [72, 82, 100, 100]
    assert Cropped(0.0).frames(torch.zeros(2, 16, 100)) == 2
    extractor = hf.WhisperFeatureExtractor(feature_size=16)
    clip = extractor(torch.randn(24_000).numpy(), sampling_rate=16_000, return_tensors="pt")["input_features"]
    assert clip.shape[-1] == 3000
    assert 150 <= heard_frames(clip) <= 152  # 1.5 seconds, and the window of the last frame
    for margin in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="give 0 or more seconds"):
            Cropped(margin)


class Deaf(Cropped):
    """A mutant: too little is kept."""

    def frames(self, features):
        return 2


def test_what_the_encoder_reads_shows_in_counts_and_not_in_the_text(target):
    target.generation_config.eos_token_id = None
    drafter = copy.deepcopy(target)
    drafter.model.encoder.layer_norm.bias.data.add_(1e-7)  # else it reads the target's states
    expected = mmspec.text.generate(target, recordings(), max_new_tokens=TOKENS).tokens
    seen, found = encoder_inputs(drafter), {}
    for name, margin in {"whole": None, "cropped": Cropped(0.0), "deaf": Deaf(0.0)}.items():
        out = mmspec.text.generate(target, recordings(), drafter=drafter, view=margin, draft_length=4, max_new_tokens=TOKENS)
        assert torch.equal(out.tokens, expected), name
        found[name] = out.stats.tokens_per_call
    assert seen == [100, 72, 2]
    assert found["whole"] == 5.0
    assert found["deaf"] < found["whole"]


def test_the_users_model_takes_whole_windows_before_and_after(target):
    drafter = small_whisper()
    own = drafter.generate(**recordings(), do_sample=False, max_new_tokens=8)
    mmspec.text.generate(target, recordings(), drafter=drafter, view="cropped", draft_length=3, max_new_tokens=8)
    assert drafter.get_encoder().config.max_source_positions == drafter.get_encoder().embed_positions.num_embeddings == 50
    assert torch.equal(drafter.generate(**recordings(), do_sample=False, max_new_tokens=8), own)
    with pytest.raises(ValueError, match="length 100"):
        drafter.get_encoder()(recordings()["input_features"][..., :72])


def test_cropping_is_for_whisper_drafters_with_an_encoder_of_their_own(target):
    mine, drafter = HFTarget(target, family_of(target)), small_whisper()
    assert view_for("cropped", mine, drafter) == Cropped(base=own_encoder)
    assert view_for(view("cropped", margin=0.5), mine, drafter) == Cropped(0.5)
    drafter.generation_config.is_multilingual = False
    assert view_for("cropped", mine, drafter, translated=True) == Cropped(base=own_opening)
    llama = build(FAMILIES["Llama"])
    for model, other in ((target, distilled(target)), (target, alone(target)), (target, llama), (llama, llama)):
        with pytest.raises(ValueError, match="view 'cropped' is for Whisper models") as caught:
            view_for("cropped", HFTarget(model, family_of(model)), other)
        assert "\n" not in str(caught.value)


# --- lighter copies ---------------------------------------------------------------------------------------------------


def logits(model):
    with torch.no_grad():
        return model(**recordings(), decoder_input_ids=torch.tensor([[3, 9, 12]] * 3)).logits


def test_a_part_of_the_head_gives_the_same_logits_and_shares_all_other_weights():
    model = small_whisper()
    before, kept = state_of(model), torch.tensor([40, 3, 7])
    part = lighter(model, ids=kept)
    assert (logits(part) - logits(model)[..., kept]).abs().max() < 1e-6
    shared = dict(model.named_parameters())
    assert {name for name, weight in part.named_parameters() if weight is not shared[name]} == {"proj_out.weight"}
    assert state_of(model) == before
    assert lighter(model) is model
    model.proj_out = nn.Identity()
    with pytest.raises(ValueError, match="vocabulary needs an output head of type Linear"):
        lighter(model, ids=kept)


def test_int8_layers_are_near_the_models_own():
    model = small_whisper()
    kept = torch.tensor([40, 3, 7])
    for made, expected in ((lighter(model, int8=True), logits(model)), (lighter(model, ids=kept, int8=True), logits(model)[..., kept])):
        assert not any(type(module) is nn.Linear for module in made.modules())
        assert (logits(made) - expected).abs().max() < 0.05 * expected.abs().max()
        assert made.model.decoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight
    assert sum(type(module) is nn.Linear for module in model.modules()) > 10
    row = nn.Linear(4, 2)
    row.weight.data = torch.tensor([[127.0, -64.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    holder = nn.Sequential(row)
    holder.device, holder.dtype = torch.device("cpu"), torch.float32
    assert lighter(holder, int8=True)[0].weight().int_repr().tolist() == [[127, -64, 1, 0], [0, 0, 0, 0]]
    with pytest.raises(ValueError, match="on a CPU in float32, and WhisperForConditionalGeneration is on cpu in bfloat16"):
        lighter(small_whisper().bfloat16(), int8=True)
    with pytest.raises(ValueError, match="int8 is 'yes': give True or False"):
        lighter(model, int8="yes")


def test_the_part_of_a_vocabulary_is_the_drafters_first_values_or_the_ids_asked_for():
    overlap = Overlap(torch.arange(6), torch.tensor([0, 2, 3, 5]), torch.tensor([7, 1, 4, 0]), 6)
    for asked, always, ids in (
        (2, (), [2, 5]),
        (1, (0, 1), [0, 5]),
        (99, (), [0, 2, 3, 5]),
        ([3, 0], (), [0, 3]),
        (torch.tensor([3]), (5,), [3, 5]),
    ):
        found = drafted_part(overlap, asked, always)
        assert found.to_target.tolist() == ids
        assert found.shared.tolist() == [{0: 7, 2: 1, 3: 4, 5: 0}[i] for i in ids]
        assert found.to_drafter is overlap.to_drafter
    for asked, words in {
        0: "give at least 1 value to draft",
        (): "give a number of values",
        "many": "give a number of values",
        2.5: "give a number of values",
        (2, 4): "vocabulary holds id 4, which the drafter does not share",
    }.items():
        with pytest.raises(ValueError, match=words):
            drafted_part(overlap, asked)


def test_only_the_part_and_the_end_are_drafted(target):
    drafted = set()

    def note(step):
        drafted.update(step.draft.draft_tokens[step.draft.valid[:, step.draft.roots :]].tolist())

    target.generation_config.eos_token_id = 33
    for options, allowed in (
        ({"vocabulary": 12}, {*range(15), 33}),
        ({"vocabulary": [20, 21, 22]}, {20, 21, 22, 33}),
        ({}, set(range(VOCAB))),
    ):
        drafted.clear()
        made = aligned_drafter(target, WORDS, small_whisper(), WORDS, 1.5, **options)
        for seed in range(3):
            mmspec.text.generate(
                target, recordings(), drafter=made, draft_length=6, max_new_tokens=TOKENS, temperature=1.5, seed=seed, on_step=note
            )
        assert len(drafted) > 2
        assert drafted <= allowed - {0, 5, 6}  # what the target's config suppresses is never drafted


# --- encoders that do not run without need ----------------------------------------------------------------------------


@dataclass
class Told:
    """A controller that expects the start to take `seconds`, where plain rounds seem to take one; keeps what it was told."""

    seconds: float
    told: tuple | None = None

    def begin(self):
        self.session, self.lengths = BreakEven(Fixed(3)).begin(), []
        return self

    def expect_start(self, seconds, step, values):
        self.told = (seconds, step, values)
        self.session.expect_start(self.seconds, step, values)

    def length(self):
        self.lengths.append(self.session.length())
        return self.lengths[-1]

    def charge(self, seconds):
        self.session.charge(1.0)

    def observe(self, length, committed, seconds):
        self.session.observe(length, committed, 1.0)


def test_a_drafter_that_never_drafts_never_runs_its_encoder(target):
    expected = mmspec.text.generate(target, recordings(), max_new_tokens=TOKENS).tokens
    for drafter in (small_whisper(), aligned_drafter(target, WORDS, small_whisper(), WORDS, view="cropped")):
        model = drafter.target.target.model if isinstance(drafter, ModelDrafter) else drafter
        for length, own in ((0, 0), (Told(50.0), 0), (Told(0.0), 1), (2, 1)):
            with counted(target.get_encoder(), model.get_encoder()) as runs:
                out = mmspec.text.generate(target, recordings(), drafter=drafter, draft_length=length, max_new_tokens=TOKENS)
            assert runs == [1, own]
            assert (out.stats.drafted > 0) == bool(own)
            assert torch.equal(out.tokens, expected)
            if isinstance(length, Told):
                assert length.lengths[:3] == [0, 0, 3 * own]  # two plain rounds are measured first


def test_what_a_controller_is_told(target):
    """The seconds of the target's encoder, those before the call included, times the drafter's share of work; and expected tokens."""
    mine, drafter, small = HFTarget(target, family_of(target)), small_whisper(), Told(0.0)
    made = ModelDrafter(HFTarget(drafter, family_of(drafter)), view=own_encoder)
    inputs = recordings() | {"decoder_input_ids": torch.tensor([[3]] * 3)}
    for most, values in ((9, 3.5 * 0.71), (2, 2)):
        stopping = DefaultStopping(3, most)
        steps = list(decode(mine, made, Greedy(), inputs, stopping=stopping, noise=Noise.from_seed(0, 3), control=small, encoded=100.0))
        assert 100 <= steps[0].seconds["encode"] < 110
        assert steps[0].seconds["total"] > 100 > steps[1].seconds["total"]
        share = encoder_work(drafter.config, 100) / encoder_work(target.config, 100)
        assert 0 < share < 1
        step = decoder_bytes(drafter) / decoder_bytes(target)
        assert small.told == (pytest.approx(share * steps[0].seconds["encode"]), step, pytest.approx(values))


def test_the_work_of_an_encoder_worked_out_by_hand(target):
    config, session = small_whisper().config, HFTarget(target, family_of(target)).begin(recordings() | opening())[0]
    assert encoder_work(config, 100) == 50 * (4 * 16**2 + 2 * 16 * 64 + 2 * 50 * 16 + 6 * 16 * 16 + 3 * 16**2)
    own = partial(encoder_start, prompt=recordings(), session=session)
    step = decoder_bytes(small_whisper()) / decoder_bytes(target)
    for each, frames in ((own_encoder, 100), (own_opening, 100), (Cropped(0.0), 72)):
        encoder = encoder_work(config, frames) / encoder_work(target.config, 100)
        assert own(each, small_whisper()) == StartWork(encoder, step, pytest.approx(3.5 * 0.71))
    assert own(shared_encoder, distilled(target)) is None
    assert own(own_encoder, build(FAMILIES["T5"])) is None
    assert encoder_start(own_encoder, small_whisper(), {"encoder_outputs": session.state.outputs}, session) is None
    llama = build(FAMILIES["Llama"])
    assert encoder_start(own_encoder, llama, {}, HFTarget(llama, family_of(llama)).begin(inputs_for("Llama", 1))[0]) is None


def test_the_weights_that_a_step_reads_worked_out_by_hand():
    model = small_whisper()
    layer, head = 8 * 16 * 16 + 2 * 16 * 64, 16 * VOCAB
    assert decoder_bytes(model) == 4 * (layer + head)
    assert decoder_bytes(lighter(model, ids=torch.arange(10))) == 4 * (layer + 160)
    assert decoder_bytes(lighter(model, int8=True)) == layer + head
    assert decoder_bytes(lighter(model, ids=torch.arange(10), int8=True)) == layer + 160
    assert decoder_bytes(small_whisper().bfloat16()) == 2 * (layer + head)


def opening():
    return {"decoder_input_ids": torch.tensor([[3]] * 3)}


# --- by configs -------------------------------------------------------------------------------------------------------


def test_configs_name_the_settings(tmp_path):
    processor = mmspec.load("text").processor
    tiny.save_whisper(tmp_path / "target", processor)
    tiny.save_whisper(tmp_path / "drafter", processor)
    perturbed(hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "drafter")).save_pretrained(tmp_path / "drafter")

    def pair(**section):
        drafter = DrafterSection(kind="model", path=str(tmp_path / "drafter"), **section)
        target = TargetSection(path=str(tmp_path / "target"))
        return load_pair(Config(target=target, drafter=drafter, run=RunSection(max_new_tokens=8)))

    plain = pair()
    assert plain.drafter is plain.model
    for options in ({"view": "cropped"}, {"vocabulary": 64, "int8": True}, {"view": "cropped", "stop_below": 0.1}):
        made = pair(length=3, options=options)
        assert isinstance(made.drafter, ModelDrafter)
        assert made.own_tokenizer is None
        assert torch.equal(made.generate(recordings()).tokens, plain.generate(recordings(), drafter=None).tokens)
    for section, words in (
        ({"options": {"crop": True}}, "unknown key 'crop' for drafter 'model'; valid: stop_below, view, vocabulary, int8"),
        ({"options": {"int8": "yes"}}, "int8 is 'yes': give True or False"),
        ({"options": {"int8": True}, "tree": "comb"}, "is aligned, for int8, with .*, which supports chains only: leave tree out"),
        ({"options": {"view": "squint"}}, "view applies to prompts with pictures"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            pair(**section)
        assert "\n" not in str(caught.value)
