"""Trained drafters over models with states: they read hidden states of these models, and change none of their tokens."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import mmspec
from mmspec.core.records import Draft
from mmspec.drafters.checkpoints.nets import begin_training, new_net
from mmspec.drafters.guided import head_of
from mmspec.models.families.registry import family_of
from mmspec.models.module_copy import own_copy
from mmspec.models.stack import stack, tapped
from mmspec.models.target import HFTarget
from mmspec.train.distillation import Aim, DistillationLoss, Joint, aim_for
from mmspec.train.record import record
from tests.hybrids import HYBRIDS, prompts, row_of, small
from tests.sizes import VOCAB

TOKENS, LENGTHS = 14, (7, 12, 2)
TAUGHT = ("Qwen3-Next", "Granite-MoE-hybrid")
NETS: dict[str, dict[str, Any]] = {
    "medusa": {"heads": 4},
    "hydra": {"heads": 4},
    "eagle1": {},
    "eagle3": {},
    "dflash": {"block": 5},
    "dspark": {"block": 4, "anchors": 16},
    "p-eagle": {"tokens": 4},
}


@cache
def model_of(name: str) -> Any:
    return small(name)


@cache
def written(name: str, temperature: float) -> list[list[int]]:
    """The new tokens on every prompt alone: of the class's own `generate`, and of plain sampling."""
    model, inputs, found = model_of(name), prompts(LENGTHS), []
    for row in range(len(LENGTHS)):
        own = row_of(inputs, row)
        if temperature:
            out = mmspec.text.generate(model, own, max_new_tokens=TOKENS, temperature=temperature, seed=3 + row).tokens[0].tolist()
        else:
            out = model.generate(**own, do_sample=False, max_new_tokens=TOKENS)[0, own["input_ids"].shape[1] :].tolist()
        found.append(out)
    return found


def windows(name: str, temperatures: tuple[float, ...] = (0.0, 1.0)) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts and what was written after them, packed to the left, and which of it was written."""
    ids = torch.zeros(len(LENGTHS) * len(temperatures), max(LENGTHS) + TOKENS, dtype=torch.long)
    own = torch.zeros_like(ids, dtype=torch.bool)
    for number, (temperature, row) in enumerate((each, row) for each in temperatures for row in range(len(LENGTHS))):
        text = row_of(prompts(LENGTHS), row)["input_ids"][0].tolist() + written(name, temperature)[row]
        ids[number, : len(text)] = torch.tensor(text)
        own[number, LENGTHS[row] : len(text)] = True
    return ids, own


@cache
def taught(name: str, kind: str, steps: int = 60) -> Any:
    """A net that has learned these texts nearly by heart, so that rounds keep parts of drafts."""
    torch.manual_seed(0)
    model = model_of(name)
    ids, own = windows(name)
    net = new_net(kind, model, NETS[kind])
    begin_training(net, model, ids[own])
    loss = DistillationLoss(net.train(), model, aim_for(net))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    with TemporaryDirectory() as folder:
        data = record(model, ids, own, net.reads, Path(folder))
        window = data.window(range(len(ids)))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(window).backward()
        optimizer.step()
    return net.eval()


@torch.no_grad()
def hidden_alone(model: Any, ids: list[int], states: tuple[int, ...]) -> torch.Tensor:
    """Hidden states [N, F] of one text, run as a whole."""
    own = own_copy(model)
    with tapped(own, states) as found:
        own(torch.tensor([ids]))
    return torch.cat([found[state] for state in states], -1)[0]


# --- tokens -----------------------------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "chain": {"draft_length": 4},
    "comb": {"tree": "comb", "draft_length": 3},
    "tree": {"tree": (3, 2, 1)},
    "search": {"tree": "expand"},
}


GROWN = {  # trees at temperatures: all of them by one model, each at one by the other
    "Qwen3-Next": (("comb", 1.0), ("tree", 0.0), ("search", 0.0)),
    "Granite-MoE-hybrid": tuple((form, temperature) for form in ("comb", "tree", "search") for temperature in (0.0, 1.0)),
}


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.parametrize("kind", NETS)
def test_taught_drafters_change_no_token(name, kind):
    net, found = taught(name, kind), {}
    for form, temperature in [("chain", 0.0), ("chain", 1.0), *GROWN[name]]:
        out = mmspec.text.generate(
            model_of(name), prompts(LENGTHS), net, max_new_tokens=TOKENS, temperature=temperature, seed=3, **FORMS[form]
        )
        assert out.tokens.tolist() == written(name, temperature), (form, temperature)
        found[form, temperature] = out.stats.tokens_per_call
    assert max(found.values()) > 2, f"rounds keep too little to test a commit: {found}"
    assert min(found["chain", temperature] for temperature in (0.0, 1.0)) > 1.2, found


@pytest.mark.parametrize("name", [name for name in HYBRIDS if name not in TAUGHT])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_every_family_has_drafters_of_its_sizes(name, kind):
    net = taught(name, kind, 20)
    for temperature, form in {"eagle3": ((0.0, "chain"), (1.0, "comb")), "dflash": ((0.0, "tree"), (1.0, "chain"))}[kind]:
        out = mmspec.text.generate(
            model_of(name), prompts(LENGTHS), net, max_new_tokens=TOKENS, temperature=temperature, seed=3, **FORMS[form]
        )
        assert out.tokens.tolist() == written(name, temperature), (form, temperature)


@pytest.mark.parametrize("name", TAUGHT)
@pytest.mark.parametrize("kind", ["medusa", "eagle1", "dspark"])
@pytest.mark.parametrize("form", ["chain", "tree", "search"])
def test_rows_that_end_early_and_budgets_that_end_in_a_draft(name, kind, form):
    """Rows reach an end token in different rounds, and every number of new tokens cuts a draft elsewhere."""
    expected = written(name, 0.0)
    model, net = model_of(name), taught(name, kind)
    for most in (1, 2, 9):
        out = mmspec.text.generate(model, prompts(LENGTHS), net, max_new_tokens=most, **FORMS[form])
        assert out.tokens.tolist() == [row[:most] for row in expected], most

    def ends(row: int, ids: list[int]) -> bool:
        return len(ids) >= (4, 9, 14)[row]

    out = mmspec.text.generate(model, prompts(LENGTHS), net, max_new_tokens=TOKENS, stops=(ends,), **FORMS[form])
    assert out.lengths.tolist() == [4, 9, 14]
    assert [ids[:n].tolist() for ids, n in zip(out.tokens, (4, 9, 14), strict=True)] == [
        row[:n] for row, n in zip(expected, (4, 9, 14), strict=True)
    ]


# --- hidden states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HYBRIDS)
def test_hidden_states_of_drafts_are_those_of_the_path_alone(name):
    """Of the prompt, of a chain that rows keep unequal parts of, and of the tree after it."""
    model, states = model_of(name), (0, 1, -1)
    wanted = (0, 1, len(stack(model)))
    session, pending = HFTarget(model, family_of(model)).begin(prompts(LENGTHS))
    session.watch(states)
    text = [row_of(prompts(LENGTHS), row)["input_ids"][0].tolist()[:-1] for row in range(3)]
    generator = torch.Generator().manual_seed(6)
    for above, keeps in (((0, 1, 2), ((0, 1, 2, 3), (0,), (0, 1))), ((0, 0, 1, 2, 2), ((0, 2, 4), (0, 1, 3), (0,)))):
        linear = above == tuple(range(len(above)))
        nodes = torch.randint(3, VOCAB, (3, len(above)), generator=generator)
        draft = pending.extend(nodes, torch.tensor(above).repeat(3, 1), linear=linear, width=2, levels=None if linear else len(above))
        scored = session.score(draft)
        for row in range(3):
            if scored.context is not None:
                alone = hidden_alone(model, text[row], wanted)
                assert (scored.context.hidden[row, : len(text[row])] - alone).abs().max() < 1e-4 * alone.abs().max()
            for node in range(draft.size):
                path, at = [], node
                while at >= 0:
                    path, at = [int(draft.nodes[row, at]), *path], int(draft.parents[row, at])
                alone = hidden_alone(model, text[row] + path, wanted)[-1]
                assert (scored.hidden[row, node] - alone).abs().max() < 1e-4 * alone.abs().max(), (row, node)
        longest = max(map(len, keeps))
        session.commit(torch.tensor([[*columns, *[-1] * (longest - len(columns))] for columns in keeps]), longest)
        for row, columns in enumerate(keeps):
            text[row] += draft.nodes[row, list(columns)].tolist()
        pending = Draft.root(torch.tensor([5, 6, 7]), draft.start + torch.tensor(list(map(len, keeps))))


@pytest.mark.parametrize("name", HYBRIDS)
def test_recorded_states_are_those_of_each_row_alone(name, tmp_path):
    """Rows are padded behind, so nothing that a row's states are computed from is padding."""
    model, lengths = model_of(name), (14, 9, 6)
    ids = torch.randint(3, VOCAB, (3, 14), generator=torch.Generator().manual_seed(0))
    own = torch.zeros_like(ids, dtype=torch.bool)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
        own[row, 2:length] = True
    window = record(model, ids, own, (0, 1), tmp_path).window(range(3))
    for row, length in enumerate(lengths):
        text = ids[row, :length].tolist()
        alone = hidden_alone(model, text, (0, 1, len(stack(model))))
        found = torch.cat([window.features, window.last], -1)[row, :length]
        assert (found - alone).abs().max() < 1e-4 * alone.abs().max()
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0].float()
        assert torch.allclose(window.total[row, 1 : length - 1], logits[1:-1].logsumexp(-1), atol=1e-4)
        assert torch.equal(window.best[row, 1 : length - 1], logits[1:-1].argmax(-1))


@pytest.mark.parametrize(
    ("name", "setting", "value"), [("Falcon-H1", "lm_head_multiplier", 3.0), ("RecurrentGemma", "logits_soft_cap", 2.0)]
)
def test_scales_and_caps_of_logits_are_read(name, setting, value, tmp_path):
    model = small(name)
    setattr(model.config, setting, value)
    if hasattr(model.get_decoder(), setting):
        setattr(model.get_decoder(), setting, value)
    ids = torch.randint(3, VOCAB, (1, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = model(ids, output_hidden_states=True)
        assert torch.allclose(head_of(model)(out.hidden_states[-1]), out.logits, atol=1e-5)
        assert not torch.allclose(model.get_output_embeddings()(out.hidden_states[-1]), out.logits, atol=1e-2)
    record(model, ids, ids > 0, (1,), tmp_path / "states")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_logits_of_another_making_are_refused_before_training(tmp_path):
    model = small("Falcon-H1")
    model.get_decoder().lm_head_multiplier = 3.0  # not what its config says
    ids = torch.randint(3, VOCAB, (1, 8), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="not its output head's product") as caught:
        record(model, ids, ids > 0, (1,), tmp_path / "states")
    assert "\n" not in str(caught.value)


def test_drafters_that_need_masks_or_numbers_of_states_are_refused():
    model = model_of("Qwen3-Next")
    with pytest.raises(ValueError, match="has layers that read none: train another kind"):
        begin_training(new_net("mask-tokens", model), model, torch.arange(3, 9))
    mamba = model_of("Mamba")
    with pytest.raises(ValueError, match="train the drafter alone"):
        Joint(new_net("medusa", mamba), mamba, Aim())
