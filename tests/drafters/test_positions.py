"""Drafters with a table of positions shorter than the target's: past its end they draft no more, and the text is plain decoding's.

An asynchronous one is in `test_asynchronous`.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.views.text_views import Newline
from mmspec.models.families.registry import family_of
from mmspec.models.guidance import Guided, GuidedRows, Pairs
from mmspec.models.target import HFTarget
from tests.beam_world import shop, users
from tests.drafters.looking import LINE, asked, llava
from tests.drafters.sources import TREES
from tests.families import VOCAB

SHORT, LONG, NEW, SIZE = 24, 96, 30, 50
_IDS = {"vocab_size": SIZE, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_GPT = _IDS | {"n_embd": 16, "n_layer": 1, "n_head": 2}
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {  # the class of the model, the field of its positions, the others
    "learned": ("GPT2LMHeadModel", "n_positions", _GPT),
    "sinusoids": ("CTRLLMHeadModel", "n_positions", _GPT | {"dff": 32}),
    "tabled rotary": ("GPTJForCausalLM", "n_positions", _GPT | {"rotary_dim": 4}),
    "with an offset": (
        "OPTForCausalLM",
        "max_position_embeddings",
        _IDS | {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    ),
}


def pair(kind: str, positions: int = SHORT, size: int = SIZE) -> Any:
    """A small model; those of one kind have the same weights, whatever their positions and the size of their vocabulary."""
    name, field, options = CONFIGS[kind]
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    longest = model_class(model_class.config_class(**options, **{field: LONG})).eval()
    found = model_class(model_class.config_class(**options | {"vocab_size": size}, **{field: positions})).eval()
    given = longest.state_dict()
    for key, table in found.state_dict().items():
        table[: len(given[key])].copy_(given[key][: len(table)] if table.dim() else given[key])
    return found


def rows(*lengths: int) -> dict[str, Tensor]:
    """Prompts of these lengths, padded on the left."""
    ids = torch.randint(0, SIZE, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(3))
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


Rounds = list[list[tuple[int, int]]]
INPUTS = rows(3, 14, SHORT + 8)  # the last prompt is too long for the drafter


def masked() -> Any:
    found = pair("learned")
    found.config.pard_token = SIZE - 1
    return found


DRAFTERS: dict[str, Callable[[], Any]] = {
    **{kind: (lambda kind=kind: pair(kind)) for kind in CONFIGS},
    "larger vocabulary": lambda: pair("learned", size=SIZE + 2),
    "smaller vocabulary": lambda: pair("learned", size=SIZE - 2),
    "mask tokens": masked,
    "first of a relay": lambda: HorizontalCascade(pair("learned"), 2, Lookup()),
    "last of a relay": lambda: HorizontalCascade(pair("learned", LONG), 2, pair("learned")),
    "middle of a cascade": lambda: VerticalCascade(pair("learned"), Lookup(), None),  # type: ignore[arg-type]
    "inside a cascade": lambda: VerticalCascade(pair("learned", LONG), pair("learned"), None),  # type: ignore[arg-type]
}


def target_of(kind: str) -> Any:
    return pair(kind if kind in CONFIGS else "learned", LONG)


def decoded(
    target: Any, drafter: Any, inputs: dict[str, Tensor] = INPUTS, **options: Any
) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """The tokens, and for each row the (position of the pending token, draft tokens) of its rounds."""
    lengths, rounds = inputs["attention_mask"].sum(1).tolist(), [[] for _ in inputs["input_ids"]]

    def note(step: Any) -> None:
        for row, values in enumerate(step.committed.values):
            if values:
                rounds[row].append((lengths[row] - 1, step.committed.drafted[row]))
                lengths[row] += len(values)

    settings = {"max_new_tokens": NEW, "draft_length": 4, "on_step": note} | options
    return mmspec.text.generate(target, inputs, drafter, **settings).tokens.tolist(), rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rows_go_on_without_a_drafter_that_has_no_positions_left(kind, temperature):
    target = target_of(kind)
    plain, _ = decoded(target, None, temperature=temperature)
    tokens, rounds = decoded(target, DRAFTERS[kind](), temperature=temperature)
    assert tokens == plain
    assert any(drafted for position, drafted in rounds[0] if position < SHORT)
    if kind in CONFIGS:  # others go on by what the drafter is composed with
        assert all(position + drafted < SHORT for row in rounds for position, drafted in row if drafted)
        assert all(drafted for position, drafted in rounds[0] if 2 < position < SHORT - 1), "stopped before the end"


@pytest.mark.parametrize("kind", ["learned", "tabled rotary"])
@pytest.mark.parametrize("tree", TREES)
def test_trees_end_there_too(kind, tree):
    target = target_of(kind)
    plain, _ = decoded(target, None)
    tokens, rounds = decoded(target, pair(kind), tree=TREES[tree], draft_length=getattr(TREES[tree], "nodes", 4))
    assert tokens == plain
    assert any(drafted for _, drafted in rounds[0])
    assert not any(drafted for row in rounds for position, drafted in row if position >= SHORT)


def test_a_drafter_past_its_end_is_not_run(monkeypatch):
    """A prompt that is too long takes one forward of one column, by which rows may join later; a text that is too long takes none."""
    target, drafter, calls = target_of("learned"), pair("learned"), []
    family = type(family_of(drafter))
    forward = family.forward

    def counted(self: Any, model: nn.Module, layout: Any, *rest: Any) -> Any:
        if model.config.n_positions == SHORT:
            calls.append((layout.ids.shape[1], int(layout.positions.max())))
        return forward(self, model, layout, *rest)

    monkeypatch.setattr(family, "forward", counted)
    decoded(target, drafter, rows(SHORT + 1), draft_length=1)
    assert len(calls) == 1
    assert calls[0][0] < 4
    calls.clear()
    decoded(target, drafter, rows(SHORT - 2, SHORT - 3))
    assert 0 < len(calls) < NEW
    assert max(position for _, position in calls) < SHORT


def test_rows_of_an_engine_join_and_outlast_their_drafter():
    target = target_of("learned")
    prompts = [rows(length) for length in (3, SHORT + 5, 14, SHORT - 1, 2, SHORT + 5)]
    plain = [decoded(target, None, prompt)[0][0] for prompt in prompts]
    with mmspec.Engine(target, drafter=pair("learned"), draft_length=4, max_rows=3) as engine:
        handles = [engine.submit(prompt, max_new_tokens=NEW) for prompt in prompts]
        assert [list(handle.result().tokens[0].tolist()) for handle in handles] == plain


@pytest.mark.parametrize("method", ["strict", "coupled"])
def test_beams_of_a_drafter_that_the_history_is_too_long_for(method):
    """The first history is too long for the drafter, the others fit; then all are too long. The items are those of plain search."""
    catalogue, made = shop(), []
    for positions in (LONG, SHORT):
        config = transformers.GPT2Config(**_GPT | {"vocab_size": catalogue.largest_token + 1, "n_positions": positions})
        torch.manual_seed(0)
        made.append(transformers.GPT2LMHeadModel(config).eval())
    target, drafter = made
    histories = users(catalogue, 4)
    histories[0] = (histories[0] * SHORT)[: SHORT // catalogue.levels + 1]
    for chosen, drafted in ((histories, True), (histories[:1], False)):
        plain = mmspec.recsys.recommend(target, chosen, k=5, catalogue=catalogue, method=method)
        found = mmspec.recsys.recommend(target, chosen, drafter, k=5, catalogue=catalogue, method=method)
        assert found.items == plain.items
        assert (found.stats.drafted > 0) == drafted


@pytest.mark.parametrize("unconditional", [3, SHORT + 4], ids=["prompts that fit", "an unconditional prompt that does not"])
@pytest.mark.parametrize("guided", [(True, True), (False, True)], ids=["all guided", "one guided"])
def test_pairs_of_rows_under_guidance_go_on(guided, unconditional):
    """Each row of a pair has its own prompt; the longer one of the two says how far the pair can be drafted."""
    prompts = rows(3, 14, *(unconditional for on in guided if on))
    prompts["input_ids"][2:, -1] = prompts["input_ids"][[row for row, on in enumerate(guided) if on], -1]
    processors = GuidedRows.of([Guided(scale=1.5) if on else Pipeline() for on in guided])

    def target(positions: int) -> Pairs:
        model = pair("learned", positions)
        return Pairs(HFTarget(model, family_of(model), processors))

    def made(drafter: Any, control: Any) -> tuple[list[list[int]], list[list[int]]]:
        found: list[list[int]] = []
        stopping = DefaultStopping(2, NEW)
        out = generate(
            target(LONG),
            drafter,
            Greedy(),
            prompts,
            stopping=stopping,
            noise=Noise.from_seed(0, 2),
            control=control,
            on_step=lambda step: found.append(step.committed.drafted),
        )
        return out.sequences.tolist(), found

    plain, _ = made(NoDraft(), Fixed(0))
    tokens, drafted = made(ModelDrafter(target(SHORT)), Fixed(4))
    assert tokens == plain
    fits = [not on or unconditional < SHORT for on in guided]
    assert [any(each[row] for each in drafted) for row in range(2)] == fits
    assert not any(drafted[-1])


def test_views_of_an_ensemble_go_on():
    """The longest of a row's views says how far it can be drafted."""
    target, inputs = llava(), asked()
    lengths = inputs["attention_mask"].sum(1)
    drafter = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**_GPT | {"vocab_size": VOCAB, "n_positions": int(lengths.min()) + 9})
    ).eval()
    plain = mmspec.text.generate(target, inputs, max_new_tokens=NEW)
    drafted: list[list[int]] = []
    found = mmspec.text.generate(
        target,
        inputs,
        drafter,
        view=("drop", Newline(LINE)),
        draft_length=4,
        max_new_tokens=NEW,
        on_step=lambda step: drafted.append(step.committed.drafted),
    )
    assert found.tokens.tolist() == plain.tokens.tolist()
    assert sum(map(sum, drafted)) > 0
    assert not any(drafted[-1])


def test_generate_of_transformers_goes_on():
    target = target_of("learned")
    expected = target.generate(**INPUTS, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    decoding = mmspec.text.speculate(pair("learned"), draft_length=4)
    found = target.generate(**INPUTS, max_new_tokens=NEW, do_sample=False, pad_token_id=0, custom_generate=decoding)
    assert found.tolist() == expected.tolist()


def test_a_target_past_its_own_end_is_refused_in_one_line():
    for kind in CONFIGS:
        with pytest.raises(ValueError, match=f"exceed the model's {SHORT} positions"):
            decoded(pair(kind), None, rows(3), max_new_tokens=SHORT)
        with pytest.raises(ValueError, match=f"model has {SHORT} positions|exceed the model's {SHORT} positions"):
            decoded(pair(kind), None, rows(SHORT + 1), max_new_tokens=1)
        tokens, _ = decoded(pair(kind), None, rows(3), max_new_tokens=SHORT - 3)  # up to the last one
        assert len(tokens[0]) == SHORT - 3
