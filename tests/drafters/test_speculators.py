"""The package `speculators` itself: it loads what is exported here, what its classes write loads here, and both draft the same tokens.

Its 0.9.0 asks for transformers <= 5.19 but runs with later ones; where those are installed: pip install --no-deps speculators
hs-connectors loguru pydantic-settings openai datasets, and what `import speculators` asks for then.
"""

import json

import pytest
import torch
from transformers import LlamaConfig

from mmspec import text
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.drafters.features.eagle import Eagle3
from mmspec.train.distillation import unroll
from mmspec.train.record import record
from tests.drafters.runs import greedy, random_prompt
from tests.drafters.test_guided import BLOCK
from tests.drafters.test_published import KNOWN, LAYER, SIZES, H, V, deep, lively

speculators = pytest.importorskip(
    "speculators",
    reason="speculators pins other versions of transformers and torch: install it in an environment of its own",
)
__all__ = ["deep"]


@pytest.fixture(scope="module")
def verifier(deep, tmp_path_factory):
    """The target's folder: the package reads its config."""
    folder = tmp_path_factory.mktemp("verifier")
    deep.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def window(deep, tmp_path_factory):
    """What the target wrote, with the hidden states of every layer."""
    inputs = random_prompt(*[6] * 2, seed=5)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(deep, inputs, new=14))], 1)
    return record(deep, ids, torch.ones_like(ids, dtype=torch.bool), (1, 3, 5), tmp_path_factory.mktemp("states") / "s").window([0, 1])


def same_draft_tokens(model, net, target, window) -> None:
    """Compare the likeliest values of three levels on the text's own values; the package keeps a column at its first state."""
    places, embed, head = window.ids.shape[1] - 1, target.get_input_embeddings(), target.get_output_embeddings()
    with torch.no_grad():
        levels = [level.logits.argmax(-1) for level in unroll(net, window, embed, head, 3)]
        assert all(len(level.unique()) > 3 for level in levels)
        for row, (features, ids) in enumerate(zip(window.features, window.ids, strict=True)):
            document = torch.zeros(1, places, dtype=torch.long)
            theirs = model(features[None, :-1], ids[None, 1:], document, ttt_steps=3)
            for depth, (one, other) in enumerate(zip(levels, theirs, strict=True)):
                assert torch.equal(one[row, depth:], other[0, : places - depth])


@pytest.mark.parametrize("values", [None, len(KNOWN)], ids=["all values", "some values"])
def test_the_package_loads_what_is_exported(deep, verifier, window, tmp_path, values):
    net = lively(Eagle3((1, 3, 5), SIZES, V, values, norm_before_residual=True))
    export_speculators(net, tmp_path / "out", deep, tokens=4, verifier_name=str(verifier))
    config = speculators.SpeculatorModelConfig.from_pretrained(tmp_path / "out")
    config.transformer_layer_config._attn_implementation = "eager"  # its flex attention needs rows of 128 for a second level
    model = speculators.SpeculatorModel.from_pretrained(tmp_path / "out", config=config).eval()
    assert type(model).__name__ == "Eagle3DraftModel"
    assert model.config.speculators_config.verifier.name_or_path == str(verifier)
    model.embed_tokens.weight.data.copy_(deep.get_input_embeddings().weight)
    same_draft_tokens(model, net, deep, window)


@pytest.mark.parametrize("values", [V, len(KNOWN)], ids=["all values", "some values"])
def test_what_the_package_writes_loads_here(deep, verifier, window, tmp_path, values):
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    torch.manual_seed(1)
    sizes = {key: value for key, value in LAYER.items() if key not in ("architectures", "model_type", "rope_scaling")}
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=LlamaConfig(**sizes, attn_implementation="eager"),
        draft_vocab_size=values,
        norm_before_residual=True,
        eagle_aux_hidden_state_layer_ids=[1, 3, 5],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=4)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=str(verifier), architectures=["LlamaForCausalLM"]),
        ),
    )
    model = Eagle3DraftModel(config)
    for parameter in model.parameters():
        parameter.data.nan_to_num_(0).mul_(2).add_(0.2 * torch.randn_like(parameter))  # its head is NaN until it has the verifier's
    model.embed_tokens.weight.data.copy_(deep.get_input_embeddings().weight)
    if values < V:
        model.load_vocab_mappings(torch.zeros(V, dtype=torch.bool).index_fill_(0, KNOWN, True), KNOWN - torch.arange(values))
    model.eval().save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["speculators_model_type"] == "eagle3"
    net = load_drafter(tmp_path / "theirs", deep)
    assert net.llama.hidden_size == H
    same_draft_tokens(model, net, deep, window)
    inputs = random_prompt(5, 9, seed=2)
    out = text.generate(deep, inputs, net, draft_length=3, max_new_tokens=12)
    assert out.tokens.tolist() == greedy(deep, inputs, new=12)
    assert out.stats.drafted > 0


def test_a_second_dflash_drafter_is_the_packages_both_ways(deep, verifier, window, tmp_path):
    """The package loads what is exported here and scores the same candidates alike; what it writes loads here."""
    net = lively(DFlash2((1, 3, 5), BLOCK, V, layers=2, block=4, mask_id=49, group=8, rank=6, candidates=5))
    export_speculators(net, tmp_path / "out", deep, verifier_name=str(verifier))
    config = speculators.SpeculatorModelConfig.from_pretrained(tmp_path / "out")
    config.transformer_layer_config._attn_implementation = "eager"
    model = speculators.SpeculatorModel.from_pretrained(tmp_path / "out", config=config).eval()
    assert type(model).__name__ == "DFlash2DraftModel"
    model.embed_tokens.weight.data.copy_(deep.get_input_embeddings().weight)
    model.lm_head.weight.data.copy_(deep.lm_head.weight)
    ids, features, blank = window.ids[:1], window.features[:1], torch.zeros_like(window.ids[:1])
    with torch.no_grad():
        hidden, own, _, _, places = model._backbone_forward(features, ids, blank + 1, features[..., :H], blank, max_anchors=5)
        places, hidden, own = places.view(5, 4), hidden.view(5, 4, -1)[:, 1:], own.view(5, 4, -1)[:, 1:]
        before = ids[0, places[:, :3]]
        chosen, theirs = model.candidate_selector.select(own, hidden, before)
        embedded = net.block_values(deep.get_input_embeddings(), ids[:, places[:, 0]])
        feature, _ = net.feature(net.blocks(features, embedded, places[None, :, 0])[0], before, None)
        ours = net.eval().own_logits(feature, deep.lm_head)
    assert torch.equal(ours.topk(5).indices.sort().values, chosen.sort().values)
    assert torch.allclose(ours.gather(-1, chosen), theirs, atol=1e-4)
    model.save_pretrained(tmp_path / "theirs")
    found = load_drafter(tmp_path / "theirs", deep)
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in net.state_dict().items())
