"""Drafters that read the target: what every drafter owes, and that a net drafts with the very distributions it was trained on."""

import copy

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.drafters import guided
from mmspec.drafters.block.dflash import DFlash, DSpark
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.body.systems import AmphistaStaged, Clover, Coral, Falcon, HydraPlusPlus, MixtureOfAttentions
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.eagle3_parts import DraftVocabulary
from mmspec.drafters.guided import GuidedDrafter, head_of
from mmspec.drafters.heads.latent import IndependentHeads, Latent
from mmspec.drafters.heads.medusa import Amphista, Hydra, Medusa, Recurrent
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.shapes import Chain, Comb, drawn, top
from mmspec.train.distillation import RecordedWindow, unroll
from tests.drafters.runs import greedy, plain, prompt_of, random_prompt, run

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
BLOCK = SIZES | {"head_dim": 16}  # heads that together are wider than the states
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
MAKE = {
    "medusa": lambda: Medusa(32, 5, layers=2),
    "medusa-own-heads": lambda: Medusa(32, 5, own_heads=50),
    "medusa-independent": lambda: Medusa(32, 5, layers=0, own_heads=50),
    "latent": lambda: Latent(32, 5),
    "independent": lambda: IndependentHeads(32, 50, 5),
    "hydra": lambda: Hydra(32, 5, layers=2),
    "recurrent": lambda: Recurrent(32, width=16),
    "amphista": lambda: Amphista(32, 5),
    "eagle1": lambda: Eagle1(SIZES),
    "eagle3": lambda: Eagle3((1, 2, 3), SIZES, 50),
    "adapter": lambda: Adapter(1, SIZES),
    "adapter-with-mlp": lambda: Adapter(2, SIZES, mlp=True),
    "eagle3-some-values": lambda: Eagle3((0, -1), SIZES, 50, 30, norm_before_residual=True, own_embedding=True),
    "dflash": lambda: DFlash((1, 3), BLOCK, 50, layers=2, block=6, fc_norm=True),
    "dflash-windows": lambda: DFlash((2,), BLOCK | WINDOWS, 50, layers=2, block=5, mask_id=49, causal=(True, False)),
    "dspark": lambda: DSpark((1, 2, 3), BLOCK, 50, block=5, from_anchor=True, markov=8, markov_kind="gated", confidence=True),
    "dspark-some-values": lambda: DSpark((0, -1), BLOCK, 50, block=5, markov=8, markov_kind="rnn", values=30, shared_head=False),
    "dflash2": lambda: DFlash2((1, 3), BLOCK, 50, block=6, group=8, rank=6, candidates=20),
    "clover": lambda: Clover((-1,), SIZES, 50, step_options={"heads": 5, "attention_heads": 2}),
    "clover-some-values": lambda: Clover((1, 3), SIZES, 50, 30, layers=("state", "pair")),
    "coral": lambda: Coral((1, 2, 3), SIZES, 50),
    "falcon": lambda: Falcon((-1,), SIZES, 50),
    "falcon-three": lambda: Falcon((1, 3), SIZES, 50, block=3, layers=("state", "pair")),
    "mixture-of-attentions": lambda: MixtureOfAttentions((1, 2, 3), SIZES, 50),
    "mixture-of-attentions-two-layers": lambda: MixtureOfAttentions((0, 2), SIZES, 50, layers=("value", "state"), block=2),
    "amphista-staged": lambda: AmphistaStaged((-1,), SIZES, 50, step_options={"heads": 5}),
    "hydra++": lambda: HydraPlusPlus((-1,), SIZES, 50, step_options={"heads": 5, "layers": 2}),
    "p-eagle": lambda: ParallelEagle((1, 2, 3), SIZES, 50, tokens=5, deeper=1, kept=1.0, fc_norm=True),
}


def lively(net):
    """Weights large enough that every input makes a difference."""
    torch.manual_seed(3)
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    if isinstance(net, DraftVocabulary) and net.vocabulary is not None:
        net.know(torch.randperm(50)[:30].sort().values)
    return net.eval()


@pytest.fixture(scope="module")
def nets():
    return {name: lively(make()) for name, make in MAKE.items()}


@pytest.fixture(params=MAKE)
def net(request, nets):
    return nets[request.param]


# --- what is trained is what is run ---------------------------------------------------------------------------------------------------


class Scripted:
    """Grows a chain of the texts' own values and keeps the distributions it is shown; row r goes wrong after `wrong[r]` draft tokens."""

    def __init__(self, texts, wrong):
        self.texts, self.wrong = torch.tensor(texts), torch.tensor(wrong)
        self.seen = []  # (output position of the pending token's successor [B], level, distributions [B, V])

    def grow(self, score, draft, budget, noise):
        for level in range(budget.length):
            distribution = score(draft).p.last(1)
            self.seen.append((draft.start.clone(), level, distribution.scores[:, 0].log_softmax(-1)))
            place = (draft.start + level).clamp(max=self.texts.shape[1] - 1)
            value = self.texts.gather(1, place[:, None])
            value = torch.where((self.wrong == level)[:, None], (value + 1) % 50, value)
            draft = draft.extend_chain(value, budget.draft_tokens)
        return draft, torch.arange(draft.roots, draft.size).expand(len(draft.start), -1)


def distributions_in_training(big, net, prompt, text, depth):
    """[depth] tensors [n, V] of log-laws of a whole row, each with the window position its first distribution comes after."""
    ids = torch.tensor([prompt + text])
    with torch.no_grad():
        hidden = big(ids, output_hidden_states=True).hidden_states
        features = torch.cat([hidden[state] for state in net.reads], -1)
        window = RecordedWindow(ids, features, hidden[-1], torch.ones_like(ids, dtype=torch.bool))
        found = []
        for level in unroll(net, window, big.get_input_embeddings(), head_of(big), depth):
            logits, known = level.logits[0], getattr(net, "vocabulary", None)
            if known is not None:
                logits = logits.new_full((len(logits), 50), -torch.inf).index_copy_(-1, known, logits)
            found.append((logits.log_softmax(-1), level.after, level.blind))
    return found


PROMPTS = [[5, 9, 30, 7, 8], [11, 3], [40, 41, 42, 6, 7, 8, 30, 31]]


def gap_to_training(big, net, wrong=(1, 2, 9)):
    """The largest relative difference between a distribution in a generation and the distribution at the same place and level in
    training."""
    inputs = prompt_of(*PROMPTS)
    texts = greedy(big, inputs, new=24)
    shape = Scripted(texts, wrong)
    out = run(big, GuidedDrafter(net, shape), inputs, length=4, new=24)
    assert out.sequences.tolist() == texts
    assert out.stats.accepted > 20  # rounds really keep draft tokens: what they leave behind is read
    worst, compared = 0.0, 0
    for row, prompt in enumerate(PROMPTS):
        training = distributions_in_training(big, net, prompt, texts[row], 4)
        for start, level, distribution in shape.seen:
            after = len(prompt) + int(start[row]) - 1 + level  # window position of the node the distribution comes after
            distributions, first, blind = training[min(level, len(training) - 1)]  # an adapter's levels are all alike
            place = after - first
            if level > 23 - start[row] or wrong[row] < level or not blind <= place < len(distributions):
                continue  # nothing was drafted there, or on from another value than the text's
            a, b = distribution[row], distributions[place]
            real = b > -torch.inf
            assert (real == (a > -torch.inf)).all()
            gap = ((a - b).abs() / (1 + b.abs()))[real].max().item()
            worst, compared = max(worst, gap), compared + 1
    assert compared > 45
    return worst


def test_a_net_drafts_with_the_distributions_it_was_trained_on(big, net):
    """In double precision: in float32, sums in another order come near the bound on some processors."""
    big, net = (copy.deepcopy(model).double() for model in (big, net))
    assert gap_to_training(big, net) < 1e-5


@pytest.mark.parametrize("name", [name for name in MAKE if "adapter" not in name])
def test_values_paired_with_the_wrong_states_are_caught(big, nets, name, monkeypatch):
    right = guided.Fresh.of.__func__ if hasattr(guided.Fresh.of, "__func__") else guided.Fresh.of

    def late(draft, scored, verdict):
        fresh = right(draft, scored, verdict)
        return guided.Fresh(fresh.values, torch.roll(fresh.features, 1, 1), fresh.real)

    monkeypatch.setattr(guided.Fresh, "of", staticmethod(late))
    assert gap_to_training(big, nets[name]) > 1e-2


def test_a_drafters_own_columns_kept_in_its_cache_are_caught(big, nets, monkeypatch):
    from mmspec.models.target import HFSession

    commit = HFSession.commit

    def keep_one_more(self, keep, most):
        own = isinstance(self.target.model, (Eagle1, Eagle3))
        extra = torch.full_like(keep[:, :1], keep.shape[1])
        commit(self, torch.cat([keep, torch.where((keep >= 0).any(1, keepdim=True), extra, -1)], 1) if own else keep, most + own)

    monkeypatch.setattr(HFSession, "commit", keep_one_more)
    assert gap_to_training(big, nets["eagle1"]) > 1e-2


# --- rules and shapes ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "rule"),
    [(Comb(pick=top), Greedy()), (Comb(), Coupled()), (Chain(drawn), Coupled())],
    ids=["comb", "coupled-comb", "coupled"],
)
@pytest.mark.parametrize("net", ["medusa", "medusa-independent", "hydra"], indirect=True)
def test_shapes_and_rules_give_the_same_tokens(big, net, shape, rule):
    """Nets of sizes that `tests.drafters.sources` has not; those it has: `tests.drafters.test_products`."""
    inputs = random_prompt(5, 9, 1, seed=1)
    temperature = None if isinstance(rule, Greedy) else 1.0
    expected = greedy(big, inputs) if temperature is None else plain(big, inputs, seed=4)
    assert run(big, GuidedDrafter(net, shape), inputs, rule, seed=4, temperature=temperature).sequences.tolist() == expected


def test_a_net_for_another_width_is_refused(big):
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        run(big, GuidedDrafter(Medusa(16)), random_prompt(4))


def test_a_state_that_is_not_there_is_refused(big):
    with pytest.raises(ValueError, match="hidden state 4 does not exist: the model has 3 layers"):
        run(big, GuidedDrafter(Eagle3((1, 2, 4), SIZES, 50)), random_prompt(4))


def test_nothing_is_drafted_deeper_than_there_are_heads(big, nets):
    depths = []
    run(big, GuidedDrafter(lively(Medusa(32, 2))), random_prompt(5, 7), control=Fixed(6), on_step=lambda s: depths.append(s.draft.height))
    assert set(depths) == {0, 2}
