"""Long prompts: run in pieces, with no tensor of columns times columns, and with the tokens and states of a prompt run whole."""

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.bench.operations import operations
from mmspec.core.records import Draft
from mmspec.models.families import base
from mmspec.models.families.registry import family_of
from mmspec.models.session import HFSession
from mmspec.models.target import HFTarget
from tests.crossing import generated_alone
from tests.families import FAMILIES, LLAMA, VOCAB, build, inputs_for

N = 384
CAUSAL = ("GPT-2", "Llama", "Gemma-3", "Mistral")
LENGTHS = {"single": (40,), "even": (33, 33), "ragged": (40, 3, 29)}


def alone(name: str):
    return build(FAMILIES[name])


def prompts(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Random prompts of these lengths, padded on the left."""
    generator, width = torch.Generator().manual_seed(3), max(lengths)
    ids = torch.randint(5, VOCAB, (len(lengths), width), generator=generator)
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


def in_pieces(monkeypatch, first: int, later: int) -> None:
    monkeypatch.setattr(base, "UNMASKED_PIECE", first)
    monkeypatch.setattr(base, "PIECE", later)


def generate(model, inputs, **options):
    return mmspec.text.generate(model, inputs, max_new_tokens=10, **options).tokens


OPTIONS = ({}, {"drafter": "lookup", "draft_length": 3}, {"repetition_penalty": 1.3, "temperature": 0.8})
PIECES = ((7, 7), (16, 5), (1, 1))


@pytest.mark.parametrize("asked", range(len(OPTIONS)))
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", CAUSAL)
def test_pieces_give_the_tokens_of_a_whole_prompt(name, rows, asked, monkeypatch):
    """Every pair of pieces with a model, a batch and options."""
    model, inputs, options = alone(name), prompts(LENGTHS[rows]), OPTIONS[asked]
    whole = generate(model, inputs, **options)
    in_pieces(monkeypatch, *PIECES[(CAUSAL.index(name) + list(LENGTHS).index(rows) + asked) % 3])
    assert torch.equal(generate(model, inputs, **options), whole)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", CAUSAL)
def test_pieces_give_the_tokens_of_generate(name, rows, attention, monkeypatch):
    model, inputs = alone(name), prompts(LENGTHS[rows])
    model.set_attn_implementation(attention)
    in_pieces(monkeypatch, 11, 6)
    found = generate(model, inputs)
    for row, expected in enumerate(generated_alone(model, inputs, max_new_tokens=10)):
        assert found[row, : len(expected)].tolist() == list(expected)


@pytest.mark.parametrize("rows", LENGTHS)
def test_hidden_states_of_pieces_are_those_of_the_whole_prompt(rows, monkeypatch):
    model, inputs = alone("Gemma-3"), prompts(LENGTHS[rows])

    def context():
        session, pending = HFTarget(model, family_of(model)).begin(inputs)
        session.watch((1, -1))
        return session.score(pending)

    whole = context()
    in_pieces(monkeypatch, 5, 5)
    split = context()
    real = torch.arange(whole.context.hidden.shape[1]) < whole.context.lengths[:, None]
    assert torch.equal(split.context.ids, whole.context.ids)
    assert torch.allclose(split.context.hidden[real], whole.context.hidden[real], atol=1e-5)
    assert torch.allclose(split.hidden, whole.hidden, atol=1e-5)
    assert torch.allclose(split.p.scores, whole.p.scores, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_same_in_pieces(name, monkeypatch):
    """Families whose columns see later ones, or whose first forward does more, leave the prompt whole."""
    model = build(FAMILIES[name])
    inputs = inputs_for(name, 2)
    whole = generate(model, inputs)
    in_pieces(monkeypatch, 4, 2)
    assert torch.equal(generate(model, inputs), whole)


# --- sizes ------------------------------------------------------------------------------------------------------------


READS = ({}, {"drafter": "lookup", "draft_length": 4}, {"repetition_penalty": 1.2})
LONG = {"single": (N,), "even": (N, N), "ragged": (N, N // 3)}


@pytest.mark.parametrize("asked", range(len(READS)))
@pytest.mark.parametrize("batch", LONG)
@pytest.mark.parametrize("name", ["Llama", "Gemma-3"])
def test_no_tensor_of_columns_times_columns(name, batch, asked, monkeypatch):
    """Each attention with every model, batch and options."""
    rows, options = LONG[batch], READS[asked]
    model = longer(name, ("sdpa", "eager")[(list(LONG).index(batch) + asked + (name == "Llama")) % 2])
    in_pieces(monkeypatch, base.UNMASKED_PIECE, 32)
    generate(model, prompts((9,)), **options)  # the self-test of a class's first generation
    assert operations(lambda: generate(model, prompts(rows), **options)).largest < N * N // 2


@pytest.mark.parametrize("name", ["Llama", "Gemma-3"])
def test_a_prompt_left_whole_is_caught(name, monkeypatch):
    model = longer(name, "sdpa")
    monkeypatch.setattr(base.DecoderOnly, "pieces", lambda self, model, state: None)
    assert operations(lambda: generate(model, prompts((N, N // 3)))).largest >= N * N


def longer(name: str, attention: str):
    sizes = {**LLAMA, "max_position_embeddings": 2 * N, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    torch.manual_seed(0)
    if name == "Llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))
    else:
        kinds = ["sliding_attention", "full_attention"]
        model = hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**sizes | {"num_hidden_layers": 2}, sliding_window=16, layer_types=kinds))
    model.set_attn_implementation(attention)
    return model.eval()


# --- where attention needs no mask ------------------------------------------------------------------------------------


def opened(rows, session=HFSession):
    model = alone("Llama")
    begun, pending = HFTarget(model, family_of(model)).begin(prompts(rows))
    return begun, pending


def test_masks_are_left_out_where_rows_are_as_long_as_the_host_knows():
    session, pending = opened(LENGTHS["even"])
    assert session.place(pending, 0).causal  # nothing is cached: the prompt and the draft are one chain
    session, pending = opened(LENGTHS["single"])
    session.score(pending)
    session.commit(torch.zeros_like(pending.parents), 1)
    chain = Draft.root(pending.nodes[:, 0], pending.start + 1)
    assert session.place(chain, 0).causal
    longer_chain = chain.extend_chain(chain.nodes, torch.ones_like(chain.start))
    assert not session.place(longer_chain, 0).causal  # two columns behind others
    assert session.place(longer_chain, 1).causal  # the second one alone


@pytest.mark.parametrize("rows", ["ragged", "even"])
def test_masks_stay_for_rows_that_drift_apart(rows):
    session, pending = opened(LENGTHS[rows])
    draft = pending.extend_chain(pending.nodes, torch.ones_like(pending.start))
    assert session.place(draft, 0).causal == (rows == "even")
    session.scored, session.draft = 2, draft
    session.commit(torch.tensor([[0, 1], [0, -1], [0, -1]][: len(draft.nodes)]), 2)
    assert not session.even
    assert not session.place(Draft.root(pending.nodes[:, 0], pending.start), 0).causal


def test_branches_and_several_roots_keep_their_masks():
    session, pending = opened(LENGTHS["single"])
    assert not session.place(pending.extend(pending.nodes.repeat(1, 2), torch.zeros(1, 2, dtype=torch.long), width=2, levels=1), 0).causal
    session, pending = opened(LENGTHS["single"])
    roots = Draft(pending.nodes.repeat(1, 2), torch.tensor([[-2, -1]]), pending.start, roots=2)
    assert not session.place(roots, 0).causal


def test_rows_taken_for_even_ones_are_caught(monkeypatch):
    model, inputs = alone("Llama"), prompts(LENGTHS["ragged"])
    right = generate(model, inputs)
    monkeypatch.setattr(HFSession, "_continues", lambda self, draft: draft.linear)
    assert not torch.equal(generate(model, inputs), right)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_window_cut_one_slot_amiss(shift, monkeypatch):
    """One slot fewer changes the tokens; one more does not, where a mask hides it, and is not read without one."""
    model, inputs = alone("Gemma-3"), prompts(LENGTHS["single"])
    right, narrowed = generate(model, inputs), base.DecoderOnly._narrowed

    def amiss(self, layout, cache):
        first = narrowed(self, layout, cache)
        return narrowed(self, layout, cache) if not first else point(layout, cache, max(0, first + shift))

    def point(layout, cache, first):
        cache.point(layout.slots, layout.view, first)
        return first

    monkeypatch.setattr(base.DecoderOnly, "_narrowed", amiss)
    assert torch.equal(generate(model, inputs), right) == (shift < 0)
