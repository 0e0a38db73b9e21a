"""Grouping by Viterbi: the path is the best of all paths, or drawn by its distribution, and the target runs once for n values."""

from itertools import product

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Budget, Draft, Scored, validate
from mmspec.core.rules.base import LOSSY, UNMETERED
from mmspec.core.rules.lossy.always_accept import AlwaysAccept
from mmspec.core.rules.match import Match
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.latent import Latent
from mmspec.drafters.heads.medusa import Hydra, Medusa
from mmspec.drafters.heads.viterbi import JointPath, best_path, best_paths, drawn_path, grouped
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.shapes import Comb
from mmspec.run.shapes import shape_of
from tests.drafters.runs import greedy, random_prompt, run
from tests.drafters.runs import plain as plainly
from tests.drafters.sources import GROWN
from tests.drafters.test_guided import lively
from tests.drafters.test_products import TEMPERATURES, decoded, model, plain, target, world  # noqa: F401
from tests.oracles.enumerate import Tape, TapeNoise, explore
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import encode, first_value_distribution, pair, round_outcomes

TINY = 1e-9


def lattice(rows, levels, k, seed, zeros=0.2):
    """Random weights of states, entries and transitions; some states are impossible."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((rows, levels, k), (rows, k), (rows, levels - 1, k, k))
    emission, start, step = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    gone = torch.rand(emission.shape, generator=generator) < zeros
    gone[..., 0] = False
    return emission.masked_fill(gone, -torch.inf), start, step


def every_path(emission, start, step):
    """All paths [P, L] and the total weight of each in every row [B, P], one by one."""
    paths = list(product(range(emission.shape[2]), repeat=emission.shape[1]))
    totals = []
    for path in paths:
        total = start[:, path[0]] + emission[:, 0, path[0]]
        for level in range(1, len(path)):
            total = total + step[:, level - 1, path[level - 1], path[level]] + emission[:, level, path[level]]
        totals.append(total)
    return torch.tensor(paths), torch.stack(totals, 1)


@pytest.mark.parametrize(("levels", "k"), [(1, 1), (1, 4), (2, 3), (4, 3), (5, 2), (3, 5)])
def test_viterbi_finds_the_best_of_all_paths(levels, k):
    weights = lattice(50, levels, k, seed=levels)
    paths, totals = every_path(*weights)
    assert torch.equal(best_path(*weights), paths[totals.argmax(-1)])


@pytest.mark.parametrize(("levels", "k", "count"), [(1, 1, 3), (1, 4, 2), (2, 3, 12), (4, 3, 5), (5, 2, 9), (3, 5, 7)])
def test_list_viterbi_finds_the_best_paths_in_order(levels, k, count):
    weights = lattice(50, levels, k, seed=levels)
    paths, totals = every_path(*weights)
    found, weight = best_paths(*weights, count)
    expected = torch.nn.functional.pad(totals.sort(1, descending=True).values, (0, count), value=-torch.inf)[:, :count]
    assert torch.allclose(weight, expected)
    assert torch.equal(best_paths(*weights, 1)[0][:, 0], best_path(*weights))
    for row in range(50):
        chosen = [path for path, real in zip(found[row].tolist(), (weight[row] > -torch.inf).tolist(), strict=True) if real]
        assert len({tuple(path) for path in chosen}) == len(chosen)
        assert torch.allclose(totals[row][[paths.tolist().index(path) for path in chosen]], weight[row, : len(chosen)])


def test_paths_are_drafted_as_a_tree_with_common_prefixes_once():
    """The values on the tree's paths are those of the best paths, and no node has two children of one value."""
    drafter = pair(4, 6, 1)[1]
    session, pending = drafter.begin(3)
    bigrams, budget = Bigrams.count([torch.arange(4)], 4), Budget(torch.tensor([9, 2, 9]), 3)
    shape = JointPath(bigrams, k=3, paths=5)
    draft, _ = shape.grow(session.score, pending, budget, Noise.from_seed(0, 3))
    validate(draft)
    alone = JointPath(bigrams, k=3).grow(drafter.begin(3)[0].score, pending, budget, Noise.from_seed(0, 3))[0]
    for row in range(3):
        real = draft.valid[row].nonzero().flatten().tolist()[1:]
        named = [(int(draft.parents[row, node]), int(draft.nodes[row, node])) for node in real]
        assert len(set(named)) == len(named)
        leaves = set(real) - {parent for parent, _ in named}
        assert 2 <= len(leaves) <= 5
        first = [int(draft.nodes[row, 1 + level * 5]) for level in range((3, 2, 3)[row])]  # the best path's columns
        assert first == alone.nodes[row, 1 : 1 + len(first)].tolist()


@pytest.mark.parametrize(("levels", "k"), [(1, 3), (2, 3), (3, 2), (4, 2)])
def test_the_drawn_path_has_its_distribution(levels, k):
    """Every outcome of filtering and sampling, explored: the distribution is exp(weight), normalised over all paths."""
    weights = lattice(1, levels, k, seed=levels)

    def run_tape(tape: Tape):
        many = [weight.expand(tape.rows, *weight.shape[1:]) for weight in weights]
        start = torch.zeros(tape.rows, dtype=torch.long)
        keys = TapeNoise(tape, most=99).draft_token(start[:, None] + torch.arange(levels), start)
        return drawn_path(*many, keys)

    outcomes = explore(run_tape)
    _, totals = every_path(*weights)
    assert (outcomes.distribution(encode(outcomes.values, k), k**levels) - totals[0].softmax(-1)).abs().max() < TINY


def test_the_drawn_path_has_its_distribution_with_the_real_noise_and_a_mutant_has_not():
    weights = [weight.expand(20_000, *weight.shape[1:]) for weight in lattice(1, 3, 3, seed=2)]
    noise, start = Noise.from_seed(0, 20_000), torch.zeros(20_000, dtype=torch.long)
    keys = noise.draft_token(start[:, None] + torch.arange(3), start)
    distribution = every_path(*(weight[:1] for weight in weights))[1][0].softmax(-1)
    assert chi_square(encode(drawn_path(*weights, keys), 3), distribution) > PASS
    forgetful = drawn_path(weights[0], weights[1], torch.zeros_like(weights[2]), keys)  # transitions left out
    assert chi_square(encode(forgetful, 3), distribution) < FAIL
    same = keys[:, :1].where(torch.ones(20_000, 3, dtype=torch.bool), keys)  # one number for all levels
    assert chi_square(encode(drawn_path(*weights, same), 3), distribution) < FAIL


# --- the table --------------------------------------------------------------------------------------------------------


def test_bigrams_are_counted_smoothed_and_kept(tmp_path):
    """Against counting by hand: pairs do not span sequences, and letters (below 10) are not counted."""
    sequences = [
        torch.tensor([1, 2, 10, 11, 11, 12]),
        torch.tensor([3, 13, 10, 11]),
        torch.tensor([12]),
        torch.tensor([], dtype=torch.long),
    ]
    table = Bigrams.count(sequences, size=4, first=10, alpha=0.5)
    met = {(10, 11): 2, (11, 11): 1, (11, 12): 1, (13, 10): 1}
    for x, y in product(range(8, 16), repeat=2):
        inside = 10 <= x < 14 and 10 <= y < 14
        total = sum(count for (before, _), count in met.items() if before == x)
        wanted = (met.get((x, y), 0) + 0.5) / (total + 2.0) if inside else 0.25
        assert table.log_prob(torch.tensor(x), torch.tensor(y)).exp().item() == pytest.approx(wanted, abs=1e-12)
    distributions = table.log_prob(torch.arange(10, 14)[:, None], torch.arange(10, 14)).exp()
    assert (distributions.sum(-1) - 1).abs().max() < TINY
    table.save(tmp_path / "deep" / "bigrams.safetensors")
    again = Bigrams.load(tmp_path / "deep" / "bigrams.safetensors")
    assert (again.size, again.first, again.alpha) == (4, 10, 0.5)
    assert torch.equal(again.pairs, table.pairs)
    assert torch.equal(again.counts, table.counts)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["bigrams.safetensors"]
    empty = Bigrams.count([], size=4)
    assert empty.log_prob(torch.tensor(1), torch.tensor(2)).exp().item() == pytest.approx(0.25)


def test_bigrams_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"size and alpha are 4 and 0: .* an alpha above 0"):
        Bigrams.count([], 4, alpha=0)
    with pytest.raises(ValueError, match="do not exist: count them"):
        Bigrams.load(tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        Bigrams.load(tmp_path / "broken.safetensors")


# --- the shape --------------------------------------------------------------------------------------------------------


def heads_that_say(distributions):
    """A score function of heads with fixed distributions [B, L, V], blind to what was drafted."""

    def score(draft):
        level = draft.size - draft.roots
        return Scored(Categorical(distributions[:, level : level + 1].log()))

    return score


def grown(shape, distributions, budget=99, seed=0, start=0):
    rows, levels, size = distributions.shape
    pending = Draft.root(torch.arange(rows) % size, torch.full((rows,), start))
    left = torch.full((rows,), budget) if isinstance(budget, int) else torch.tensor(budget)
    draft, _ = shape.grow(heads_that_say(distributions), pending, Budget(left, levels), Noise.from_seed(seed, rows))
    validate(draft)
    return draft


def random_distributions(rows, levels, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, levels, size, generator=generator, dtype=torch.float64).softmax(-1)


def table(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Bigrams.count([torch.randint(0, size, (6,), generator=generator) for _ in range(8)], size)


@pytest.mark.parametrize("omega", [0.3, 1.0, 2.5])
def test_the_shape_takes_the_best_path_over_values(omega):
    """By hand over all value paths; with fewer candidates, over those that are candidates."""
    distributions, bigrams = random_distributions(20, 3, 4, seed=3), table(4)
    scores = distributions.log().tolist()
    follows = [[bigrams.log_prob(torch.tensor(before), torch.tensor(value)).item() for value in range(4)] for before in range(4)]
    for k in (2, 4, 9):
        draft = grown(JointPath(bigrams, k, omega), distributions)
        assert draft.q is None
        for row in range(20):
            likely = [set(distribution.topk(min(k, 4)).indices.tolist()) for distribution in distributions[row]]

            def weight(path, row=row):
                found, before = 0.0, row % 4
                for level, value in enumerate(path):
                    found += scores[row][level][value] + omega * follows[before][value]
                    before = value
                return found

            paths = [path for path in product(range(4), repeat=3) if all(v in ok for v, ok in zip(path, likely, strict=True))]
            assert tuple(draft.draft_tokens[row].tolist()) == max(paths, key=weight)


def test_without_the_markov_model_heads_are_independent():
    distributions = random_distributions(30, 4, 5, seed=1)
    assert torch.equal(grown(JointPath(table(5), 3, 0.0), distributions).draft_tokens, distributions.argmax(-1))
    one = distributions[:1].expand(20_000, -1, -1)
    drawn = grown(JointPath(table(5), 5, 0.0, draw=True), one).draft_tokens
    for level in range(4):
        assert chi_square(drawn[:, level], distributions[0, level]) > PASS
    joint = (distributions[0, 0][:, None] * distributions[0, 1]).flatten()
    assert chi_square(encode(drawn[:, :2], 5), joint) > PASS
    tied = grown(JointPath(table(5), 5, 1.0, draw=True), one).draft_tokens
    assert chi_square(encode(tied[:, :2], 5), joint) < FAIL


def test_a_row_draws_the_same_alone_and_in_a_batch_and_with_less_room():
    distributions, shape = random_distributions(3, 4, 5, seed=1), JointPath(table(5), 4, 1.0, draw=True)
    together = grown(shape, distributions, budget=[9, 3, 1])
    assert (together.parents[:, 1:] != PAD).sum(1).tolist() == [4, 2, 0]
    for seed_row in range(3):
        pending = Draft.root(torch.tensor([seed_row]), torch.zeros(1, dtype=torch.long))
        noise = Noise.from_seed(seed_row, 1)
        alone, _ = shape.grow(heads_that_say(distributions[seed_row : seed_row + 1]), pending, Budget(torch.tensor([9]), 4), noise)
        assert torch.equal(alone.draft_tokens, together.draft_tokens[seed_row : seed_row + 1])


# --- the rule and the loop --------------------------------------------------------------------------------------------


def test_always_accept_commits_what_was_drafted():
    """The distribution of the first committed value is the drafter's, whatever the target says; the last one is the target's own draw."""

    target, drafter = pair(3, 5, 1)  # noqa: F811
    rule, p = AlwaysAccept(), target.table.probs[1 * 3 + 1].log()
    q = Categorical(drafter.table.probs[torch.tensor(1)].log())
    assert (
        first_value_distribution(target, ModelDrafter(drafter), rule) - rule.output_distribution(Categorical(p), q).probs()
    ).abs().max() < TINY
    found = round_outcomes(target, ModelDrafter(drafter), rule, most=3, length=2)
    assert (found.extra["accepted"] == 2).all()
    assert (found.extra["judged"] == 2).all()
    joint = torch.zeros(27, dtype=torch.float64)
    for x, y, z in product(range(3), repeat=3):
        code = torch.tensor(1)
        chance = drafter.table.probs[code, x]
        code = code * 3 + x
        chance = chance * drafter.table.probs[code, y] * target.table.probs[code * 3 + y, z]
        joint[9 * x + 3 * y + z] = chance
    assert (found.distribution(encode(found.values, 3), 27) - joint).abs().max() < TINY


def test_it_is_called_lossy_and_refuses_trees(big):
    rule = AlwaysAccept()
    assert rule.exactness == UNMETERED
    assert rule.exactness.startswith(LOSSY)
    with pytest.raises(ValueError, match="AlwaysAccept judges chains only"):
        shape_of((2, 1), rule)
    with pytest.raises(ValueError, match="AlwaysAccept keeps every draft token, but this draft branches"):
        run(big, GuidedDrafter(lively(Medusa(32, 3)), Comb(2)), random_prompt(5, 4), rule, length=2)
    with pytest.raises(ValueError, match="Hydra reads its own draft tokens: a path needs heads that do not"):
        grouped(Hydra(32, 3), table(50))
    with pytest.raises(ValueError, match=r"k and omega are 0 and 1\.0"):
        JointPath(table(50), 0)
    with pytest.raises(ValueError, match="k and omega are 5 and -1"):
        JointPath(table(50), 5, -1)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("draw", [False, True])
def test_the_target_runs_once_for_n_values(big, n, draw):
    """The first call runs the prompt and says one value; every other one says n."""
    drafter = grouped(lively(Medusa(32, 3)), table(50), k=6, draw=draw)
    new, sizes = 1 + 5 * n, []
    inputs = random_prompt(5, 9, seed=2)
    out = run(
        big, drafter, inputs, AlwaysAccept(), length=n - 1, new=new, temperature=1.0, on_step=lambda s: sizes.append(s.committed.values)
    )
    assert out.stats.target_calls == 6
    assert [len(values) for values in sizes[0]] == [1, 1]
    assert all(len(values) == n for step in sizes[1:] for values in step)
    assert out.stats.accepted == out.stats.drafted == 2 * 5 * (n - 1)
    assert out.stats.exactness == UNMETERED
    assert out.stats.drift is None
    alone = run(
        big, drafter, {name: x[1:, -9:] for name, x in inputs.items()}, AlwaysAccept(), length=n - 1, new=new, temperature=1.0, seed=1
    )
    assert out.sequences[1].tolist() == alone.sequences[0].tolist()


def test_a_group_is_cut_at_an_end_and_at_the_room(big):
    drafter, inputs = grouped(lively(Latent(32, 3)), table(50), k=6, draw=True), random_prompt(5, 9, seed=2)
    whole = run(big, drafter, inputs, AlwaysAccept(), length=3, new=16, temperature=1.0)
    end = whole.sequences[0, 6].item()
    cut = run(big, drafter, inputs, AlwaysAccept(), length=3, new=16, temperature=1.0, ends=[end])
    first = whole.sequences[0].tolist().index(end)
    assert cut.sequences[0, : cut.lengths[0]].tolist() == whole.sequences[0, : first + 1].tolist()
    short = run(big, drafter, inputs, AlwaysAccept(), length=3, new=7, temperature=1.0)
    assert short.lengths.tolist() == [7, 7]
    assert short.sequences[:, :6].tolist() == whole.sequences[:, :6].tolist()  # the last one is the target's own, not a draft token


def test_under_a_rule_that_checks_a_path_is_a_draft_like_any_other(big):
    inputs = random_prompt(5, 9, seed=1)
    for draw in (False, True):
        out = run(big, grouped(lively(Medusa(32, 4)), table(50), draw=draw), inputs, Match(), length=4, temperature=1.0, seed=4)
        assert out.sequences.tolist() == plainly(big, inputs, seed=4)


def test_the_best_path_commits_the_targets_best(big):
    """`best` draws nothing: the output does not depend on the seed, and without draft tokens it is greedy decoding."""

    inputs, drafter = random_prompt(5, 9, seed=1), grouped(lively(Medusa(32, 3)), table(50))
    outs = [run(big, drafter, inputs, AlwaysAccept(best=True), length=3, temperature=1.0, seed=seed).sequences for seed in (0, 9)]
    assert torch.equal(*outs)
    assert run(big, drafter, inputs, AlwaysAccept(best=True), length=0).sequences.tolist() == greedy(big, inputs)


def test_the_markov_model_mends_what_blind_heads_break():
    """Texts are aa.. or bb.. at random: each head alone finds a and b alike; the path never mixes them."""
    size, distributions = 2, torch.full((500, 3, 2), 0.5, dtype=torch.float64)
    bigrams = Bigrams.count([torch.zeros(50, dtype=torch.long), torch.ones(50, dtype=torch.long)], size, alpha=0.01)
    mended, broken = (grown(JointPath(bigrams, 2, omega, draw=True), distributions).draft_tokens for omega in (1.0, 0.0))
    start = torch.arange(500) % 2
    assert (mended == start[:, None]).all(1).float().mean() > 0.99
    assert (broken == start[:, None]).all(1).float().mean() < 0.3


@pytest.mark.parametrize(("number", "name"), enumerate(GROWN), ids=GROWN)
def test_the_best_paths_as_a_tree_are_exact_over_every_source(number, name, world, plain):  # noqa: F811
    """Together and for a row alone, whose drafts are the same: the number of nodes changes with every small change of the candidates."""
    shape = JointPath(Bigrams.count([torch.arange(3, 40)], 50), k=4, paths=3)
    temperature = TEMPERATURES[number % 2]
    source = GROWN[name](world, temperature)
    together, alone = (decoded(world.big, source, shape, temperature, rows) for rows in ((0, 1, 2), (2,)))
    assert together.tokens == plain[temperature]
    assert alone.tokens[0] == together.tokens[2]
    assert alone.rounds[0] == together.rounds[2]
