"""Files of block drafters: the layouts of z-lab/dflash and of `speculators`. transformers' assistants: `tests.drafters.test_block`."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mmspec.drafters.block.dflash import DFlash, DSpark
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain, most_likely
from tests.drafters.runs import random_prompt, run
from tests.drafters.test_guided import BLOCK, SIZES, WINDOWS, lively

RAGGED = random_prompt(5, 9, 1, seed=1)
QWEN = BLOCK | {"model_type": "qwen3", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False}


def written(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def same_net(one, other):
    assert {**one.config, "sizes": None} == {**other.config, "sizes": None}
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def same_drafts(big, one, other):
    drafts: list[list] = [[], []]
    for net, found in zip((one, other), drafts, strict=True):
        note = lambda step, found=found: found.append(step.draft.nodes.tolist())  # noqa: E731
        run(big, GuidedDrafter(net, Chain(most_likely)), RAGGED, length=4, on_step=note)
    assert drafts[0] == drafts[1]


def test_the_authors_layout(big, tmp_path):
    """z-lab/dflash: layer ids number outputs, one less than hidden states; a sliding layer is causal."""
    net = lively(DFlash((1, 3), BLOCK | WINDOWS, 50, layers=2, block=5, mask_id=49, causal=(True, False)))
    nested = {"mask_token_id": 49, "target_layer_ids": [0, 2]}
    config = {**QWEN, **WINDOWS, "use_sliding_window": True, "num_hidden_layers": 2, "architectures": ["DFlashDraftModel"]}
    folder = written(tmp_path / "theirs", {**config, "block_size": 5, "dflash_config": nested}, net.state_dict())
    found = load_drafter(folder, big)
    same_net(found, net)
    same_drafts(big, found, net)
    assert load_drafter(folder).config["embedding_scale"] == 1.0  # without a target: by its bare table
    assert load_drafter(folder, big, states=(0, 1)).reads == (0, 1)
    assert load_drafter(folder, big, layer_ids="inputs").reads == (0, 2)


def test_the_authors_layout_of_the_second(big, tmp_path):
    net = lively(DFlash2((1, 3), BLOCK, 50, layers=2, block=5, mask_id=49, taps=3, group=8, rank=6, candidates=7))
    config = {**QWEN, "num_hidden_layers": 2, "block_size": 5, "architectures": ["DFlash2DraftModel"]}
    nested = {"mask_token_id": 49, "target_layer_ids": [0, 2], "conv_kernel_size": 3, "conv_group_size": 8}
    config["dflash_config"] = nested | {"selector_rank": 6, "selector_top_k": 7}
    weights = {name.replace("_codebook.weight", "_codebook"): tensor for name, tensor in net.state_dict().items()}
    found = load_drafter(written(tmp_path / "theirs", config, weights), big)
    same_net(found, net)
    same_drafts(big, found, net)


def test_the_speculators_layout_of_the_second(big, tmp_path):
    """Its tables are no embeddings; a sliding layer is not causal unless the file says so."""
    options = {"layers": 2, "block": 5, "mask_id": 49, "taps": 3, "group": 8, "rank": 6, "candidates": 7}
    net = lively(DFlash2((1, 3), BLOCK | WINDOWS, 50, **options))
    config = {"speculators_model_type": "dflash2", "block_size": 5, "mask_token_id": 49, "aux_hidden_state_layer_ids": [1, 3]}
    config |= {"transformer_layer_config": {**QWEN, **WINDOWS, "use_sliding_window": True, "num_hidden_layers": 2}, "draft_vocab_size": 50}
    config |= {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 7}
    weights = {name.replace("_codebook.weight", "_codebook"): tensor for name, tensor in net.state_dict().items()}
    found = load_drafter(written(tmp_path / "theirs", config, {**weights, "verifier_norm.weight": torch.ones(32)}), big)
    same_net(found, net)
    same_drafts(big, found, net)
    causal = written(tmp_path / "causal", config | {"sliding_window_non_causal": False}, weights)
    assert load_drafter(causal, big).causal == (True, False)
    lacking = written(tmp_path / "lacking", {key: value for key, value in config.items() if key != "selector_rank"}, weights)
    with pytest.raises(ValueError, match=r"config.json has no selector_rank: it is incomplete"):
        load_drafter(lacking, big)


@pytest.mark.parametrize("values", [0, 30])
@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_speculators_layout(big, tmp_path, kind, values):
    options = {"layers": 2, "block": 5, "mask_id": 49, "values": values, "shared_head": not values}
    heads = {"markov": 8, "markov_kind": "gated", "confidence": True, "from_anchor": True}
    net = lively(DFlash((1, 3), BLOCK, 50, **options) if kind == "dflash" else DSpark((1, 3), BLOCK, 50, **options, **heads))
    config = {"speculators_model_type": kind, "block_size": 5, "mask_token_id": 49, "aux_hidden_state_layer_ids": [1, 3]}
    config |= {"transformer_layer_config": {**QWEN, "num_hidden_layers": 2}, "draft_vocab_size": values or 50}
    if kind == "dspark":
        config |= {"markov_rank": 8, "markov_head_type": "gated", "enable_confidence_head": True, "confidence_head_with_markov": True}
        config |= {"sample_from_anchor": True}
    verifier = {"verifier_norm.weight": torch.ones(32), "verifier_lm_head.weight": torch.ones(50, 32)}
    found = load_drafter(written(tmp_path / "theirs", config, {**net.state_dict(), **verifier}), big)
    same_net(found, net)
    same_drafts(big, found, net)


def test_the_speculators_layout_of_p_eagle(big, tmp_path):
    net = lively(ParallelEagle((1, 2, 3), SIZES, 50, tokens=4, deeper=1, mask_id=49, own_embedding=True))
    weights = {name.replace("midlayer.", "layers.0.").replace("deeper.0.", "layers.1."): x for name, x in net.state_dict().items()}
    weights["mask_hidden"] = weights["mask_hidden"].view(1, 1, -1)
    layer = {**SIZES, "model_type": "llama", "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
    config = {"speculators_model_type": "peagle", "mask_token_id": 49, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    config |= {"transformer_layer_config": layer, "speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]}}
    found = load_drafter(written(tmp_path / "theirs", config, weights))
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in net.state_dict().items())
    same_drafts(big, found, net)


HEADS = {"markov": 8, "markov_kind": "rnn", "confidence": True, "from_anchor": True}
EXPORTS = {
    "dflash": lambda: DFlash((1, 2), BLOCK, 50, layers=2, block=5, mask_id=49),
    "dflash-some-values": lambda: DFlash((1, 2), BLOCK, 50, block=5, mask_id=49, values=30, shared_head=False),
    "dflash-windows": lambda: DFlash((0, 2), BLOCK | WINDOWS, 50, layers=2, block=5, mask_id=49, causal=(True, False)),
    "dflash-both-ways": lambda: DFlash((0, 2), BLOCK | WINDOWS, 50, layers=2, block=5, mask_id=49),
    "dflash2": lambda: DFlash2((1, 2), BLOCK, 50, layers=2, block=5, mask_id=49, group=8, rank=6, candidates=7),
    "dflash2-own-head": lambda: DFlash2((1, 2), BLOCK, 50, block=5, mask_id=49, group=8, rank=6, from_anchor=True, shared_head=False),
    "dspark": lambda: DSpark((0, 1), BLOCK, 50, block=5, mask_id=49, **HEADS),
    "p-eagle": lambda: ParallelEagle((0, 1, 2), SIZES, 50, tokens=3, deeper=1, mask_id=49, own_embedding=True),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_is_read_back(big, tmp_path, name):
    net = lively(EXPORTS[name]())
    export_speculators(net, tmp_path / "out", big, verifier_name="some/target")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == net.most
    found = load_drafter(tmp_path / "out", big)
    assert type(found) is type(net)
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in net.state_dict().items())
    same_drafts(big, found, net)


def test_states_out_of_order_are_written_in_order(big, tmp_path):
    """vLLM joins hidden states in the order of the layers; so the mask's are moved with the others."""
    net = lively(ParallelEagle((2, 0, 1), SIZES, 50, tokens=3, mask_id=49, own_embedding=True))
    export_speculators(net, tmp_path / "out", big, verifier_name="some/target")
    found = load_drafter(tmp_path / "out", big)
    assert found.reads == (0, 1, 2)
    same_drafts(big, found, net)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DFlash((1, 2), BLOCK, 50), "embeds its masks otherwise than the target does: train it with mask_id"),
        (
            lambda: DFlash((1, 2), BLOCK, 50, mask_id=3, fc_norm=True),
            "the format knows no fc_norm, states 0 to 2, and causal layers that slide",
        ),
        (lambda: DFlash((1, -1), BLOCK, 50, mask_id=3), r"reads \[1, 3\] of 3 layers"),
        (lambda: DFlash((1, 2), BLOCK, 50, mask_id=3, causal=(True,)), r"causal \[True\]"),
        (lambda: ParallelEagle((0, 1, 2), SIZES, 50), "embeds its masks otherwise"),
        (lambda: DFlash2((1, 2), BLOCK, 50, mask_id=3, values=30), "has 30 values .*: the format's drafts all values of the target"),
    ],
)
def test_what_cannot_be_exported_is_named(big, tmp_path, make, said):
    with pytest.raises(ValueError, match=said):
        export_speculators(make(), tmp_path / "out", big, verifier_name="some/target")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block_size": 0}, "block_size is 0 in config.json: a whole number of at least 1 is needed"),
        ({"dflash_config": {"target_layer_ids": [0, 2]}}, "config.json has no mask_token_id: it is incomplete"),
        ({"dflash_config": {"mask_token_id": 49}}, "config.json has no target_layer_ids: it is incomplete; give states="),
        ({"dflash_config": {"mask_token_id": 49, "target_layer_ids": [0, 5]}}, "hidden state 6 does not exist: the model has 3 layers"),
        ({"dflash_config": {"mask_token_id": 77, "target_layer_ids": [0, 2]}}, "mask_id is 77, but the target has values 0 to 49"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0 in config.json, but the target's is None"),
        ({"attention_sink_bias": True}, "attention_sink_bias True in config.json is not supported: only False is"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' in config.json is not supported"),
        ({"num_hidden_layers": 3}, "tensor layers.2.self_attn.q_proj.weight of shape"),
        ({"model_type": "none"}, "config.json is no transformers config"),
    ],
)
def test_broken_files_are_named_in_one_line(big, tmp_path, changes, said):
    net = lively(DFlash((1, 3), BLOCK, 50, layers=2, block=5, mask_id=49))
    nested = {"mask_token_id": 49, "target_layer_ids": [0, 2]}
    config = {**QWEN, "num_hidden_layers": 2, "block_size": 5, "dflash_config": nested, **changes}
    folder = written(tmp_path / "d", config, net.state_dict())
    with pytest.raises(ValueError, match=said) as error:
        load_drafter(folder, big)
    assert "\n" not in str(error.value)
