"""The memory of recurrent states: what is computed without weights is what a session holds, and what the docs say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GraniteMoeHybridConfig, LlamaConfig, Qwen3NextConfig

from mmspec.core.records import Draft
from mmspec.models.families.registry import family_of
from mmspec.models.recurrent.memory import states_memory
from mmspec.models.target import HFTarget
from tests.hybrids import MAKERS, prompts, small
from tests.sizes import LLAMA, STATES

NEW = pytest.mark.skipif(not STATES, reason="needs transformers 5.23")

ATTENTION = (5, 15, 25, 35)
GRANITE_SMALL = {
    **{"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 100352},
    **{"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2},
    **{"num_local_experts": 72, "num_experts_per_tok": 10, "intermediate_size": 768, "shared_intermediate_size": 1536},
    "layer_types": ["full_attention" if layer in ATTENTION else "linear_attention" for layer in range(40)],
}
PUBLISHED = {
    "Qwen3-Next-80B-A3B": lambda: Qwen3NextConfig(),
    "Granite-4.0-H-Small": lambda: GraniteMoeHybridConfig(**GRANITE_SMALL),
}


def held(session: Any) -> int:
    """Bytes of all states and recorded inputs of a session, each tensor once."""
    parts: dict[int, torch.Tensor] = {}
    for layer in session.recurrent.layers:
        every = [layer.current, layer.nodes, *(call.before for call in layer.calls)]
        tensors = [part for state in every if state is not None for part in (state.conv, state.recurrent)]
        tensors += [call.inputs for call in layer.calls]
        parts |= {tensor.data_ptr(): tensor for tensor in tensors if tensor is not None and tensor.numel()}
    return sum(tensor.numel() * tensor.itemsize for tensor in parts.values())


@NEW
@pytest.mark.parametrize("name", MAKERS)
def test_a_session_holds_what_is_computed(name):
    model = small(name)
    memory = states_memory(model.config, torch.float32)
    session, pending = HFTarget(model, family_of(model)).begin(prompts((5, 3)))
    session.score(pending)
    session.commit(torch.zeros(2, 1, dtype=torch.long), 1)
    assert held(session) == 2 * memory.row
    nodes = torch.randint(3, 50, (2, 4), generator=torch.Generator().manual_seed(0))
    chain = Draft.root(nodes[:, 0], pending.start + 1).extend(nodes[:, 1:], torch.arange(3).repeat(2, 1), linear=True)
    session.score(chain)
    single = session.recurrent.layers[0].mixer.form == "single"
    assert held(session) == (2 * (4 + 1) * memory.row + 8 * memory.column if single else memory.chain(rows=2, nodes=4))
    session.commit(torch.tensor([[0, 1], [0, -1]]), 2)
    assert held(session) == 2 * memory.row
    tree = Draft.root(nodes[:, 0], pending.start + 2).extend(nodes[:, 1:], torch.tensor([0, 0, 1]).repeat(2, 1), width=2, levels=2)
    session.score(tree)
    assert held(session) == memory.tree(rows=2, nodes=4)
    session.commit(torch.tensor([[0, 1], [0, -1]]), 2)
    assert held(session) == 2 * memory.row


@NEW
def test_the_docs_say_what_is_computed():
    text = (Path(__file__).parents[2] / "docs/text.md").read_text(encoding="utf-8")
    for name, config in PUBLISHED.items():
        memory = states_memory(config())
        sizes = [memory.row, memory.chain(rows=1, nodes=8), memory.tree(rows=1, nodes=32)]
        line = f"| {name} | " + " | ".join(f"{size / 1e6:,.0f} MB" for size in sizes) + " |"
        assert line in text, line


def test_models_without_states_are_refused():
    with pytest.raises(ValueError, match="has no mixers"):
        states_memory(LlamaConfig(**LLAMA))
