"""Gemma-4's assistants: draft tokens of transformers' own generator, and the text of plain decoding."""

from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.records import Step
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.features.shared_states import SharedStates, SharedStatesGuide
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.loading.text import load_pair, named_drafter
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, DrafterSection, TargetSection
from tests.gemma4_assistants import DRAFTED, NARROW, WIDE, assistant, target
from tests.hybrids import prompts, row_of
from tests.tiny import llama

TOKENS = 20
LENGTHS = (7, 12, 2)
PAIRS = {"narrow": (2, NARROW, False), "wide": (2, WIDE, False), "clusters": (2, WIDE, True), "nothing shared": (0, NARROW, False)}
"""Layers of the target that share, the sliding window, and whether the assistant's output embedding is in clusters."""
SHARING = [name for name, (shared, _, _) in PAIRS.items() if shared]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request):
    shared, window, ordered = PAIRS[request.param]
    model = target(shared, window)
    return model, assistant(model, window, ordered)


def alone(model: Any, **options: Any) -> list[list[int]]:
    """The new tokens of the class's own `generate` on every prompt alone."""
    found = []
    for row in range(len(LENGTHS)):
        own = row_of(prompts(LENGTHS), row)
        out = model.generate(**own, do_sample=False, max_new_tokens=TOKENS, **options)
        found.append(out[0, own["input_ids"].shape[1] :].tolist())
    return found


def rounds(model: Any, drafter: Any, inputs: Any, length: int) -> list[Step]:
    """Every round of a greedy generation with chains of `length`."""
    found: list[Step] = []
    rows = len(inputs["input_ids"])
    stopping, noise = DefaultStopping(rows, TOKENS, ()), Noise.from_seed(0, rows)
    source = GuidedDrafter(SharedStates(drafter), Chain(most_likely))
    generate(
        HFTarget(model, family_of(model)),
        source,
        Greedy(),
        inputs,
        stopping=stopping,
        noise=noise,
        control=Fixed(length),
        on_step=found.append,
    )
    return found


def test_text_is_that_of_generate_and_of_plain_sampling(pair):
    model, drafter = pair
    inputs, expected = prompts(LENGTHS), alone(model)
    sampled = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, temperature=1.0, seed=3).tokens.tolist()
    for length in (1, 2, 5):
        out = mmspec.text.generate(model, inputs, drafter=drafter, draft_length=length, max_new_tokens=TOKENS)
        assert out.tokens.tolist() == expected, f"drafts of {length}"
        assert 0 < out.stats.accepted < out.stats.drafted
        out = mmspec.text.generate(model, inputs, drafter=drafter, draft_length=length, max_new_tokens=TOKENS, temperature=1.0, seed=3)
        assert out.tokens.tolist() == sampled, f"drafts of {length}"
    for tree in ((3, 2, 1), "comb", "expand"):
        assert mmspec.text.generate(model, inputs, drafter=drafter, tree=tree, max_new_tokens=TOKENS).tokens.tolist() == expected


@pytest.mark.parametrize("pair", SHARING, indirect=True)
def test_draft_tokens_are_those_of_transformers_round_by_round(pair):
    """transformers' targets hand out states only where layers share them.

    transformers' generator is given a forward of the text before the pending token, so that no rejected token has left a key.
    """
    model, drafter = pair
    checked = partly = 0
    together = rounds(model, drafter, prompts(LENGTHS), DRAFTED)
    for row in range(len(LENGTHS)):
        text = row_of(prompts(LENGTHS), row)["input_ids"]
        for step in together:
            mine = step.draft.nodes[row, 1 : 1 + step.committed.drafted[row]].tolist()
            if mine:
                assert mine == _theirs(model, drafter, text)[: len(mine)]
                checked += 1
                partly += 0 < step.committed.accepted[row] < len(mine)
            text = torch.cat([text, torch.tensor([step.committed.values[row]], dtype=torch.long)], 1)
    assert checked > 15
    assert partly > 3


def _theirs(model: Any, drafter: Any, text: torch.Tensor) -> list[int]:
    """What transformers' generator drafts behind `text`."""
    config = GenerationConfig(max_length=text.shape[1] + DRAFTED + 1)
    generator = SinglePositionMultiTokenCandidateGenerator(drafter, model.get_input_embeddings(), config)
    out = model(text[:, :-1], output_hidden_states=True, return_shared_kv_states=True)
    found, _ = generator.get_candidates(text, model_kwargs={}, model_outputs=out, is_first_iteration=False, n_last_matches=0)
    return found[0, text.shape[1] :].tolist()


@pytest.mark.parametrize("pair", SHARING, indirect=True)
def test_transformers_own_assisted_text_is_the_same(pair):
    model, drafter = pair
    assert alone(model, assistant_model=drafter) == alone(model)


def test_mutant_keys_of_rejected_tokens_are_caught(pair, monkeypatch):
    """Slots behind the committed ones hold keys of earlier drafts."""
    model, drafter = pair
    right = [step.draft.nodes.tolist() for step in rounds(model, drafter, prompts(LENGTHS), DRAFTED)]
    run = SharedStatesGuide._run

    def stale(self, inputs):
        lengths, self.session.lengths = self.session.lengths, self.session.lengths + 1
        try:
            return run(self, inputs)
        finally:
            self.session.lengths = lengths

    monkeypatch.setattr(SharedStatesGuide, "_run", stale)
    assert [step.draft.nodes.tolist() for step in rounds(model, drafter, prompts(LENGTHS), DRAFTED)] != right


def test_drafts_do_not_depend_on_the_batch(pair):
    model, drafter = pair
    together = rounds(model, drafter, prompts(LENGTHS), 3)
    single = rounds(model, drafter, row_of(prompts(LENGTHS), 1), 3)
    for one, all_rows in zip(single, together, strict=False):
        if one.draft.size == all_rows.draft.size:
            assert one.draft.nodes[0].tolist() == all_rows.draft.nodes[1].tolist()


def test_an_assistant_of_another_target_is_refused():
    model = target()
    drafter = assistant(model)
    inputs = prompts((4,))
    with pytest.raises(ValueError, match="reads the keys and values of a Gemma-4 target, but the target is LlamaForCausalLM"):
        mmspec.text.generate(llama(), inputs, drafter=drafter, max_new_tokens=4)
    with pytest.raises(ValueError, match="view applies to drafters that are transformers models, but drafter is Gemma4Assistant"):
        mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=4, view="drop")
    drafter.config.backbone_hidden_size = 16
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=4)


def test_an_assistants_folder_is_a_drafter_of_the_command_line(tmp_path):
    model = target()
    kept = {"target": model, "assistant": assistant(model)}
    for name, each in kept.items():
        each.save_pretrained(tmp_path / name)
        mmspec.load("text").processor.save_pretrained(tmp_path / name)
    kind, path = named_drafter(str(tmp_path / "assistant"))
    assert kind == "model"
    config = Config(target=TargetSection(path=str(tmp_path / "target")), drafter=DrafterSection(kind=kind, path=path, length=3))
    pair = load_pair(config)
    out = pair.generate(prompts(LENGTHS), max_new_tokens=TOKENS)
    assert out.tokens.tolist() == alone(model)
    assert out.stats.accepted > 0
