"""Processors of whole sequences are transformers' own at every node of a tree, for every row of a padded batch."""

import inspect

import pytest
import torch
from transformers.generation import logits_process as known

from mmspec.core.processors.history import History
from mmspec.core.processors.sequence import (
    EncoderNoRepeatNGram,
    LengthPenalty,
    NoRepeatNGram,
    ReplaceInvalid,
    SequenceBias,
    SequencePenalty,
    biases_of,
    sequences,
)
from mmspec.core.records import Draft

B, P, V = 3, 7, 6
PADS = (3, 0, 5)
PARENTS = [-1, 0, 0, 1, 1, 2, 4]


def case(seed: int) -> tuple[torch.Tensor, History, list[list[list[int]]]]:
    """A padded prompt, the history of a tree's nodes, and every node's outputs in order. Rows have committed 2, 0 and 4 outputs."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(1, V, (B, P), generator=generator)
    for row, missing in enumerate(PADS):
        prompt[row, :missing] = 0
    committed, nodes = (2, 0, 4), torch.randint(1, V, (B, len(PARENTS)), generator=generator)
    width = P + 4 + len(PARENTS)
    ids = torch.randint(0, V, (B, width), generator=generator)
    visible, outputs = torch.zeros(B, len(PARENTS), width, dtype=torch.bool), []
    draft = Draft(nodes, torch.tensor([PARENTS] * B), torch.tensor(committed), linear=False)
    for row, (missing, count) in enumerate(zip(PADS, committed, strict=True)):
        before = torch.randint(1, V, (count,), generator=generator).tolist()
        real = [*prompt[row, missing:].tolist(), *before]  # the last of them is the root
        nodes[row, 0] = real[-1]
        filled = len(real) - 1
        ids[row, :filled] = torch.tensor(real[:-1])
        ids[row, filled : filled + len(PARENTS)] = nodes[row]
        visible[row, :, :filled] = True
        visible[row, :, filled : filled + len(PARENTS)] = draft.ancestors()[row]
        paths = []
        for node in range(len(PARENTS)):
            path, at = [], node
            while at > 0:
                path.append(int(nodes[row, at]))
                at = PARENTS[at]
            paths.append([*before, *reversed(path)])
        outputs.append(paths)
    return prompt, History(ids, visible, draft.position()), outputs


def theirs(processor, raw, prompt, outputs):
    """transformers' class, called with a whole batch of which the row in question is the real one."""
    out = torch.empty_like(raw)
    for row in range(B):
        for node, values in enumerate(outputs[row]):
            ids = torch.cat([prompt[row], torch.tensor(values, dtype=torch.long)])
            out[row, node] = processor(ids.expand(B, -1), raw[row, node].expand(B, -1).clone())[row]
    return out


def scores(seed: int) -> torch.Tensor:
    return 3 * torch.randn(B, len(PARENTS), V, generator=torch.Generator().manual_seed(seed))


SOURCE = torch.tensor([[1, 2, 3, 1, 2], [0, 0, 4, 5, 4], [5, 5, 5, 1, 0]])
BIASES = {(2,): 1.5, (1, 3): -2.0, (4, 3): 0.5, (2, 1, 3): 7.0, (0, 5): float("-inf"), (5,): float("-inf")}
IGNORED = torch.tensor(PADS)


def grams(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = SOURCE.unfold(1, size, 1)
    return found, torch.ones(found.shape[:2], dtype=torch.bool)


PAIRS = {
    "penalty": (lambda p: SequencePenalty(1.4, p), lambda: known.RepetitionPenaltyLogitsProcessor(1.4)),
    "penalty, prompt cut": (lambda p: SequencePenalty(0.7, p, 4), lambda: known.RepetitionPenaltyLogitsProcessor(0.7, 4)),
    "penalty, prompt left out": (lambda p: SequencePenalty(1.7, p, P), lambda: known.RepetitionPenaltyLogitsProcessor(1.7, P)),
    **{f"{n}-gram": (lambda p, n=n: NoRepeatNGram(n, p), lambda n=n: known.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3, 40)},
    **{
        f"encoder {n}-gram": (
            lambda p, n=n: EncoderNoRepeatNGram(*grams(n), p),
            lambda n=n: known.EncoderNoRepeatNGramLogitsProcessor(n, SOURCE),
        )
        for n in (1, 2, 3)
    },
    "bias": (lambda p: SequenceBias(biases_of(BIASES), p), lambda: known.SequenceBiasLogitsProcessor(BIASES)),
    "bad words": (
        lambda p: SequenceBias(biases_of({(1, 2): float("-inf"), (3,): float("-inf")}), p),
        lambda: known.NoBadWordsLogitsProcessor([[1, 2], [3]]),
    ),
    "decay": (lambda p: LengthPenalty((2, 4), 1, 1.3), lambda: known.ExponentialDecayLengthPenalty((1, 1.3), [2, 4], P)),
    "invalid": (lambda p: ReplaceInvalid(), lambda: known.InfNanRemoveLogitsProcessor()),
}
if "torch.Tensor" in inspect.getsource(known.RepetitionPenaltyLogitsProcessor.__init__):  # transformers 5.17 has no number for each row
    PAIRS["penalty, pads left out"] = (
        lambda p: SequencePenalty(1.4, p, IGNORED),
        lambda: known.RepetitionPenaltyLogitsProcessor(1.4, IGNORED),
    )


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_each_is_transformers_own_at_every_node(name, seed):
    own, other = PAIRS[name]
    prompt, history, outputs = case(seed)
    raw = scores(seed)
    if name == "invalid":
        raw[0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    assert torch.equal(own(prompt)(raw.clone(), history), theirs(other(), raw, prompt, outputs))


@pytest.mark.parametrize("name", ["penalty", "2-gram", "bias"])
def test_without_a_prompt_the_path_alone_is_read(name):
    """What transformers sees of a row that runs alone, without padding."""
    own, other = PAIRS[name]
    prompt, history, outputs = case(1)
    raw = scores(1)
    found = own(None)(raw.clone(), history)
    for row in range(B):
        for node, values in enumerate(outputs[row]):
            ids = torch.cat([prompt[row, PADS[row] :], torch.tensor(values, dtype=torch.long)])
            assert torch.equal(found[row, node], other()(ids[None], raw[row, node][None].clone())[0])


def test_sequences_are_the_padded_prompt_and_the_outputs_in_order():
    prompt, history, outputs = case(2)
    ids, lengths = sequences(history, prompt)
    for row in range(B):
        for node, values in enumerate(outputs[row]):
            assert ids[row, node, : lengths[row, node]].tolist() == [*prompt[row].tolist(), *values]


def test_a_bias_on_an_unknown_id_is_refused():
    prompt, history, _ = case(0)
    with pytest.raises(ValueError, match=r"name the ids \[99\], but the vocabulary has 6"):
        SequenceBias(biases_of({(99,): 1.0}), prompt)(scores(0), history)
