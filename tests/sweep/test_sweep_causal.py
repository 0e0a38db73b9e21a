"""A fast part of the sweep over causal language models: every way positions and masks are handled, and the page that lists the outcomes."""

from dataclasses import replace

import pytest
import torch

from mmspec.models.families.registry import family_of
from tests.sweep import page
from tests.sweep.causal import VARIANTS, cases
from tests.sweep.run import EXACT, REFUSED, examine

SHOWN = {  # model type: the family that drives it
    "llama": "DecoderOnly",
    "qwen2": "DecoderOnly",
    "mistral": "DecoderOnly",
    "gemma2": "DecoderOnly",
    "gptj": "DecoderOnly",
    "bert": "DecoderOnly",
    "roberta": "DecoderOnly",  # its forward and its generate count positions from different numbers
    "llama4_text": "DecoderOnly",  # chunked attention
    "bart": "PositionTable",
    "marian": "PositionTable",
    "trocr": "PositionTable",
    "bloom": "Alibi",
    "mpt": "Alibi",
    "falcon (alibi)": "Alibi",
    "gpt_neo": "LocalAttention",
    "moshi": "CacheWindow",
    "llama (dynamic rope)": "RopeLengths",
    "llama (longrope)": "RopeLengths",
    "phi3 (longrope)": "RopeSwitch",
    "lfm2": "HybridDecoder",
    "mamba": "HybridDecoder",
    "qwen3_next": "HybridDecoder",
}
NOT_FIT = {  # model type: what its refusal says
    "bert (is_decoder=False)": "runs as an encoder",
    "cpmant": "its own attention mask",
    "rwkv": "cannot be rolled back",
    "openai-gpt": "no key-value cache",
    "roformer": "takes no position_ids",
    "deepseek_v32": "choose the keys they read",
}
CASES = {case.name: case for case in cases()}
PAGE = {record.name: record for record in page.read() if record.kind == "causal"}


@pytest.mark.parametrize("name", SHOWN)
def test_every_draft_gives_the_tokens_of_generate(name):
    model = CASES[name].make()
    assert type(family_of(model)).__name__ == SHOWN[name]
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    forwards = [vars(module).get("forward") for module in model.modules()]
    record = examine(replace(CASES[name], tokens=8), pairs=True)
    assert record.outcome == EXACT, record
    assert PAGE[name].outcome == EXACT
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())
    assert [vars(module).get("forward") for module in model.modules()] == forwards


@pytest.mark.parametrize("name", NOT_FIT)
def test_what_cannot_be_run_exactly_is_refused_in_one_line(name):
    record = examine(CASES[name])
    assert record.outcome == REFUSED, record
    assert NOT_FIT[name] in record.reason
    assert PAGE[name].outcome == REFUSED


def test_the_page_lists_every_causal_architecture_and_none_is_wrong():
    assert set(PAGE) == set(CASES)
    assert set(VARIANTS) <= set(PAGE)
    assert {record.outcome for record in PAGE.values()} <= {"exact", "exact without trees", "refused", "not run"}
