"""Every source of drafts there is for text, small and random: what the tests of products run through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.drafters.block.dflash import DFlash, DSpark
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.body.systems import AmphistaStaged, Clover, Coral, Falcon, HydraPlusPlus, MixtureOfAttentions
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.heads.latent import IndependentHeads, Latent
from mmspec.drafters.heads.medusa import Amphista, Hydra, Medusa, Recurrent
from mmspec.drafters.heads.mtp import ChainedMTP
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.heads.viterbi import JointPath
from mmspec.drafters.jacobi.decoding import Jacobi, uniform
from mmspec.drafters.jacobi.lookahead import Lookahead
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.retrieval.copy import Copy
from mmspec.drafters.retrieval.datastore import Datastore, Retrieval
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.ngram import NGram, bigram_table
from mmspec.drafters.retrieval.pools import Pools
from mmspec.drafters.retrieval.recycling import Recycling
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SimilarLayers, SkipLayers
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens
from mmspec.drafters.self_drafting.swift import Swift
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.drafters.shapes import Chain, drawn, most_likely
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import Template
from mmspec.run.registry import DRAFTERS
from tests.drafters.cascades import drafting, hf, perturbed
from tests.drafters.test_guided import BLOCK, SIZES, lively
from tests.drafters.test_mtp import LLAMA, SLIDING

IN_CHECKPOINTS = ("mtp",)
"""Drafters that the target's checkpoint must hold: `tests.drafters.test_shipped_mtp`."""


@dataclass(frozen=True)
class World:
    """What sources are made from: the target, a smaller model, texts that the target writes, and a folder to write to."""

    big: LlamaForCausalLM
    small: LlamaForCausalLM
    texts: list[list[int]]
    folder: Any


Make = Callable[[World, float], Any]
"""From a world and the request's temperature to what `mmspec.text.generate` takes as its drafter."""


def of_sizes(vocabulary: int) -> LlamaForCausalLM:
    """A small model of another vocabulary size than the target's 50."""
    torch.manual_seed(2)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=vocabulary, num_hidden_layers=1, max_position_embeddings=256, **sizes)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    return model


def masked(model: LlamaForCausalLM, mask_id: int) -> LlamaForCausalLM:
    """A copy of a model that drafts by mask tokens (PARD)."""
    found = perturbed(model, 0.02)
    found.config.pard_token = mask_id
    return found


def learned_pools(world: World) -> Any:
    pools = Pools(branch=6, limit=64)
    pools.learn("group", world.texts)
    return pools.drafter("group", nodes=16)


def glide(world: World) -> Any:
    net = lively(new_net("glide", world.big))
    net.start_from(world.big)
    return net


def chain_of(model: Any, temperature: float) -> Any:
    return drafting(model, Chain(drawn if temperature else most_likely), temperature or None)


def cascade(world: World, temperature: float, middle: Any = None) -> Any:
    middle = hf(perturbed(world.big, 0.02), temperature or None) if middle is None else middle
    return VerticalCascade(middle, chain_of(world.small, temperature), Coupled() if temperature else Greedy(), 2, 2)


def net(make: Callable[[], Any]) -> Make:
    return lambda world, temperature: lively(make())


GROWN: dict[str, Make] = {  # sources of distributions, whose draft tokens take the form that `tree` asks for
    "itself": lambda world, temperature: world.big,
    "near": lambda world, temperature: perturbed(world.big, 0.02),
    "small": lambda world, temperature: world.small,
    "larger-vocabulary": lambda world, temperature: of_sizes(52),
    "smaller-vocabulary": lambda world, temperature: of_sizes(48),
    "early-exit-1": lambda world, temperature: EarlyExit(1),
    "early-exit-2": lambda world, temperature: EarlyExit(2),
    "early-exit-3": lambda world, temperature: EarlyExit(3),
    "kangaroo": net(lambda: Adapter(2, SIZES)),
    "eesd": net(lambda: Adapter(1, SIZES, mlp=True)),
    "layer-skip": lambda world, temperature: SkipLayers((1,)),
    "similar-layers": lambda world, temperature: SimilarLayers(window=6),
    "swift": lambda world, temperature: Swift(every=1, window=8, trials=12, guided=3),
    "windowed": lambda world, temperature: Windowed(1, 6),
    "medusa": net(lambda: Medusa(32, 5)),
    "medusa-own-heads": net(lambda: Medusa(32, 5, own_heads=50)),
    "latent": net(lambda: Latent(32, 5)),
    "latent in part": net(lambda: Latent(32, 5, size=50, values=30)),
    "independent": net(lambda: IndependentHeads(32, 50, 5)),
    "independent in part": net(lambda: IndependentHeads(32, 50, 5, values=30)),
    "hydra": net(lambda: Hydra(32, 5)),
    "recurrent": net(lambda: Recurrent(32, width=16)),
    "amphista": net(lambda: Amphista(32, 5)),
    "ctc": net(lambda: CTC(32, 4)),
    "eagle1": net(lambda: Eagle1(SIZES)),
    "eagle3": net(lambda: Eagle3((1, 2, 3), SIZES, 50)),
    "eagle3-some-values": net(lambda: Eagle3((0, -1), SIZES, 50, 30, norm_before_residual=True, own_embedding=True)),
    "glide": lambda world, temperature: glide(world),
    "mtp": net(lambda: ChainedMTP(LLAMA, 2)),
    "mtp-parallel": net(lambda: ParallelMTP(LLAMA, 4)),
    "mtp-stacked": net(lambda: ParallelMTP(SLIDING, 3, reads=(-1,), chained=True)),
    "mask-tokens": net(lambda: MaskTokens(32, 3)),
    "dflash": net(lambda: DFlash((1, 3), BLOCK, 50, layers=2, block=6)),
    "dspark": net(lambda: DSpark((1, 2, 3), BLOCK, 50, block=5, from_anchor=True, markov=8, markov_kind="rnn", confidence=True)),
    "dflash2": net(lambda: DFlash2((1, 3), BLOCK, 50, block=5, group=8, rank=6, candidates=20)),
    "clover": net(lambda: Clover((-1,), SIZES, 50, step_options={"heads": 5})),
    "falcon": net(lambda: Falcon((-1,), SIZES, 50)),
    "mixture-of-attentions": net(lambda: MixtureOfAttentions((1, 2, 3), SIZES, 50)),
    "amphista-staged": net(lambda: AmphistaStaged((-1,), SIZES, 50, step_options={"heads": 5})),
    "hydra++": net(lambda: HydraPlusPlus((-1,), SIZES, 50, step_options={"heads": 5, "layers": 2})),
    "coral": net(lambda: Coral((1, 2, 3), SIZES, 50, layers=("pair", "state"))),
    "p-eagle": net(lambda: ParallelEagle((1, 2, 3), SIZES, 50, tokens=5)),
    "pard": lambda world, temperature: masked(world.big, 49),
    "pard-larger-vocabulary": lambda world, temperature: masked(of_sizes(52), 51),
}
OWN_FORM: dict[str, Make] = {  # drafters that give their draft tokens a form of their own
    **{f"name {name}": (lambda world, temperature, name=name: name) for name in DRAFTERS if name not in IN_CHECKPOINTS},
    "none": lambda world, temperature: None,
    "lookup-references": lambda world, temperature: Lookup(max_ngram=4, references=world.texts),
    "suffix-corpus": lambda world, temperature: Suffix(world.texts, factor=2),
    "datastore": lambda world, temperature: Retrieval(Datastore.build(world.texts, world.folder / "texts.npy")),
    "pools": lambda world, temperature: learned_pools(world),
    "ngram-table": lambda world, temperature: NGram(table=bigram_table(world.big, 3)),
    "ngram-tree": lambda world, temperature: NGram(table=bigram_table(world.big, 3), drafts=3),
    "copy-shared": lambda world, temperature: Copy(world.texts[1]),
    "recycling": lambda world, temperature: Recycling(),
    "jacobi-uniform": lambda world, temperature: Jacobi(fill=uniform),
    "jacobi-drawn": lambda world, temperature: Jacobi(draw=drawn),
    "lookahead": lambda world, temperature: Lookahead(window=3, ngram=3),
    "lookahead-drawn": lambda world, temperature: Lookahead(window=4, draft_tokens=2, pool=6, seeded=False, draw=drawn),
    "cascade": cascade,
    "cascade-of-the-target": lambda world, temperature: cascade(world, temperature, Windowed(1, 6)),
    "relay": lambda world, temperature: HorizontalCascade(chain_of(perturbed(world.big, 0.02), temperature), 2, Lookup()),
    "relay-of-models": lambda world, temperature: HorizontalCascade(
        chain_of(world.small, temperature), 2, chain_of(perturbed(world.big, 0.02), temperature)
    ),
}


# --- trees ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uneven:
    """Stops rows at levels that differ from row to row and from round to round, however sure the drafter is."""

    def stops(self, levels: Sequence[torch.Tensor], beam: torch.Tensor, nodes: int) -> torch.Tensor:
        return (levels[-1].amax(-1).clamp(min=-100) * 4).long() % 2 == 0


NAMED: dict[str, Any] = {
    "chain": None,
    "comb": "comb",
    "children": (3, 2, 1),
    "expand": "expand",
    "opt": "opt",
    "dynamic": "dynamic",
    "beams": "beams",
    "best-first": "best-first",
    "cape": "cape",
}
"""What `tree=` takes by name or by numbers."""
OBJECTS: dict[str, Any] = {
    "template": Template(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (0, 0, 0, 0))),
    "uneven-search": ExpandRerank(3, 5, 9, Uneven()),
    "best-first-20": BestFirst(20, width=3, threshold=0.001),
    "joint-path": JointPath(Bigrams.count([torch.arange(3, 40)], 50), k=4),
}
"""Templates and shape objects, which `tree=` takes too."""
TREES = NAMED | OBJECTS
