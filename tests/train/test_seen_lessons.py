"""Lessons with pictures: what the target answered, what it thought while it did, and that learning them raises acceptance."""

import pytest
import torch

import mmspec
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.on_policy_text import Writing, write_own_answers
from mmspec.train.record import record_answers, record_window
from tests.drafters.test_seeing import ALL, IMAGE, PROMPTS, asked, target  # noqa: F401  a fixture

PLAN = Writing(temperatures=(0.0, 1.0), opening=16, new=12, chunk=4)
REQUESTS = 16


def ask(first, end):
    """The four prompts again and again, other pictures every time."""
    assert (first % 4, end % 4) == (0, 0)
    return _joined([asked(*range(4), seed=turn) for turn in range(first // 4, end // 4)])


def _joined(parts):
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


@pytest.fixture(scope="module")
def written(target, tmp_path_factory):  # noqa: F811
    return write_own_answers(target, ask, REQUESTS, PLAN, tmp_path_factory.mktemp("answers"))


def test_answers_are_the_targets_own_in_the_order_asked(target, written, tmp_path):  # noqa: F811
    answers, lengths = written
    assert (tuple(answers.shape), lengths.tolist()) == ((REQUESTS, 12), [12] * REQUESTS)
    for turn, temperature in enumerate((0.0, 1.0)):
        out = mmspec.text.generate(target, asked(*range(4), seed=turn), max_new_tokens=12, temperature=temperature, seed=4 * turn)
        assert answers[4 * turn : 4 * turn + 4].tolist() == out.sequences.tolist()


def test_answers_of_other_settings_are_not_taken_for_these(target, tmp_path):  # noqa: F811
    write_own_answers(target, ask, 4, PLAN, tmp_path)
    with pytest.raises(ValueError, match="holds text written with prompts 4, not 8: delete it"):
        write_own_answers(target, ask, 8, PLAN, tmp_path)


def test_answers_to_other_pictures_are_not_taken_for_these(target, tmp_path):  # noqa: F811
    write_own_answers(target, ask, 4, PLAN, tmp_path)
    with pytest.raises(ValueError, match=r"text written with requests checksum \w+, not checksum \w+: .* --prompts or --pictures$"):
        write_own_answers(target, lambda first, end: asked(*range(4), seed=9), 4, PLAN, tmp_path)


def test_what_is_recorded_is_what_the_target_thinks_of_each_row_alone(target, written, tmp_path):  # noqa: F811
    """Ragged prompts, and an answer cut short: by hand, each row through the model alone."""
    answers, lengths = written[0][:4].clone(), torch.tensor([12, 3, 12, 7])
    data = record_answers(target, ask, answers, lengths, (0, 2), tmp_path / "states", 16, rows=4)
    window = data.window(range(4))
    assert window.ids.shape[1] == 16 + 12
    for row, (prompt, size) in enumerate(zip(PROMPTS, lengths.tolist(), strict=True)):
        whole = [*prompt, *answers[row, :size].tolist()]
        end = len(whole)
        assert window.ids[row, :end].tolist() == whole
        assert window.own[row].nonzero()[:, 0].tolist() == list(range(len(prompt), end))
        assert (window.pictures[row] > 0).nonzero()[:, 0].tolist() == [i for i, value in enumerate(prompt) if value == IMAGE]
        alone = {key: value for key, value in asked(row, seed=0).items() if key == "pixel_values"}
        with torch.no_grad():
            out = target(input_ids=torch.tensor([whole]), **alone, output_hidden_states=True)
            for name, found in (("features", torch.cat([out.hidden_states[0], out.hidden_states[2]], -1)), ("last", out.hidden_states[-1])):
                assert torch.allclose(getattr(window, name)[row, :end], found[0], rtol=5e-3, atol=5e-3)
            seen = window.pictures[row, :end] > 0
            assert torch.allclose(window.embeds[row, :end][seen], out.hidden_states[0][0][seen], rtol=5e-3, atol=5e-3)


def test_a_prompt_longer_than_its_room_is_refused(target, written, tmp_path):  # noqa: F811
    answers, lengths = written
    with pytest.raises(ValueError, match="a prompt has 15 positions, but windows have room for 14: raise opening"):
        record_answers(target, ask, answers, lengths, (-1,), tmp_path / "states", 14, rows=4)


def test_windows_without_pictures_hold_none(big, tmp_path):
    window = record_window(big, {"input_ids": torch.tensor([[5, 6, 7]])}, torch.tensor([[8, 9]]), torch.tensor([2]), (-1,))
    assert window.pictures is None
    assert window.ids.tolist() == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize("kind", ["hivis", "vispec", "eagle1", "medusa"])
def test_training_raises_acceptance_in_training_and_in_use(target, written, tmp_path, kind):  # noqa: F811
    torch.manual_seed(0)
    net = new_net(kind, target)
    data = record_answers(target, ask, *written, net.reads, tmp_path / "states", 16, rows=8)
    example, everything = DistillationLoss(net, target, Aim(depth=3, distributions={"kl": 1.0, "tv": 0.5})), data.window(range(REQUESTS))
    before, used = example.acceptance(everything), []
    for steps in (0, 60):
        if steps:
            fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=steps, lr=1e-2, warmup=5), tmp_path / "run.pt")
        used.append(mmspec.text.generate(target, ALL, net.eval(), max_new_tokens=12, draft_length=3).stats.accepted)
    assert all(now[0] > then[0] for now, then in zip(example.acceptance(everything), before, strict=True))
    assert used[1] > 1.5 * used[0]


@pytest.mark.parametrize("kind", ["hivis", "vispec", "eagle1"])
def test_windows_are_trimmed_to_what_their_examples_need(target, written, tmp_path, kind):  # noqa: F811
    torch.manual_seed(0)
    net = new_net(kind, target)
    data = record_answers(target, ask, written[0], written[1] - 5, net.reads, tmp_path / "states", 20, rows=8)
    example, window = DistillationLoss(net, target, Aim(depth=3, states=1.0)), data.window([0, 1, 3])
    trimmed = window.trimmed()
    assert trimmed.ids.shape[1] < window.ids.shape[1] == 32
    assert torch.allclose(example(trimmed), example(window), rtol=1e-5)
