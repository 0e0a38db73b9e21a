"""Lessons on beams: their distributions are those a search sees, forward by forward, and nothing else counts."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.core.beams.trie import NOWHERE
from mmspec.drafters.heads.recurrent import RecurrentHead
from mmspec.recsys import Catalogue, recommend
from mmspec.train.beams import BeamExample, BeamRows, HeadExample, beam_rows, best_items, draft_coverage, restricted
from mmspec.train.losses import LOSSES

LEVELS, SIZE = 4, 6


def llama(hidden=32, seed=0):
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 2 * hidden}
    tokens = {"vocab_size": 2 + LEVELS * SIZE, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(hidden_size=hidden, **sizes, **tokens)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # distributions that differ
    return model


def shop(**options):
    codes = torch.randint(0, SIZE, (60, LEVELS), generator=torch.Generator().manual_seed(1))
    return Catalogue.of_codes(range(60), codes, SIZE, 2, **{"before": (1,), "most": 5, **options})


HISTORIES = [[3], [1, 2, 3, 4, 5, 6, 7], [9, 9, 10]]


def example_of(target, catalogue, histories, best, search=None, past=None):
    rows = beam_rows(catalogue, histories, best)
    return BeamExample(llama(16, seed=5), target, catalogue.trie, search or {"kl": 1.0}, past), rows


@pytest.mark.parametrize("options", [{}, {"after": (0,)}, {"before": ()}, {"before": (1, 0)}])
def test_the_distributions_are_those_of_the_search(options):
    """Down the path of every item found, the lesson's distributions add up to the score the search gave it."""
    catalogue, target = shop(**options), llama()
    out = recommend(target, HISTORIES, k=8, catalogue=catalogue, method="plain")
    assert best_items(target, catalogue, HISTORIES, 8, rows=2) == out.items
    example, rows = example_of(target, catalogue, HISTORIES, out.items)
    with torch.no_grad():
        log_p = torch.full((*rows.ids.shape, 2 + LEVELS * SIZE + 1), torch.nan)
        log_p[rows.state != NOWHERE] = example.distributions(rows)[0]
    for row, (items, scores) in enumerate(zip(out.items, out.scores, strict=True)):
        root = len(catalogue.tokens(HISTORIES[1])) - 1
        for item, score in zip(items, scores, strict=True):
            column, state, total = root, 0, 0.0
            for level, token in enumerate(catalogue.paths[catalogue.row(item)].tolist()):
                total += log_p[row, column, token].item()
                children = catalogue.trie.children(torch.tensor([[state]]), level)
                state = children.state[0, 0][children.token[0, 0] == token].item()
                if level + 1 < LEVELS:
                    (column,) = [c for c in range(root + 1, rows.ids.shape[1]) if rows.state[row, c] == state]
            assert total / LEVELS == pytest.approx(score, abs=1e-5)


def test_the_past_is_read_as_the_model_reads_it():
    """Distributions inside a history are those of a plain forward of it, and the values are what came."""
    catalogue, target = shop(), llama()
    example, rows = example_of(target, catalogue, HISTORIES, [[0, 1]] * 3)
    log_p, _, value, past = example.distributions(rows)
    row = (rows.state != NOWHERE).nonzero()[:, 0]
    for number, history in enumerate(HISTORIES):
        tokens = torch.tensor(catalogue.tokens(history))
        with torch.no_grad():
            wanted = target(tokens[None]).logits[0].log_softmax(-1)
        mine = past & (row == number)
        assert value[mine].tolist() == tokens[1:].tolist()
        seen = log_p[mine][:, :-1]
        assert torch.allclose(seen[seen > -torch.inf], wanted[:-1][seen > -torch.inf], atol=1e-5)
        assert (log_p[mine].gather(1, value[mine][:, None]) > -torch.inf).all()  # what came was among what may
    assert (value[~past] == -1).all()


def test_a_history_without_a_start_or_with_an_end_has_examples_where_the_model_learnt_them():
    for options, count in (({"before": ()}, 5 * LEVELS - 1), ({"after": (0,)}, 0)):
        catalogue = shop(**options)
        rows = beam_rows(catalogue, HISTORIES[1:2], [[0]])
        assert (rows.past & (rows.state != NOWHERE)).sum() == count


def test_nodes_that_paths_share_stand_once():
    catalogue = Catalogue.of({"a": [2, 8, 14], "b": [2, 8, 15], "c": [2, 9, 14], "d": [3, 8, 14]}, before=(1,))
    rows = beam_rows(catalogue, [["a"], ["a"]], [["a", "b", "c"], ["d"]])
    assert rows.ids[:, 4:].tolist() == [[2, 8, 9], [3, 8, 0]]
    assert rows.visible[0, 0, 4:, 4:].tolist() == [[True, False, False], [True, True, False], [True, False, True]]
    assert rows.positions[:, 4:].tolist() == [[4, 5, 5], [4, 5, 2]]  # the last one is padding


def test_restricted_distributions_are_distributions():
    catalogue = shop()
    state = torch.arange(catalogue.trie.starts[-1])
    children = catalogue.trie.children(state[None], 0)
    logits = torch.randn(len(state), 2 + LEVELS * SIZE, requires_grad=True)
    distribution = restricted(logits, children)
    assert torch.allclose(distribution.exp().sum(-1), torch.ones(len(state)))
    assert ((distribution[:, :-1] > -torch.inf).sum(-1) == children.valid[0].sum(-1)).all()
    distribution[:, -1].sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_finite_gradients_and_teaches_the_drafter_alone(name):
    catalogue, target = shop(), llama()
    example, rows = example_of(target, catalogue, HISTORIES, best_items(target, catalogue, HISTORIES, 4), {name: 1.0})
    example(rows).backward()
    grads = [weight.grad for weight in example.drafter.parameters()]
    assert all(grad.isfinite().all() for grad in grads)
    assert any(grad.abs().sum() > 0 for grad in grads)
    assert all(weight.grad is None for weight in target.parameters())
    assert all(name.startswith("drafter.") for name in example.state_dict())


def test_the_loss_weighs_search_and_past_apart():
    catalogue, target = shop(), llama()
    best = best_items(target, catalogue, HISTORIES, 4)
    of = lambda *weights: example_of(target, catalogue, HISTORIES, best, *weights)  # noqa: E731
    example, rows = of({"kl": 1.0})
    log_p, log_q, value, past = example.distributions(rows)
    kl, ce = LOSSES["kl"](log_p, log_q, value), LOSSES["ce"](log_p, log_q, value)
    assert torch.allclose(example(rows), kl[past].mean() + kl[~past].mean())
    for (example, rows), wanted in (
        (of({"kl": 1.0}, {}), kl[~past].mean()),
        (of({"kl": 0.7}, {"ce": 0.3}), 0.7 * kl[~past].mean() + 0.3 * ce[past].mean()),
    ):
        assert torch.allclose(example(rows), wanted)


def test_a_model_has_nothing_to_learn_from_itself():
    catalogue, target = shop(), llama()
    example, rows = example_of(target, catalogue, HISTORIES, best_items(target, catalogue, HISTORIES, 4))
    example.drafter = target
    assert example(rows).abs() < 1e-6


def test_an_ancestor_that_is_not_seen_shows():
    """A planted mistake: trees whose nodes see each other in the order they stand, as in a chain."""
    catalogue, target = shop(), llama()
    example, rows = example_of(target, catalogue, HISTORIES, best_items(target, catalogue, HISTORIES, 8))
    tree = rows.ids.shape[1] - 21
    visible = rows.visible.clone()
    visible[..., 21:, 21:] = torch.ones(tree, tree).tril().bool()
    wrong = BeamRows(rows.ids, rows.positions, visible, rows.state, rows.value, rows.past)
    assert not torch.allclose(example.distributions(rows)[0].exp(), example.distributions(wrong)[0].exp(), atol=1e-3)


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="unknown loss 'l2'"):
        BeamExample(llama(), llama(), shop().trie, {"l2": 1.0})


def test_what_a_drafter_earns_is_counted():
    """The target itself needs one call a user; a stranger's calls and levels are those of the rounds, however users are batched."""
    catalogue, target, stranger = shop(), llama(), llama(16, seed=5)
    assert draft_coverage(target, target, catalogue, HISTORIES, 4, 16) == {"calls": 1.0, "levels": [1.0, 1.0, 1.0]}
    found = draft_coverage(target, stranger, catalogue, HISTORIES, 4, 8, rows=2)
    alone = [recommend(target, [history], k=4, catalogue=catalogue, drafter=stranger, width=8).stats for history in HISTORIES]
    assert found["calls"] == sum(stats.target_calls for stats in alone) / 3
    judged = [sum(len(stats.reached) > depth and stats.reached[depth] for stats in alone) for depth in range(3)]
    passed = [sum(sum(stats.histogram[depth + 1 :]) for stats in alone) for depth in range(3)]
    assert found["levels"] == [round(a / b, 4) for a, b in zip(passed, judged, strict=True) if b]


def test_a_head_learns_from_whole_histories():
    """Steps of its lesson bring its draft tokens nearer; the target stays as it is."""
    catalogue, target = shop(), llama().requires_grad_(False)
    torch.manual_seed(0)
    example = HeadExample(RecurrentHead.of(target, catalogue.paths), target, len(catalogue.before), LEVELS)
    ids = torch.tensor([catalogue.tokens(history) for history in ([1, 2, 3, 4, 5], [5, 6, 7, 8, 9])])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    optimizer = torch.optim.Adam(example.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        losses.append(example(batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    assert all(name.startswith("head.") for name in example.state_dict())
