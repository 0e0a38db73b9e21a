"""Our own LlamaGen: published checkpoints load by their names, and the forward is the published one, re-stated here step by step."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.vision.families.llamagen import LlamaGenPictures, T5Captions
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import load_published
from tests.vision import plain, small_models
from tests.vision.small_models import CASES
from tests.vision.test_families import SCALE, run

KINDS = ("class", "caption")


# --- the published maths ----------------------------------------------------------------------------------------------


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x: Tensor, cell: int, grid: int, theta: float = 10000.0) -> Tensor:
    """One head's query or key [W] at a cell, or at the prefix (-1), by complex numbers: row in the first half, column in the second."""
    if cell < 0:
        return torch.zeros_like(x)
    half = len(x) // 2
    rates = [theta ** (-2 * i / half) for i in range(half // 2)]
    angles = torch.tensor([(cell // grid) * rate for rate in rates] + [(cell % grid) * rate for rate in rates])
    pairs = torch.view_as_complex(x.reshape(-1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten()


def attention(weights: dict, layer: str, x: Tensor, cells: list[int], seen: Tensor, config: LlamaGenConfig) -> Tensor:
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    width = config.hidden_size // heads
    qkv = x @ weights[f"{layer}.attention.wqkv.weight"].T
    q, k, v = qkv[:, : heads * width], qkv[:, heads * width : (heads + groups) * width], qkv[:, (heads + groups) * width :]
    out = torch.zeros(len(x), heads * width)
    for head in range(heads):
        group = head // (heads // groups)
        own, other = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
        queries = torch.stack([turned(row[own], cell, config.grid) for row, cell in zip(q, cells, strict=True)])
        keys = torch.stack([turned(row[other], cell, config.grid) for row, cell in zip(k, cells, strict=True)])
        scores = (queries @ keys.T / math.sqrt(width)).masked_fill(~seen, -torch.inf)
        out[:, own] = scores.softmax(-1) @ v[:, other]
    return out @ weights[f"{layer}.attention.wo.weight"].T


def published(model, prefix: Tensor, real: Tensor, codes: Tensor) -> Tensor:
    """Logits [T + 1, V] of one row: prefix [P, D], of which `real` [P] count, and codes [T]. Positions that do not count see themselves."""
    weights, config = model.state_dict(), model.config
    x = torch.cat([prefix, weights["tok_embeddings.weight"][codes]])
    cells = [-1] * len(prefix) + list(range(len(codes)))
    counts = torch.cat([real, torch.ones(len(codes), dtype=torch.bool)])
    seen = (torch.ones(len(x), len(x)).tril().bool() & counts) | torch.eye(len(x), dtype=torch.bool)
    for layer in (f"layers.{number}" for number in range(config.num_hidden_layers)):
        x = x + attention(weights, layer, norm(x, weights[f"{layer}.attention_norm.weight"]), cells, seen, config)
        h = norm(x, weights[f"{layer}.ffn_norm.weight"])
        gate, up = (h @ weights[f"{layer}.feed_forward.{name}.weight"].T for name in ("w1", "w3"))
        x = x + (gate / (1 + (-gate).exp()) * up) @ weights[f"{layer}.feed_forward.w2.weight"].T
    return (norm(x, weights["norm.weight"]) @ weights["output.weight"].T)[len(prefix) - 1 :]


def prefixes(model, kind: str, prompts, scale: float | None) -> tuple[Tensor, Tensor]:
    """Prefixes [R, P, D] and which of their positions count [R, P]; unconditional ones behind."""
    weights = model.state_dict()
    if kind == "class":
        rows = prompts + ([7] * len(prompts) if scale is not None else [])
        return weights["cls_embedding.embedding_table.weight"][rows][:, None], torch.ones(len(rows), 1, dtype=torch.bool)
    features, real = prompts["features"], prompts["mask"]
    if scale is not None:
        features = torch.cat([features, weights["cls_embedding.uncond_embedding"].expand_as(features)])
        real = torch.cat([real, real])
    hidden = F.gelu(features @ weights["cls_embedding.cap_proj.fc1.weight"].T, approximate="tanh")
    return hidden @ weights["cls_embedding.cap_proj.fc2.weight"].T, real


def by_hand(adapter, kind: str, prompts, rows: int, scale: float | None, seeds: list[int] | None) -> Tensor:
    prefix, real = prefixes(adapter.model, kind, prompts, scale)

    def score(row: int, codes: Tensor) -> Tensor:
        cond = published(adapter.model, prefix[row], real[row], codes)[-1]
        if scale is None:
            return cond
        uncond = published(adapter.model, prefix[rows + row], real[rows + row], codes)[-1]
        return uncond + scale * (cond - uncond)

    return plain.step_by_step(score, rows, [-1] * 16, plain.Bend(seeds, torch.arange(50)))


# --- the forward ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_forward_is_the_published_one(kind):
    model = small_models.llamagen(kind)
    prompts = CASES[f"llamagen-{kind}"].prompts(3)
    prefix, real = prefixes(model, kind, prompts, SCALE)
    codes = torch.randint(0, 50, (len(prefix), 16), generator=torch.Generator().manual_seed(0))
    found = model.write(prefix, codes, real)
    wanted = torch.stack([published(model, prefix[row], real[row], codes[row, :-1]) for row in range(len(prefix))])
    assert (found - wanted).abs().max() < 1e-4
    assert found.shape == (len(prefix), 16, 50)
    if kind == "class":
        assert torch.equal(found, model.write(prefix, codes))


@torch.no_grad()
def test_attention_by_content_leaves_the_prefix_unrotated(monkeypatch):
    """The forward with a prefix that attention can tell apart, and decoding in windows, ragged, with guidance, code for code."""
    adapter, prompts = CASES["llamagen-caption"].make(), CASES["llamagen-caption"].prompts(3)
    prefix, real = prefixes(adapter.model, "caption", prompts, SCALE)
    codes = torch.randint(0, 50, (len(prefix), 16), generator=torch.Generator().manual_seed(0))
    uniform = adapter.model.write(prefix, codes, real)
    adapter.model.config.prefix_attention = "content"
    found = adapter.model.write(prefix, codes, real)
    assert (found - uniform).abs().max() > 1e-2
    rotated = turned
    monkeypatch.setattr("tests.vision.test_llamagen.turned", lambda x, cell, grid: x if cell < 0 else rotated(x, cell, grid))
    wanted = torch.stack([published(adapter.model, prefix[row], real[row], codes[row, :-1]) for row in range(len(prefix))])
    assert (found - wanted).abs().max() < 1e-4
    for window in (1, 5):
        assert torch.equal(run(adapter, prompts, 3, window, SCALE, [4, 5, 6]), by_hand(adapter, "caption", prompts, 3, SCALE, [4, 5, 6]))


def test_prefix_attention_has_two_values():
    with pytest.raises(ValueError, match="give uniform or content"):
        LlamaGenConfig(prefix_attention="none")


@torch.no_grad()
def test_planted_faults_in_the_forward_show():
    model = small_models.llamagen("caption")
    prefix, real = prefixes(model, "caption", small_models.features(2), None)
    codes = torch.randint(0, 50, (1, 15), generator=torch.Generator().manual_seed(0))[0]
    right = published(model, prefix[0], real[0], codes)
    assert (right - published(model, prefix[0], torch.ones(5, dtype=torch.bool), codes)).abs().max() > 1e-2  # padding counts
    found = model.write(prefix[:1], torch.cat([codes, codes[:1]])[None], real[:1])[0]
    assert (right - found).abs().max() < 1e-4
    model.config.grid = 5  # rows of another length
    assert (right - model.write(prefix[:1], torch.cat([codes, codes[:1]])[None], real[:1])[0]).abs().max() > 1e-2


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_give_the_published_picture(kind, guided):
    adapter, case = CASES[f"llamagen-{kind}"].make(), CASES[f"llamagen-{kind}"]
    scale = SCALE if guided else None
    wanted = by_hand(adapter, kind, case.prompts(3), 3, scale, None)
    for window in (1, 5, 16):
        assert run(adapter, case.prompts(3), 3, window, scale).tolist() == wanted.tolist()
    alone = run(adapter, case.prompts(1), 1, 5, scale)
    assert alone.tolist() == by_hand(adapter, kind, case.prompts(1), 1, scale, None).tolist()
    seeds = [5, 6, 7]
    sampled = by_hand(adapter, kind, case.prompts(3), 3, scale, seeds)
    assert sampled.tolist() != wanted.tolist()
    assert run(adapter, case.prompts(3), 3, 7, scale, seeds).tolist() == sampled.tolist()


def test_an_unconditional_row_that_sees_the_class_is_caught():
    adapter = CASES["llamagen-class"].make()
    wanted = by_hand(adapter, "class", [3, 0, 6], 3, SCALE, None)
    adapter.model.cls_embedding.embedding_table.weight.data[7] = adapter.model.cls_embedding.embedding_table.weight.data[3]
    assert run(adapter, [3, 0, 6], 3, 5, SCALE).tolist() != wanted.tolist()


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("under", ["model", "module", "state_dict", None])
@pytest.mark.parametrize("kind", KINDS)
def test_published_checkpoints_load(tmp_path, kind, under):
    model = small_models.llamagen(kind)
    path, weights = tmp_path / "c2i.pt", model.state_dict()
    torch.save(weights if under is None else {under: weights, "steps": 300}, path)
    assert {"tok_embeddings.weight", "layers.1.attention.wqkv.weight", "layers.0.feed_forward.w2.weight", "output.weight"} < set(weights)
    loaded = load_published(path, model.config)
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
    assert not loaded.training


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("layers.0.attention.wqkv.weight"), r"tensor layers\.0\.attention\.wqkv\.weight is missing"),
        (lambda w: w.update({"output.weight": torch.zeros(51, 32)}), r"tensor output\.weight is \(51, 32\) in the file and \(50, 32\)"),
        (
            lambda w: w.update({"layers.2.ffn_norm.weight": torch.zeros(32)}),
            r"tensor layers\.2\.ffn_norm\.weight is \(32,\) .* and missing",
        ),
    ],
)
def test_odd_checkpoints_are_refused_by_the_tensors_name(tmp_path, change, said):
    model = small_models.llamagen()
    weights = dict(model.state_dict())
    change(weights)
    torch.save({"model": weights}, tmp_path / "c2i.pt")
    with pytest.raises(ValueError, match=said) as error:
        load_published(tmp_path / "c2i.pt", model.config)
    assert "\n" not in str(error.value)


def test_own_checkpoints_come_back(tmp_path):
    model = small_models.llamagen("caption")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_classes_by_name_and_by_number():
    adapter = LlamaGenPictures(small_models.llamagen(), labels=["shirt", "Shoe", "bag", "coat", "hat", "sock", "belt"])
    assert torch.equal(adapter.encode(["shoe", 2, "4"], False).embeds, adapter.encode([1, 2, 4], False).embeds)
    with pytest.raises(ValueError, match="unknown class 'boat': give a number from 0 to 6, or one of: shirt, Shoe"):
        adapter.encode(["boat"], False)
    with pytest.raises(ValueError, match="unknown class 7"):
        adapter.encode([7], False)


def test_captions_by_features_or_by_an_encoder():
    features = small_models.features(2)
    adapter = LlamaGenPictures(small_models.llamagen("caption"), captions=lambda texts: (features["features"], features["mask"]))
    found, wanted = adapter.encode(["a red shoe", "a hat"], True), adapter.encode(features, True)
    assert torch.equal(found.embeds, wanted.embeds)
    assert found.lengths.tolist() == [3, 5, 3, 5]
    assert not found.embeds.requires_grad
    with pytest.raises(ValueError, match="no text encoder"):
        LlamaGenPictures(small_models.llamagen("caption")).encode(["a hat"], False)
    with pytest.raises(ValueError, match="one size only"):
        adapter.resized(512)


def test_captions_padded_on_either_side_are_one():
    """The engine packs prompts: where a text encoder pads does not matter."""
    adapter, features = LlamaGenPictures(small_models.llamagen("caption")), small_models.features(3)
    packed = features["mask"].long().argsort(dim=1, descending=True, stable=True)
    right = {
        "features": features["features"].gather(1, packed[..., None].expand_as(features["features"])),
        "mask": features["mask"].gather(1, packed),
    }
    assert torch.equal(run(adapter, features, 3, 5), run(adapter, right, 3, 5))


def test_a_t5_encoder_gives_the_features():
    from transformers import BatchEncoding, T5Config, T5EncoderModel

    torch.manual_seed(0)
    encoder = T5EncoderModel(T5Config(vocab_size=30, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2)).eval()

    def tokenizer(texts, padding, truncation, max_length, return_tensors):
        assert (padding, truncation, return_tensors) == ("max_length", True, "pt")
        mask = torch.arange(max_length) < torch.tensor([[len(text.split())] for text in texts])
        return BatchEncoding({"input_ids": mask * 3, "attention_mask": mask.long()})

    adapter = LlamaGenPictures(small_models.llamagen("caption"), captions=T5Captions(encoder, tokenizer, length=5))
    prompt = adapter.encode(["a red shoe", "hat"], True)
    assert prompt.lengths.tolist() == [3, 1, 3, 1]
    assert run(adapter, ["a red shoe", "hat"], 2, 5, SCALE).shape == (2, 16)
