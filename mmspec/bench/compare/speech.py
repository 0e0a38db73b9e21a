"""The methods for mini speech in tables and in the demo: arguments of `synthesize` by name."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmspec.core.rules.groups import Groups
from mmspec.core.rules.lossy.always_accept import AlwaysAccept
from mmspec.core.rules.lossy.membership import Membership
from mmspec.core.rules.lossy.pcg import PCG
from mmspec.core.rules.lossy.ssd import SSD
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.drafters.heads.viterbi import grouped
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.trees.static import Template
from mmspec.minis import HOME, Mini
from mmspec.minis import speech_data as spoken
from mmspec.minis.weights import llama
from mmspec.speech import synthesize
from mmspec.train.deeper import deepened_model

FOLDER = HOME / "speech"


def speech_methods(mini: Mini) -> dict[str, dict[str, Any]]:
    """Return plain decoding, exact methods and lossy ones. All draft lengths are fixed, so results do not depend on measured times.

    Rules without a drafter in their name judge the small model's chain; `tree` is the planned tree of the heads.
    """
    model, heads, tree = mini.drafters["model"], mini.drafters["vadusa"], Template.read(FOLDER / "tree.json")
    chain, wide = {"drafter": model, "draft_length": 5}, {"drafter": heads, "tree": tree, "draft_length": tree.depth}
    alike = {"codec": in_codec_space(mini), "embeddings": by_embedding(mini)}
    return {
        "plain": {},
        "suffix": {"drafter": "suffix", "draft_length": 4},
        "model": chain,
        "model token": {**chain, "accept": "token"},
        "model block": {**chain, "accept": "block"},
        "heads": {"drafter": heads, "draft_length": 4},
        "heads 3": {"drafter": heads, "draft_length": 3},
        "tree": wide,
        **{f"tree tau {tau}": {**wide, "accept": Tolerance(tau)} for tau in (1, 2, 3, 5)},
        **{f"pcg {space}": {**chain, "accept": PCG(groups)} for space, groups in alike.items()},
        "ssd 0.2": {**chain, "accept": SSD(0.2)},
        "top 20": {**chain, "accept": Membership(20, guard=(mini.target.end,))},
    }


def changed_mini(mini: Mini, trained: Path | None = None, layers: int | None = None) -> Mini:
    """Return the mini with another target, to see how seconds depend on it.

    Args:
        mini: mini speech.
        trained: a folder that `speech/train_joint.py joint` wrote: its target, and its heads in place of `vadusa`.
        layers: layers of a deeper target, whose new layers pass their input on: it says the same, in slower forwards.

    Raises:
        ValueError: for a folder without them, or too few layers.
    """
    if trained is not None:
        model = llama(trained / "target")
        heads = load_drafter(trained / "heads", model)
        mini = replace(mini, target=replace(mini.target, model=model), drafters=mini.drafters | {"vadusa": heads})
    if layers is None:
        return mini
    small = mini.target.model
    config = copy.deepcopy(small.config)
    config.num_hidden_layers = layers
    return replace(mini, target=replace(mini.target, model=deepened_model(small, type(small)(config)).eval()))


def in_codec_space(mini: Mini, count: int = 8) -> Groups:
    """Return groups of every code with its `count` nearest codes by the codec's embeddings."""
    groups = Groups.nearest(mini.target.codec.centres, count)
    return groups.placed(torch.arange(*mini.target.places[0]), mini.target.model.config.vocab_size)


def by_embedding(mini: Mini, theta: float = 0.3) -> Groups:
    """Return the published groups: codes whose embeddings in the target have a cosine of at least `theta`. Other ids form no group."""
    rows, (first, stop) = mini.target.model.get_input_embeddings().weight.detach(), mini.target.places[0]
    return Groups.by_cosine(rows[first:stop], theta).placed(torch.arange(first, stop), len(rows))


def always_accept(mini: Mini, utterances: int = 128) -> dict[str, Any]:
    """Return the options of unverified decoding: three heads commit a token each, corrected by a bigram model of the model's own speech."""
    texts, voices = zip(*spoken.requests(utterances, 3), strict=True)
    said = synthesize(mini.target, texts, voice=voices, seed=20_000)
    lines = [line[:size] for line, size in zip(said.tokens, said.lengths.tolist(), strict=True)]
    first, stop = mini.target.places[0]
    bigrams = Bigrams.count(lines, stop - first, first)
    return {"drafter": grouped(mini.drafters["vadusa"], bigrams, draw=True), "draft_length": 3, "accept": AlwaysAccept()}
