"""Mask columns in the training of a small model (PARD): states are those of drafting, and training helps every draft token."""

import json
from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, Mamba2Config, Mamba2ForCausalLM, MistralConfig, MistralForCausalLM

import mmspec
from mmspec.drafters.block.pard import mask_token_of
from mmspec.train import Fit, fit
from mmspec.train.small_model.architecture import small_model
from mmspec.train.small_model.folder import note_acceptance, noted_acceptance, save_small_model
from mmspec.train.small_model.loss import SmallModelLoss, TextWindow
from mmspec.train.small_model.masks import MaskColumns, mask_columns
from mmspec.train.small_model.text import TextSource, TrainingText, estimated_memory
from tests.conftest import llama
from tests.forked import Started
from tests.train.test_small_model import ROOT, mini_text

__all__ = ["mini_text"]
MASK = 49


def mistral() -> torch.nn.Module:
    """Every layer has a sliding window of 4."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = MistralForCausalLM(MistralConfig(vocab_size=50, sliding_window=4, max_position_embeddings=64, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    return model


def text(rows: int = 3, wide: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows, of which the first tokens are prompts and the end of the last row is padding."""
    ids = torch.randint(3, 49, (rows, wide), generator=torch.Generator().manual_seed(1))
    place = torch.arange(wide).expand(rows, -1)
    own = (place >= torch.tensor([[3], [1], [5]])[:rows]) & (place < torch.tensor([[wide], [wide], [wide - 3]])[:rows])
    return ids, own


# --- columns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: llama(2, 0), mistral], ids=["llama", "sliding"])
@torch.no_grad()
def test_a_columns_state_is_that_of_drafting(make):
    """The state of mask k behind position a is that of the last column of text[: a + 1] and k masks, uncached."""
    model, (ids, own) = make(), text()
    columns = MaskColumns(4, MASK).run(model, ids, own, (0, 1, 2))
    assert columns.hidden.shape[:2] == columns.positions.shape == columns.counted.shape
    checked = 0
    for row, column in columns.counted.nonzero().tolist():
        depth, place = int(columns.depths[column]), int(columns.positions[row, column])
        whole = ids[row, : place - depth + 1].tolist() + [MASK] * depth
        alone = model.get_decoder()(torch.tensor([whole])).last_hidden_state[0, -1]
        assert (columns.hidden[row, column] - alone).abs().max() < 1e-4
        assert own[row, place + 1]
        checked += depth > 0
    assert checked > 20


def test_a_mask_that_sees_another_positions_masks_is_caught(monkeypatch):
    """A mutant whose masks see all masks before them."""
    run = MaskColumns._drawn

    def joined(self, own, seeds):
        anchors, depths = run(self, own, seeds)
        return torch.where(depths > 0, anchors.clamp(max=4), anchors), depths

    monkeypatch.setattr(MaskColumns, "_drawn", joined)
    with pytest.raises(AssertionError):
        test_a_columns_state_is_that_of_drafting(lambda: llama(2, 0))


def test_masks_stand_behind_nested_parts_of_the_positions_before_tokens_that_count():
    masks, own = MaskColumns(6, MASK), text(3, 40)[1]
    assert masks.shares == pytest.approx([1, 0.7, 0.49, 0.343, 0.2401, 0.2])
    anchors, depths = masks._drawn(own, (5, 6, 7))
    assert depths.bincount().tolist() == [40, 28, 20, 14, 10, 8]
    for row in range(3):
        behind = [set(anchors[row, depths == depth].tolist()) for depth in range(6)]
        assert all(later < earlier for earlier, later in pairwise(behind))
        wanted = {place for place in range(38) if own[row, place + 2]}
        assert behind[2] <= wanted
    alone, _ = masks._drawn(own[1:2], (6,))
    assert torch.equal(alone[0], anchors[1])  # whatever stands beside it
    assert not torch.equal(masks._drawn(own, (8, 9, 10))[0], anchors)


def test_a_mask_token_is_chosen_by_the_text():
    ids = torch.tensor([[3, 9, 7], [0, 0, 8]])
    assert MaskColumns(4).fitted(ids, 10).mask_id == 6
    assert MaskColumns(4).fitted(ids, 10, (6, 5, 200)).mask_id == 4
    assert MaskColumns(4, 9).fitted(ids, 10).mask_id == 9
    with pytest.raises(ValueError, match="the mask token is 10: give an id from 0 to 9"):
        MaskColumns(4, 10).fitted(ids, 10)
    with pytest.raises(ValueError, match="the text holds all 3 ids"):
        MaskColumns(4).fitted(torch.arange(3)[None], 3)
    with pytest.raises(ValueError, match="no mask token: call fitted"):
        MaskColumns(4).run(llama(1, 0), *text(), (0, 1, 2))


@pytest.mark.parametrize(
    ("asked", "said"),
    [((1,), "give 2 or more"), ((4, 3, 0.0), "a share up to 1"), ((4, 3, 1.5), "a share up to 1"), ((None, 3), "mask token is 3")],
)
def test_what_makes_no_block_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        mask_columns(*asked)


def test_no_block_is_asked_for():
    assert mask_columns(None) is None


# --- loss and training ------------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_all_columns(big):
    """Level by level by hand: the divergence of the drafter's distribution in a column from the target's behind the text."""
    torch.manual_seed(0)
    model, (ids, own) = small_model(big, layers=1), text()
    masks = MaskColumns(3, MASK)
    example = SmallModelLoss(model, big, {"kl": 1.0}, masks=masks, logits=50 * 7)
    window = TextWindow(ids, own, seeds=(4, 5, 6))
    columns = masks.run(model, ids, own, (4, 5, 6))
    with torch.no_grad():
        log_p, log_q = big(ids).logits.log_softmax(-1), model.lm_head(columns.hidden).log_softmax(-1)
    found, taken = [], torch.zeros(3, 2)
    for row, column in columns.counted.nonzero().tolist():
        p, q = log_p[row, columns.positions[row, column]], log_q[row, column]
        found.append((p.exp() * (p - q)).sum())
        taken[columns.depths[column]] += torch.tensor([torch.minimum(p.exp(), q.exp()).sum(), 1.0])
    assert example(window).item() == pytest.approx(torch.stack(found).mean().item(), rel=1e-4)
    assert torch.allclose(example.acceptance_sums(window)[:, [0, 2]], taken, atol=1e-4)
    example(window).backward()
    assert model.get_input_embeddings().weight.grad[MASK].abs().max() > 0


def test_a_model_with_states_is_refused(big):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8}
    model = Mamba2ForCausalLM(Mamba2Config(vocab_size=50, **sizes)).eval()
    with pytest.raises(ValueError, match="Mamba2ForCausalLM has layers with states, which read no mask"):
        SmallModelLoss(model, big, {"kl": 1.0}, masks=MaskColumns(3, MASK))


def test_several_processes_take_the_masks_of_one(big):
    """The windows of a step and their masks, in two parts, are those of one process."""
    ids, own = text()
    data = TrainingText(big, ids.repeat(8, 1), own.repeat(8, 1), 4, TextSource())
    whole, parts = data.draw(None, 3, 6), [data.draw(None, 2 * 3 + part, 6, 2) for part in range(2)]
    for part, window in enumerate(parts):
        assert window.seeds == whole.seeds[part::2]
        assert torch.equal(window.ids, whole.ids[part::2])


def test_masks_are_counted_in_the_memory(big):
    examples = [SmallModelLoss(small_model(big, layers=1), big, {"kl": 1.0}, masks=masks) for masks in (None, MaskColumns(8, MASK))]
    one, other = (estimated_memory(example, big, 100, 4, 20).needed["activations of a step"] for example in examples)
    assert 3 < other / one < 15


def test_training_raises_the_acceptance_of_masks_and_writes_a_folder(mini_text, tmp_path):
    target, (ids, own) = mini_text
    torch.manual_seed(0)
    model, data = small_model(target, layers=1), TrainingText(target, ids, own, 4, TextSource())
    example = SmallModelLoss(model, target, {"kl": 1.0}, masks=MaskColumns(3))
    example.choose_mask(ids, mmspec.load("text").processor.all_special_ids)
    assert not (ids == example.mask_id).any()
    before = data.acceptance(example)
    assert len(before) == 3
    fit(example, lambda module, turn: module(data.draw(model, turn, 4)), Fit(steps=8, lr=5e-3, warmup=2), tmp_path / "c.pt")
    after = data.acceptance(example)
    assert all(now[0] > then[0] + 0.02 for now, then in zip(after[1:], before[1:], strict=True))
    mini = mmspec.load("text")
    said = note_acceptance(tmp_path / "a.jsonl", 8, after)
    assert said.startswith("step 8: held-out acceptance 0.")
    settings = {"model": "mini", "command": "python text/distil_model.py --parallel 4"}
    save_small_model(model, mini.processor, tmp_path / "out", settings, noted_acceptance(tmp_path / "a.jsonl"), example.mask_id)
    assert f"by mask token {example.mask_id} (PARD)" in (tmp_path / "out" / "README.md").read_text()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert mask_token_of(found) == example.mask_id
    some = {name: tensor[:4] for name, tensor in mini.examples.items()}
    out, plain = (mmspec.text.generate(mini.target, some, drafter, max_new_tokens=16, draft_length=3) for drafter in (found, None))
    assert out.tokens.tolist() == plain.tokens.tolist()
    assert out.stats.accepted > 0


# --- the recipe -------------------------------------------------------------------------------------------------------


def test_the_recipe_goes_on_from_a_small_model(tmp_path):
    mini = mmspec.load("text")
    small_model(mini.target, layers=1).save_pretrained(tmp_path / "small")
    arguments = ("--smoke", "--parallel", "3", "--start", "small", "--work", "work")
    done = Started(ROOT / "text" / "distil_model.py", *arguments, cwd=tmp_path, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    config = json.loads((tmp_path / "work" / "model" / "config.json").read_text())
    assert 0 <= config["pard_token"] < config["vocab_size"]
    facts = json.loads((tmp_path / "work" / "model" / "distillation.json").read_text())
    assert [len(line["by_token"]) for line in facts["acceptance"]] == [3, 3]
    assert facts["settings"]["parallel"] == 3


@pytest.mark.parametrize(("change", "said"), [({"layers": 1}, "is a whole model"), ({"size": "config.json"}, "is a whole model")])
def test_a_start_takes_no_other_sizes(big, tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        small_model(big, start=tmp_path, **change)


def test_a_start_of_another_vocabulary_is_refused(big, tmp_path):
    mmspec.load("text").target.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="vocab_size is 2048"):
        small_model(big, start=tmp_path)
