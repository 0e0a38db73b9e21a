"""Models with a vocabulary of thousands of words beside the catalogue's tokens: the same lists, with the logits of those tokens alone."""

import pytest
import torch
import transformers as hf

from mmspec.models.compat import catalogue_head
from mmspec.models.compat.catalogue_head import CatalogueHead
from mmspec.models.module_copy import own_copy
from mmspec.recsys import Catalogue, rank_candidates, recommend
from tests.beam_world import transformers_beams

WORDS = 20_000
SIZES = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def made(kind: str, layers: int = 2, seed: int = 0):
    torch.manual_seed(seed)
    if kind == "t5":
        sizes = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": layers, "num_heads": 2}
        model = hf.T5ForConditionalGeneration(hf.T5Config(**sizes, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0))
        model.generation_config.eos_token_id = None
    elif kind == "softcap":
        model = hf.Gemma2ForCausalLM(hf.Gemma2Config(**SIZES, **IDS, num_hidden_layers=layers, head_dim=16, final_logit_softcapping=5.0))
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES, **IDS, num_hidden_layers=layers))
    for parameter in model.parameters():
        parameter.data.mul_(2)
    return model.eval()


@pytest.fixture(scope="module")
def shop() -> Catalogue:
    """Paths of scattered words, as item titles or added tokens would give them."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randperm(WORDS, generator=generator)[:60].clamp_min(2)
    return Catalogue([f"i{number}" for number in range(80)], words[torch.randint(0, 60, (80, 3), generator=generator)], before=(1,))


HISTORIES = [["i3"], ["i5", "i9", "i2"], ["i7", "i7"]]


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_lists_of_transformers(shop, kind):
    model = made(kind)
    assert CatalogueHead.of(model, own_copy(model), shop.tokens_used) is not None
    beams = transformers_beams(model, shop.inputs(HISTORIES), shop, 5)
    for drafter in (None, made(kind, 1, 5)):
        out = recommend(model, HISTORIES, drafter, k=5, catalogue=shop, method="plain" if drafter is None else "strict")
        for row, line in enumerate(beams):
            assert [tuple(path) for path in out.tokens[row].tolist()] == [path for path, _ in line]
            scores = {tuple(path): score for path, score in line}
            for item, score in zip(out.items[row], out.scores[row], strict=True):
                assert score == pytest.approx(scores[tuple(shop.paths[shop.row(item)].tolist())], abs=1e-5)


def test_no_table_of_the_whole_vocabulary(shop, monkeypatch):
    """What the model returns has one column a token of the catalogue and one for all others, and rows go through the head in parts."""
    model, seen = made("llama"), []
    whole = recommend(model, HISTORIES, k=4, catalogue=shop, method="plain")
    monkeypatch.setattr(catalogue_head, "_PART", 2 * WORDS)
    plain = catalogue_head.head_product
    monkeypatch.setattr(catalogue_head, "head_product", lambda x, weight: seen.append(len(x)) or plain(x, weight))
    out = recommend(model, HISTORIES, k=4, catalogue=shop, method="plain")
    assert max(seen) == 2
    assert sum(seen) == 3 + 2 * 3 * 4
    assert out.items == whole.items


def test_candidates(shop):
    model = made("llama")
    few = [["i1", "i2", "i3"]] * 3
    ranked = rank_candidates(model, HISTORIES, few, catalogue=shop)
    head = model.get_output_embeddings()
    for row, history in enumerate(HISTORIES):
        for item, score in zip(ranked.items[row], ranked.scores[row], strict=True):
            path = shop.paths[shop.row(item)].tolist()
            ids = torch.tensor([shop.tokens(history) + path])
            table = head(model.model(ids).last_hidden_state).log_softmax(-1)[0, -4:-1]
            assert score == pytest.approx(float(table[range(3), path].mean()), abs=1e-5)


def test_models_that_do_more_to_their_logits_keep_their_head(shop):
    """A soft cap is applied to every logit, which a sum of them does not survive."""
    model = made("softcap")
    assert CatalogueHead.of(model, own_copy(model), shop.tokens_used) is None
    beams = transformers_beams(model, shop.inputs(HISTORIES), shop, 5)
    out = recommend(model, HISTORIES, k=5, catalogue=shop, method="plain")
    assert [[tuple(path) for path in row] for row in out.tokens.tolist()] == [[path for path, _ in line] for line in beams]


def test_small_vocabularies_are_kept_whole(shop):
    model = made("llama")
    assert CatalogueHead.of(model, own_copy(model), torch.arange(6000)) is None
    small = hf.LlamaForCausalLM(hf.LlamaConfig(**{**SIZES, "vocab_size": 500}, **IDS, num_hidden_layers=1))
    assert CatalogueHead.of(small, own_copy(small), torch.arange(60)) is None
