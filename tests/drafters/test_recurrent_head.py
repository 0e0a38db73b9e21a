"""A recurrent head drafts what it was taught to say, is read from disk as it was written, and leaves beam search's result alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmspec.core.records import PAD
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.heads.recurrent import RecurrentGuide, RecurrentHead
from mmspec.recsys import recommend
from mmspec.recsys.catalogue import Catalogue
from mmspec.train.item_head import item_example
from tests import beam_world as world

CATALOGUE = world.shop()
USERS = world.users(CATALOGUE, 5, seed=2)


def head(model: Any, seed: int = 0) -> RecurrentHead:
    torch.manual_seed(seed)
    return RecurrentHead.of(model, CATALOGUE.paths).eval()


def written(catalogue: Catalogue, histories: list[list[Any]]) -> dict[str, torch.Tensor]:
    """Histories padded on the right, as they are learnt from."""
    lines = [catalogue.tokens(history) for history in histories]
    width = max(map(len, lines))
    ids = torch.tensor([line + [0] * (width - len(line)) for line in lines])
    return {"input_ids": ids, "attention_mask": torch.tensor([[1] * len(line) + [0] * (width - len(line)) for line in lines])}


@torch.no_grad()
def told_by(model: Any, tokens: list[int]) -> torch.Tensor:
    """[H] the last hidden state after `tokens`, by a forward of its own."""
    return model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, -1]


@pytest.mark.parametrize("family", ["llama", "qwen3", "t5"])
def test_strict_output_is_plains(family):
    model = world.make(family)
    for k, width in ((1, 4), (5, 5), (10, 40)):
        plain = recommend(model, USERS, k=k, catalogue=CATALOGUE, method="plain")
        for length in ("auto", 1):
            found = recommend(model, USERS, k=k, catalogue=CATALOGUE, drafter=head(model), width=width, draft_length=length)
            assert found.items == plain.items
            assert torch.equal(found.paths, plain.paths)
            assert found.stats.target_calls <= plain.stats.target_calls
    mask = torch.rand(len(CATALOGUE), generator=torch.Generator().manual_seed(1)) < 0.1
    some = recommend(model, USERS[:1], k=5, catalogue=CATALOGUE, drafter=head(model), allowed=mask)
    assert some.items == recommend(model, USERS[:1], k=5, catalogue=CATALOGUE, allowed=mask).items


def test_it_drafts_what_it_is_taught(monkeypatch):
    """Every distribution a draft asks for is the one `unroll` gives along the same path, from the state that told the beam's newest
    token."""
    model = world.make()
    net, seen = head(model), []
    weigh: Callable = RecurrentGuide.weigh

    def noted(guide, draft, children):
        seen.append((draft, children, weigh(guide, draft, children)))
        return seen[-1][2]

    monkeypatch.setattr(RecurrentGuide, "weigh", noted)
    recommend(model, USERS, k=3, catalogue=CATALOGUE, drafter=net, width=6)
    levels, compared = set(), 0
    for draft, children, log_q in seen:
        made = len(draft.aux.layers)
        for row in range(len(USERS)):
            for column in range(children.state.shape[1]):
                node = draft.size - children.state.shape[1] + column
                if draft.parents[row, node] == PAD or not bool(children.valid[row, column].any()):
                    continue
                path = world.tokens_to(draft, row, node)
                start = len(path) - made - 1  # tokens before the beam's newest one
                assert start == int(draft.start[row]) - 1
                hidden = told_by(model, CATALOGUE.tokens(USERS[row]) + path[:start])
                tokens = torch.tensor([path + [0] * (CATALOGUE.levels - len(path))])
                states = hidden.expand(1, CATALOGUE.levels, -1)
                told = [level for level, _ in net.unroll(states, tokens, model.get_input_embeddings())]
                distributions = [distribution for _, distribution in net.unroll(states, tokens, model.get_input_embeddings())]
                at = sum(net.levels - 1 - begun for begun in range(start)) + made
                assert told[at] == len(path)
                valid = children.valid[row, column]
                place = torch.searchsorted(net.tokens[len(path) - 1], children.token[row, column][valid])
                assert (distributions[at][0, place] - log_q[row, column][valid]).abs().max() < 1e-4
                levels.add((start, made))
                compared += 1
    assert compared >= 50
    assert {(0, 0), (0, 1), (1, 0)} <= levels  # from the prompt's end, deeper, and from a later round's beams


def test_the_first_round_is_plain():
    model = world.make()
    steps = []
    recommend(model, USERS, k=3, catalogue=CATALOGUE, drafter=head(model), on_step=steps.append)
    assert steps[0].draft.size == 1
    assert steps[1].draft.size == 1 + 3 + 2 * 12  # the beams, and two levels of draft tokens: the last one is never drafted


def forgetful() -> Any:
    """A target whose distribution depends on the newest token alone. Tokens of a level have embeddings of length 1 in a block of their own,
    from which the final norm makes hidden states so small that tanh leaves them alone, and the head of the next level reads that block."""
    model, levels, chance = world.make(), CATALOGUE.levels, torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    wide = model.config.hidden_size // levels
    embed, rows = model.model.embed_tokens.weight.data.zero_(), model.lm_head.weight.data.zero_()
    for token in range(len(embed)):
        level = (token - world.OFFSET) // world.CODES % levels  # what is no code counts as the last level's
        own, before = (slice(at * wide, (at + 1) * wide) for at in (level, (level - 1) % levels))
        embed[token, own] = torch.randn(wide, generator=chance)
        embed[token, own.start] = 3.0  # says of which level it is
        rows[token, before] = 1e3 * torch.randn(wide, generator=chance)
        rows[token, before.start] = 1e4
    embed.div_(embed.square().mean(1, keepdim=True).sqrt())
    model.model.norm.weight.data.fill_(1e-3)
    return model


def knowing(model: Any) -> RecurrentHead:
    """The head that says what a `forgetful` target does: r is the newest token's hidden state, and h stands in blocks it does not read."""
    net, wide = head(model), model.config.hidden_size // CATALOGUE.levels
    for parameter in net.cell.parameters():
        parameter.data.zero_()
    net.cell.weight_ih.data = 1e-3 * torch.eye(net.hidden)
    for level, rows in enumerate(net.weight.data):
        rows[:, : level * wide] = rows[:, (level + 1) * wide :] = 0
    return net


def test_a_head_that_is_right_needs_two_calls():
    model = forgetful()
    for k in (1, 5, 10):
        found = recommend(model, USERS, k=k, catalogue=CATALOGUE, drafter=knowing(model), width=k)
        assert found.stats.target_calls == 2
        assert found.items == recommend(model, USERS, k=k, catalogue=CATALOGUE).items
    net = knowing(model)
    net.weight.data[1] = net.weight.data[1].flip(0)  # a planted mistake
    assert recommend(model, USERS, k=5, catalogue=CATALOGUE, drafter=net, width=5).stats.target_calls > 2


def test_it_learns():
    model = world.make()
    net, losses = head(model).train(), []
    example = item_example(model, written(CATALOGUE, USERS), 1, CATALOGUE.levels)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(25):
        loss = net.loss(example.hidden, example.tokens, model.get_input_embeddings(), example.log_p)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_examples_are_what_the_target_says():
    model = world.make()
    histories = USERS[:3]
    example = item_example(model, written(CATALOGUE, histories), 1, CATALOGUE.levels)
    places = [(history, number) for history in histories for number in range(len(history))]
    assert len(example.tokens) == len(places)
    for n, (history, number) in enumerate(places):
        ids = CATALOGUE.tokens(history)
        for level in range(CATALOGUE.levels):
            end = 1 + number * CATALOGUE.levels + level
            assert int(example.tokens[n, level]) == ids[end]
            assert (example.hidden[n, level] - told_by(model, ids[:end])).abs().max() < 1e-4
            distribution = model(torch.tensor([ids[:end]])).logits[0, -1].log_softmax(-1)
            assert (example.log_p[n, level] - distribution).abs().max() < 1e-4
    bare = {name: value[:, 1:] for name, value in written(CATALOGUE, histories).items()}
    assert len(item_example(model, bare, 0, CATALOGUE.levels).tokens) == len(places) - len(histories)  # nothing tells a first item
    with pytest.raises(ValueError, match="has an encoder"):
        item_example(world.make("t5"), bare, 0, CATALOGUE.levels)


def test_the_loss_by_hand_and_its_gradients():
    model = world.make()
    net, embed = head(model).train(), model.get_input_embeddings()
    example = item_example(model, written(CATALOGUE, USERS), 1, CATALOGUE.levels)
    for every in (True, False):
        ce, kl = [], []
        for start in range(CATALOGUE.levels - 1 if every else 1):
            state = example.hidden[:, start]
            for level in range(start + 1, CATALOGUE.levels):
                state = net.cell(embed(example.tokens[:, level - 1]), state)
                ids = net.tokens[level - 1][net.tokens[level - 1] < 2**31 - 1]
                said = ((state + example.hidden[:, start]) @ net.weight[level - 1, : len(ids)].T).log_softmax(-1)
                wanted = example.log_p[:, level, ids].log_softmax(-1)
                place = (ids == example.tokens[:, level, None]).long().argmax(1)
                ce.append(-said.gather(1, place[:, None]).mean())
                kl.append((wanted.exp() * (wanted - said)).sum(-1).mean())
        got = net.loss(example.hidden, example.tokens, embed, example.log_p, mix=0.25, every=every)
        assert got.item() == pytest.approx((0.25 * sum(ce) / len(ce) + 0.75 * sum(kl) / len(kl)).item(), rel=1e-4)
        assert net.loss(example.hidden, example.tokens, embed, every=every).item() == pytest.approx((sum(ce) / len(ce)).item(), rel=1e-4)
    got.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all())
        assert float(parameter.grad.abs().max()) > 0, name
    assert embed.weight.grad is None


def test_it_begins_with_the_targets_own_rows():
    model = world.make()
    net = head(model)
    assert torch.equal(net.weight[1, 3], model.lm_head.weight[net.tokens[1, 3]])
    assert net.tokens[0].tolist() == CATALOGUE.paths[:, 1].unique().tolist()


def test_levels_with_fewer_codes():
    """Codes that a level does not have are no part of its distribution."""
    paths = torch.tensor([[2, 10, 20], [2, 11, 20], [3, 10, 21], [3, 12, 22]])
    catalogue = Catalogue(tuple("abcd"), paths, before=(1,))
    model = world.make()
    net = RecurrentHead.of(model, paths)
    assert sorted(net.config.items()) == [("codes", 3), ("hidden", 32), ("levels", 3)]
    log_q = net.distribution(torch.randn(1, 2, 32), torch.tensor([1]))
    assert float(log_q.exp().sum(-1)[0, 0].detach()) == pytest.approx(1, abs=1e-5)
    few = RecurrentHead.of(model, torch.tensor([[2, 10, 20], [3, 10, 21]]))
    assert float(few.distribution(torch.randn(1, 1, 32), torch.tensor([1])).exp()[0, 0, 0].detach()) == pytest.approx(1)
    assert net.of_tokens(log_q, torch.tensor([[[10, 7]] * 2]), torch.tensor([1]))[0, 0].isinf().tolist() == [False, True]
    found = recommend(model, [["a"], ["d", "b"]], k=4, catalogue=catalogue, drafter=net)
    assert found.items == recommend(model, [["a"], ["d", "b"]], k=4, catalogue=catalogue).items


def test_saved_is_loaded_and_fits(tmp_path):
    model = world.make()
    net = head(model)
    save_drafter(net, tmp_path / "head")
    again = load_drafter(tmp_path / "head", model)
    assert type(again) is RecurrentHead
    for name, tensor in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert recommend(model, USERS, k=3, catalogue=CATALOGUE, drafter=again).items == recommend(model, USERS, k=3, catalogue=CATALOGUE).items
    with pytest.raises(ValueError, match="reads hidden states 32 wide, but the target's are 16"):
        load_drafter(tmp_path / "head", world.make(hidden=16))
    with pytest.raises(ValueError, match="recurrent-head drafter reads hidden states 32 wide"):
        recommend(world.make(hidden=16), USERS, k=3, catalogue=CATALOGUE, drafter=net)
    short = Catalogue.of_codes(["a", "b"], torch.tensor([[0, 1], [1, 0]]), 2, 2, before=(1,))
    with pytest.raises(ValueError, match="drafts paths of 4 tokens, but the catalogue's have 2"):
        recommend(model, [["a"]], k=1, catalogue=short, drafter=net)
    net.tokens = net.tokens.flip(1)
    save_drafter(net, tmp_path / "mixed")
    with pytest.raises(ValueError, match="in rising order"):
        load_drafter(tmp_path / "mixed", model)
    with pytest.raises(ValueError, match="hidden, levels and codes are 8, 1 and 4"):
        RecurrentHead(8, 1, 4)


def test_it_is_small():
    sizes = RecurrentHead(256, 4, 64)
    assert sum(parameter.numel() for parameter in sizes.parameters()) < 0.2e6
