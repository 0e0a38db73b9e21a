"""`mmspec.vision.generate`: one call over models and methods."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from mmspec.core.processors.history import History
from mmspec.core.processors.raster import FREE, Raster
from mmspec.core.rules.lossy.cool_sd import CoolSD
from mmspec.core.rules.token import Token
from mmspec.drafters.jacobi.windows import WindowSession
from mmspec.drafters.shapes import Chain
from mmspec.models.guidance import Guided
from mmspec.train.distillation import RecordedWindow, unroll
from mmspec.vision import METHODS, generate
from mmspec.vision.codes.usual import code_record, usual_codes
from mmspec.vision.families.llamagen import LlamaGenPictures
from tests.vision.small_nets import guided_model

EXACT = ("plain", "jacobi")
TRAINED = ("eagle", "lantern", "lantern++", "cool-sd")


def windowed(method: str, window: int) -> dict[str, int]:
    """`window` for methods that read one."""
    return {"window": window} if METHODS[method].windowed else {}


@pytest.fixture(scope="module")
def model() -> LlamaGenPictures:
    return guided_model()


def distribution_by_hand(model: LlamaGenPictures, classes: list[int], codes: torch.Tensor, scale) -> torch.Tensor:
    """Log-probabilities [B, T, V] of guided decoding, by two plain forwards without any cache."""
    net, ids = model.model, torch.tensor(classes)
    with torch.no_grad():
        cond = net.write(net.cls_embedding(ids), codes)
        uncond = net.write(net.cls_embedding(torch.full_like(ids, 3)), codes)
    return (uncond + torch.as_tensor(scale, dtype=torch.float32).view(-1, 1, 1) * (cond - uncond)).log_softmax(-1)


@pytest.mark.parametrize("guidance", [None, 3.0, [1.0, 2.0, 5.0]])
@pytest.mark.parametrize("window", [2, 7, 40])
def test_jacobi_draws_the_very_picture_of_plain_sampling(model, guidance, window):
    plain = generate(model, [0, 1, 2], method="plain", guidance=guidance, seed=11)
    fast = generate(model, [0, 1, 2], method="jacobi", window=window, guidance=guidance, seed=11)
    assert torch.equal(plain.tokens, fast.tokens)
    assert fast.stats.exactness == "token-exact"
    assert fast.stats.target_calls < plain.stats.target_calls == 25


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("guidance", [None, 2.5])
def test_a_picture_depends_on_its_own_seed_only(model, method, guidance):
    together = generate(model, [0, 1, 2], method=method, **windowed(method, 9), guidance=guidance, seed=[5, 6, 7])
    for row in (0, 2):
        alone = generate(model, [row], method=method, **windowed(method, 9), guidance=guidance, seed=5 + row)
        assert torch.equal(alone.tokens[0], together.tokens[row]), f"{method}: row {row}"


@pytest.mark.parametrize("method", METHODS)
def test_greedy_is_greedy_by_every_exact_method(model, method):
    out = generate(model, [0, 2], method=method, **windowed(method, 8), guidance=2.0, temperature=0.0)
    best = distribution_by_hand(model, [0, 2], out.sequences, 2.0).argmax(-1)
    if out.stats.exactness != "lossy" and "unmetered" not in out.stats.exactness:
        assert torch.equal(best, out.sequences)


def test_guidance_is_the_mixed_distribution_and_a_scale_of_one_is_none():
    history = History(torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 2, 3, dtype=torch.bool), torch.zeros(4, 2, dtype=torch.long))
    scores = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
    cond, uncond = scores.chunk(2)
    mixed = Guided((), [1.0, 4.0])(scores, history)
    assert torch.equal(mixed[0], cond[0])
    assert torch.allclose(mixed[1], uncond[1] + 4 * (cond[1] - uncond[1]))


@pytest.mark.parametrize("method", METHODS)
def test_pairs_with_scale_one_draw_what_single_rows_draw(model, method):
    """Both sides are guided: target and trained drafter. With scale 1 in every row nothing may change."""
    single = generate(model, [0, 1], method=method, **windowed(method, 8), seed=3)
    pairs = generate(model, [0, 1], method=method, **windowed(method, 8), guidance=[1.0, 1.0], seed=3)
    assert torch.equal(single.tokens, pairs.tokens)
    assert single.stats.row_calls == pairs.stats.row_calls


def test_the_distribution_under_guidance_and_top_k_is_the_one_written_by_hand(model):
    """Plain sampling's draws are argmax(log p + g): with a distribution cut to one code they are the argmax by hand, whatever the seed."""
    out = generate(model, [1, 2], method="scd", window=6, guidance=[2.0, 6.0], top_k=1, seed=4)
    assert torch.equal(out.sequences, distribution_by_hand(model, [1, 2], out.sequences, [2.0, 6.0]).argmax(-1))


def test_a_trained_drafter_is_guided_by_the_same_scale(model):
    """The distribution each chain begins with is the net's own over both halves, mixed as the target's: by the training unroll, no
    cache."""
    found = []

    def look(step) -> None:
        if step.draft.q is not None:
            found.append((step.draft.start, step.draft.q.log_probs()[:, 0]))

    chain = replace(METHODS["eagle"], shape=Chain(), accept=Token())
    out = generate(model, [0, 2], method=chain, window=4, guidance=3.0, seed=9, on_step=look)
    net, target = model.drafter, model.model
    logits = []
    for classes in ([0, 2], [3, 3]):
        with torch.no_grad():
            states = target.states(target.cls_embedding(torch.tensor(classes)), out.sequences)
            ids = torch.cat([torch.zeros_like(out.sequences[:, :1]), out.sequences[:, :-1]], 1)
            window = RecordedWindow(ids, states, states, torch.ones_like(ids, dtype=torch.bool))
            logits.append(next(iter(unroll(net, window, target.tok_embeddings, target.output, 1))).logits)
    cond, uncond = logits
    mixed, checked = (uncond + 3.0 * (cond - uncond)).log_softmax(-1), 0
    for starts, distributions in found:
        for row, start in enumerate(starts.tolist()):
            if 0 < start < 24:  # at the end a row has no room left for draft tokens
                assert torch.allclose(distributions[row], mixed[row, start - 1], atol=1e-4), f"row {row}, position {start}"
                checked += 1
    assert checked > 8


@pytest.mark.parametrize("method", ["gsd", "cool-sd", "lantern", "lantern++"])
def test_a_drift_budget_is_kept_within_one_position(model, method):
    free = generate(model, [0, 1, 2, 0], method=method, window=8, seed=1, guidance=2.0)
    assert free.stats.exactness == "lossy"
    capped = generate(model, [0], method=method, window=8, seed=1, guidance=2.0, drift_budget=0.3)
    none = generate(model, [0, 1, 2, 0], method=method, window=8, seed=1, guidance=2.0, drift_budget=0.0)
    assert 0 <= capped.stats.drift <= 1.3
    assert none.stats.drift == 0.0 < free.stats.drift


def test_relaxed_rules_go_with_coupled_windows(model):
    out = generate(model, [0, 1], method="scd", window=8, accept=CoolSD(), seed=1)
    assert out.stats.exactness == "lossy"
    assert out.stats.drift > 0


def test_automatic_windows_keep_the_picture_where_it_does_not_depend_on_them(model):
    plain = generate(model, [0, 1], method="plain", seed=2)
    assert torch.equal(plain.tokens, generate(model, [0, 1], method="jacobi", window="auto", seed=2).tokens)


@pytest.mark.parametrize("init", ["uniform", "left", "up", "up-left", "carried", "usual"])
def test_every_initialiser_leaves_jacobi_exact(model, init):
    plain = generate(model, [0, 1], method="plain", seed=2)
    assert torch.equal(plain.tokens, generate(model, [0, 1], method="jacobi", window=12, init=init, seed=2).tokens)


def test_runs_say_where_values_were_committed_together(model):
    out = generate(model, [0, 1], method="scd", window=10, seed=2)
    assert out.runs.shape == out.tokens.shape == (2, 5, 5)
    assert out.runs.min() >= 1
    assert out.runs.max() <= 10
    forwards = (1 / out.runs.double()).sum((1, 2))  # a run of n cells is one forward
    assert forwards.sum().round() == out.stats.row_calls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "warp"}, "unknown method 'warp'; valid: plain, jacobi, sjd"),
        ({"prompts": ["wolf"]}, "unknown class 'wolf': give a number from 0 to 2, or one of: cat, dog, owl"),
        ({"prompts": [3]}, "unknown class 3"),
        ({"prompts": []}, r"prompts is \[\]: give at least one"),
        ({"window": 0}, "window is 0: give at least 1"),
        ({"window": "wide"}, "window is 'wide'"),
        ({"guidance": -1.0}, "guidance is -1.0"),
        ({"guidance": float("nan")}, "guidance is nan"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"init": "down"}, "unknown initialiser 'down'; valid: uniform, left"),
        ({"size": 256}, "one size only"),
        ({"seed": [1, 2]}, "seed has 2 entries for 1 rows"),
        ({"method": "pjd", "drift_budget": 0.1}, "drift_budget is 0.1, but it is for methods that judge draft tokens"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model, change, message):
    request = {"prompts": [0], "method": "scd"} | change
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as found:
        generate(model, **request)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("method", TRAINED)
def test_trained_methods_say_when_they_have_no_net(model, method):
    bare = LlamaGenPictures(model.model, codebook=model.codebook)
    with pytest.raises(ValueError, match=r"pass drafter=\.\.\."):
        generate(bare, [0], method=method)


def test_block_is_refused_with_coupled_windows(model):
    with pytest.raises(ValueError, match="block verification"):
        generate(model, [0], method="scd", accept=METHODS["block"].accept)


def test_pictures_need_a_decoder_only_when_they_are_asked_for(model):
    out = generate(model, [0])
    assert out.tokens.shape == (1, 5, 5)
    with pytest.raises(ValueError, match="to_pictures"):
        _ = out.images


def test_a_bare_model_finds_its_adapter(model):
    assert torch.equal(generate(model.model, [0, 2], seed=6).tokens, generate(model, [0, 2], seed=6).tokens)
    with pytest.raises(ValueError, match="Linear is not a known image model"):
        generate(torch.nn.Linear(1, 1), [0])


@pytest.mark.parametrize("window", [6, 14])
def test_a_window_takes_the_draws_that_its_couple_would_make(window, monkeypatch):
    """The target's own draws of the round before stand at the positions that have a distribution; with an offset of one they would not."""
    checked, plain = [], WindowSession.propose

    def propose(self, pending, budget, noise):
        seen, length = self.seen, min(self.levels, budget.length)
        found = plain(self, pending, budget, noise)
        if seen is not None and seen.drawn is not None and length:
            steps = torch.arange(length)
            position = pending.start[:, None] + steps
            there = (steps < seen.left) & found.valid[:, 1:]
            wanted = seen.distributions(steps).sample(noise.draft_token(position, pending.start))
            assert torch.equal(found.draft_tokens[there], wanted[there])
            checked.append(int(there.sum()))
        return found

    monkeypatch.setattr(WindowSession, "propose", propose)
    generate(guided_model(), [0, 1, 2], method="jacobi", window=window, guidance=2.0, seed=5)
    assert sum(checked) > 20


def test_pictures_begin_with_the_codes_of_earlier_ones_and_stay_the_same():
    model, options = guided_model(), {"window": 9, "seed": 3, "init": "usual"}
    record = code_record(model.model, model.raster)
    assert record.codes is None
    plain = generate(model, [0, 1], method="plain", seed=3)
    assert record.codes == usual_codes(plain.sequences, model.raster)
    assert torch.equal(generate(model, [0, 1], **options).tokens, plain.tokens)
    right = copy(model)
    right.usual_codes = tuple(plain.sequences[0].tolist())
    out = generate(right, [0], **options)
    assert torch.equal(out.tokens, plain.tokens[:1])
    assert out.stats.row_calls == 3  # 25 codes, 9 a forward: every draft token was the right one
    small = copy(model)
    small.usual_codes = (0, 1)  # of another raster
    assert torch.equal(generate(small, [0, 1], **options).tokens, plain.tokens)


def test_the_usual_code_is_the_one_that_several_pictures_share():
    raster = Raster.grid(2, 2, 6, row_end=6)
    one = torch.tensor([[0, 4, 6, 5, 4, 6]])
    assert usual_codes(one, raster) == (4, 4, FREE, 4, 4, FREE)  # the commonest of the only picture
    more = torch.tensor([[0, 1, 6, 5, 2, 6], [0, 3, 6, 5, 2, 6], [1, 4, 6, 4, 0, 6]])
    assert usual_codes(more, raster) == (0, 0, FREE, 5, 2, FREE)  # where they differ, 0 stands: it makes up a quarter of their codes
    more[2, 4] = 3
    assert usual_codes(more, raster) == (0, FREE, FREE, 5, 2, FREE)  # no code does
    counts = torch.tensor([[position % 6, 0, 6, 0, 0, 6] for position in range(60)])
    counts[:, 3:5] = torch.arange(1, 6).repeat(12)[:, None]  # each code twelve times of sixty
    counts[:2, 0], counts[2:, 0] = 0, 1
    assert usual_codes(counts, raster)[:2] == (1, 0)


def test_pictures_that_depend_on_their_drafts_never_begin_with_earlier_ones():
    seen = guided_model()
    options = {"method": "scd", "init": "usual", "window": 9, "seed": 3}
    first = generate(seen, [0, 1], **options)
    generate(seen, [2, 1], method="plain", seed=8)
    again = generate(seen, [0, 1], **options)
    assert torch.equal(first.tokens, again.tokens)
    assert first.stats.row_calls == again.stats.row_calls
