"""Published layouts: state dicts made here under the published names give the distributions of the published formulas, written out by
hand."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, silu
from transformers import DynamicCache

from mmspec.drafters.checkpoints.load import is_drafter, load_drafter, save_drafter
from mmspec.drafters.checkpoints.published import Hints, export_speculators, read_published
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.guided import GuidedDrafter, head_of
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.shapes import Chain, most_likely
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt, run

V, H, INNER, HEADS, KV, EPS = 50, 32, 48, 4, 2, 1e-5
LAYER = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": H,
    "intermediate_size": INNER,
    "max_position_embeddings": 256,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV,
    "rms_norm_eps": EPS,
    "rope_scaling": None,
    "vocab_size": V,
}
IDS = torch.tensor([[3, 17, 8, 44, 5, 9, 21]])
KNOWN = torch.tensor([1, 3, 6, 8, 12, 19, 23, 31, 40, 49])


@pytest.fixture(scope="module")
def deep():
    """Seven layers: the fewest that the published choice of hidden states, 2, L // 2 and L - 3, needs."""
    return llama(7, seed=4)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tensors(shapes, seed=0):
    """Random ones; vectors (norms, biases) stay near 1."""
    return {name: 0.4 * noise(*shape, seed=seed + i) + (len(shape) == 1) for i, (name, shape) in enumerate(shapes.items())}


def layer_shapes(prefix, width=H, head_dim=H // HEADS, norms=("post_attention_layernorm",)):
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * head_dim, width),
        f"{prefix}self_attn.k_proj.weight": (KV * head_dim, width),
        f"{prefix}self_attn.v_proj.weight": (KV * head_dim, width),
        f"{prefix}self_attn.o_proj.weight": (H, HEADS * head_dim),
        f"{prefix}mlp.gate_proj.weight": (INNER, H),
        f"{prefix}mlp.up_proj.weight": (INNER, H),
        f"{prefix}mlp.down_proj.weight": (H, INNER),
        **{f"{prefix}{name}.weight": (H,) for name in norms},
    }


def eagle3_tensors(prefix="midlayer.", known=KNOWN, fused=3 * H, head_dim=H // HEADS, extra=(), **more):
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    shapes = {"fc.weight": (H, fused), "norm.weight": (H,), "lm_head.weight": (V if known is None else len(known), H)}
    found = tensors(shapes | layer_shapes(prefix, 2 * H, head_dim, norms) | dict(extra) | more)
    if known is not None:
        found |= {"d2t": known - torch.arange(len(known)), "t2d": torch.zeros(V, dtype=torch.bool).index_fill_(0, known, True)}
    return found


def eagle1_tensors(bias=True, names=("fc.", "layers.0.")):
    fc, layer = names
    return tensors({f"{fc}weight": (H, 2 * H), **({f"{fc}bias": (H,)} if bias else {}), **layer_shapes(layer)})


def write(folder, config, weights, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(weights, folder / name)
    else:
        torch.save(weights, folder / name)
    return folder


# --- the published formulas, by hand ---------------------------------------------------------------------------------------------------


def rms(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def attention(x, w, prefix, theta=10000.0, head_dim=H // HEADS, window=None):
    """Causal grouped-query attention with rotary positions 0, 1, ..."""
    size = x.shape[1]
    q, k, v = (linear(x, w[f"{prefix}self_attn.{n}_proj.weight"]).view(1, size, -1, head_dim).transpose(1, 2) for n in "qkv")
    angle = torch.arange(size)[:, None] * theta ** (-torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angle.cos(), angle.sin()

    def turn(y):
        a, b = y.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    k, v = (y.repeat_interleave(HEADS // KV, 1) for y in (turn(k), v))
    t = torch.arange(size)
    seen = (t <= t[:, None]) & (t[:, None] - t < (window or size))
    weights = (turn(q) @ k.transpose(-1, -2) / head_dim**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    return linear((weights @ v).transpose(1, 2).reshape(1, size, -1), w[f"{prefix}self_attn.o_proj.weight"])


def mlp(x, w, prefix):
    gate, up = (linear(x, w[f"{prefix}mlp.{n}_proj.weight"]) for n in ("gate", "up"))
    return linear(silu(gate) * up, w[f"{prefix}mlp.down_proj.weight"])


def eagle1_by_hand(w, value, state, names=("fc.", "layers.0."), theta=10000.0):
    fc, layer = names
    x = linear(torch.cat([value, state], -1), w[f"{fc}weight"], w.get(f"{fc}bias"))
    x = x + attention(x, w, layer, theta)
    return x + mlp(rms(x, w[f"{layer}post_attention_layernorm.weight"]), w, layer)


def eagle3_by_hand(w, value, state, prefix="midlayer.", before=False, **kwargs):
    normed = rms(state, w[f"{prefix}hidden_norm.weight"])
    x = torch.cat([rms(value, w[f"{prefix}input_layernorm.weight"]), normed], -1)
    x = (normed if before else state) + attention(x, w, prefix, **kwargs)
    return x + mlp(rms(x, w[f"{prefix}post_attention_layernorm.weight"]), w, prefix)


def over_all(own, w):
    if "d2t" not in w:
        return own
    out = own.new_full((*own.shape[:-1], V), -torch.inf)
    out[..., torch.arange(len(w["d2t"])) + w["d2t"]] = own
    return out


def of_net(net, target, draft_token=33):
    """Logits [T, V] of a loaded net over IDS, and after one draft token of its own making its state recurrent [V]."""
    with torch.no_grad():
        hidden = target(IDS, output_hidden_states=True).hidden_states
        embed = target.get_input_embeddings() if net.embed_tokens is None else net.embed_tokens
        features = torch.cat([hidden[i] for i in net.reads], -1)[:, :-1]
        size, cache = IDS.shape[1] - 1, DynamicCache()
        t = torch.arange(size + 1)
        near = (t <= t[:, None]) & (t[:, None] - t < (net.window or size + 1))
        out = net(net.take(features), embed(IDS[:, 1:]), t[None, :size], near[None, None, :size, :size], cache)
        more = net(out[:, -1:], embed(torch.tensor([[draft_token]])), t[None, size:], near[None, None, size:], cache)
        states = torch.cat([out, more], 1)
        return net.logits(states, head_of(target), V)[0]


def by_hand(step, features, embed, recur=lambda x: x, draft_token=33):
    """States [T + 1, H] by a formula `step(value, state)` over whole sequences: IDS, then one draft token."""
    value = embed(torch.cat([IDS[:, 1:], torch.tensor([[draft_token]])], 1))
    out = recur(step(value[:, :-1], features))
    return step(value, torch.cat([features, out[:, -1:]], 1))


@torch.no_grad()
def expected1(w, target, **kwargs):
    last = target(IDS, output_hidden_states=True).hidden_states[-1][:, :-1]
    return target.lm_head(by_hand(lambda v, s: eagle1_by_hand(w, v, s, **kwargs), last, target.get_input_embeddings()))[0]


@torch.no_grad()
def expected3(w, target, reads, *, recur=False, fuse=None, embed=None, **kwargs):
    hidden = target(IDS, output_hidden_states=True).hidden_states
    g = torch.cat([hidden[i] for i in reads], -1)[:, :-1]
    g = linear(g if fuse is None else fuse(g), w["fc.weight"])
    after = (lambda x: rms(x, w["norm.weight"])) if recur else (lambda x: x)
    states = by_hand(lambda v, s: eagle3_by_hand(w, v, s, **kwargs), g, embed or target.get_input_embeddings(), after)
    return over_all(linear(rms(states, w["norm.weight"]), w["lm_head.weight"]), w)[0]


def close(found, wanted):
    assert torch.isfinite(wanted).any()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def drafts(net, target):
    """It drafts in a generation, which stays exact."""
    out = run(target, GuidedDrafter(net, Chain(most_likely)), random_prompt(5, 3))
    assert out.sequences.tolist() == greedy(target, random_prompt(5, 3))
    assert out.stats.drafted > 0


# --- EAGLE-1 ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("bias", [True, False])
def test_eagle1(deep, tmp_path, file, bias):
    w = eagle1_tensors(bias)
    config = LAYER | {"rope_theta": 500000.0} | ({} if bias else {"bias": False})
    copy = {"embed_tokens.weight": deep.get_input_embeddings().weight.detach().half().float()}
    net = load_drafter(write(tmp_path / "d", config, w | copy, file), deep)
    assert isinstance(net, Eagle1)
    assert net.embed_tokens is None  # a copy of the target's
    close(of_net(net, deep), expected1(w, deep, theta=500000.0))
    drafts(net, deep)


def test_eagle1_in_vllms_wrapper_with_an_embedding_of_its_own(deep, tmp_path):
    w = eagle1_tensors(False) | {"embed_tokens.weight": noise(V, H)}
    net = load_drafter(write(tmp_path / "d", {"model_type": "eagle", "model": LAYER | {"bias": False}}, w))
    assert torch.equal(net.embed_tokens.weight, w["embed_tokens.weight"])


def test_eagle1_in_the_speculators_format(deep, tmp_path):
    names = ("fusion_fc.", "transformer.")
    w = eagle1_tensors(True, names)
    config = {
        "speculators_model_type": "eagle",
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "layernorms": False,
        "fusion_bias": True,
        "transformer_layer_config": LAYER,
    }
    folder = write(tmp_path / "d", config, w)
    close(of_net(load_drafter(folder, deep), deep), expected1(w, deep, names=names))
    with pytest.raises(ValueError, match=r"layernorms True in config.json is not supported: only False is"):
        load_drafter(write(folder, config | {"layernorms": True}, w))


# --- EAGLE-3 ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_eagle3(deep, tmp_path, file):
    w = eagle3_tensors()
    folder = write(tmp_path / "d", LAYER | {"draft_vocab_size": len(KNOWN)}, w, file)
    net = load_drafter(folder, deep)
    assert isinstance(net, Eagle3)
    assert net.reads == (2, 3, 4)  # 2, L // 2 and L - 3
    close(of_net(net, deep), expected3(w, deep, (2, 3, 4)))
    drafts(net, deep)
    with pytest.raises(ValueError, match=r"which hidden states were fused .* give target="):
        load_drafter(folder)
    assert load_drafter(folder, states=(1, 3, 5)).reads == (1, 3, 5)


def test_eagle3_with_the_whole_vocabulary_and_neither_map(deep, tmp_path):
    w = eagle3_tensors(known=None)
    net = load_drafter(write(tmp_path / "d", LAYER | {"draft_vocab_size": V}, w), deep)
    assert net.vocabulary is None
    close(of_net(net, deep), expected3(w, deep, (2, 3, 4)))


def test_eagle3_as_nvidia_and_nemo_publish_it(deep, tmp_path):
    w = eagle3_tensors("layers.0.", extra={"input_norm.weight": (3 * H,)})
    config = LAYER | {"draft_vocab_size": len(KNOWN), "eagle_config": {"norm_before_fc": True}}
    stored = {name if name.startswith("lm_head") else f"model.{name}": tensor for name, tensor in w.items()}
    net = load_drafter(write(tmp_path / "d", config, stored), deep)
    close(of_net(net, deep), expected3(w, deep, (2, 3, 4), fuse=lambda g: rms(g, w["input_norm.weight"]), prefix="layers.0."))


@pytest.mark.parametrize("absent", ["d2t", "t2d"])
def test_one_map_between_vocabularies_follows_from_the_other(deep, tmp_path, absent):
    w = eagle3_tensors()
    kept = {name: tensor for name, tensor in w.items() if name != absent}
    net = load_drafter(write(tmp_path / "d", LAYER | {"draft_vocab_size": len(KNOWN)}, kept), deep)
    close(of_net(net, deep), expected3(w, deep, (2, 3, 4)))


@pytest.mark.parametrize(
    ("where", "option", "reads"),
    [
        ("nested", None, (2, 4, 6)),  # outputs of layers 1, 3, 5
        ("nested", "inputs", (1, 3, 5)),
        ("flat", None, (1, 3, 5)),
        ("flat", "outputs", (2, 4, 6)),
        ("nested from 2", None, (2, 3, 5)),  # no layer's output but the first one's has been seen to come first
    ],
)
def test_layer_ids_are_inputs_or_outputs_by_convention(deep, tmp_path, where, option, reads):
    first = 2 if where == "nested from 2" else 1
    ids = {"eagle_aux_hidden_state_layer_ids": [5, first, 3]}  # engines join states in the order of the layers
    config = LAYER | {"draft_vocab_size": len(KNOWN)} | (ids if where == "flat" else {"eagle_config": ids})
    w = eagle3_tensors()
    net = load_drafter(write(tmp_path / "d", config, w), deep, layer_ids=option)
    assert net.reads == reads
    close(of_net(net, deep), expected3(w, deep, reads))
    with pytest.raises(ValueError, match="layer_ids is 'both': give 'inputs'"):
        load_drafter(tmp_path / "d", layer_ids="both")


def test_a_drafter_narrower_than_its_target(tmp_path):
    torch.manual_seed(0)
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = LlamaForCausalLM(
        LlamaConfig(vocab_size=V, hidden_size=64, intermediate_size=64, num_hidden_layers=7, num_attention_heads=4)
    ).eval()
    w = eagle3_tensors(fused=3 * 64, head_dim=16) | {"embed_tokens.weight": noise(V, H)}
    config = LAYER | {"draft_vocab_size": len(KNOWN), "target_hidden_size": 64, "head_dim": 16}
    net = load_drafter(write(tmp_path / "d", config, w), wide)
    close(of_net(net, wide), expected3(w, wide, (2, 3, 4), head_dim=16, embed=lambda ids: w["embed_tokens.weight"][ids]))
    drafts(net, wide)
    del w["embed_tokens.weight"]
    with pytest.raises(ValueError, match="64 wide, the drafter 32: it cannot share the embedding"):
        load_drafter(write(tmp_path / "d", config, w), wide)


def speculators(**changes):
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}]},
        "draft_vocab_size": len(KNOWN),
        "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
        "norm_before_residual": True,
        "target_hidden_size": None,
        "transformer_layer_config": LAYER,
        **changes,
    }


VARIANTS = {
    "plain": {},
    "norm_before_residual off": {"norm_before_residual": False},
    "norm_before_residual absent": {"norm_before_residual": None},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "window": {"transformer_layer_config": LAYER | {"layer_types": ["sliding_attention"], "sliding_window": 3}},
    "head_dim": {"transformer_layer_config": LAYER | {"head_dim": 16}},
    "rope_parameters": {"transformer_layer_config": LAYER | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_eagle3_in_the_speculators_format(deep, tmp_path, variant):
    changes = VARIANTS[variant]
    layer, extra, fuse = changes.get("transformer_layer_config", LAYER), {}, None
    head_dim = layer.get("head_dim", H // HEADS)
    if changes.get("norm_before_fc"):
        extra["input_norm.weight"] = (3 * H,)
    if changes.get("fc_norm"):
        extra |= {f"fc_norm.{i}.weight": (H,) for i in range(3)}
    w = eagle3_tensors("layers.0.", head_dim=head_dim, extra=extra)
    if changes.get("norm_before_fc"):
        fuse = lambda g: rms(g, w["input_norm.weight"])  # noqa: E731
    if changes.get("fc_norm"):
        fuse = lambda g: torch.cat([rms(x, w[f"fc_norm.{i}.weight"]) for i, x in enumerate(g.split(H, -1))], -1)  # noqa: E731
    net = load_drafter(write(tmp_path / "d", speculators(**changes), w), deep)
    options = {
        "prefix": "layers.0.",
        "before": bool(changes.get("norm_before_residual", True)),
        "recur": bool(changes.get("norm_output")),
        "window": layer.get("sliding_window"),
        "head_dim": head_dim,
        "theta": layer.get("rope_parameters", {}).get("rope_theta", 10000.0),
    }
    close(of_net(net, deep), expected3(w, deep, (1, 3, 5), fuse=fuse, **options))
    drafts(net, deep)


def test_sizes_of_a_default_llama_may_be_left_out():
    """The package writes what differs from transformers' defaults only: 4096 wide, 32 heads, 32,000 values."""
    with torch.device("meta"):
        weights = {"fc.weight": torch.empty(4096, 3 * 4096), "layers.0.hidden_norm.weight": torch.empty(4096)}
    config = speculators(transformer_layer_config={"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 8})
    options = read_published(config, weights, Hints(), Path("d")).options
    found = {name: options["sizes"][name] for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")}
    assert found == {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
    assert (options["size"], options["target_hidden"]) == (32000, 4096)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"speculators_model_type": "mlp"}, "'mlp' in config.json is not supported; valid: eagle, eagle3, peagle, dflash, dflash2, dspark"),
        ({"transformer_layer_config": None}, "no mapping called transformer_layer_config"),
        (
            {"transformer_layer_config": LAYER | {"model_type": "qwen3"}},
            "model_type 'qwen3' in config.json is not supported: only 'llama' is",
        ),
        ({"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}, "num_hidden_layers 2 in config.json is not supported: only 1 is"),
        ({"transformer_layer_config": LAYER | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}}, "rope_type 'dynamic'"),
        ({"transformer_layer_config": LAYER | {"hidden_size": "wide"}}, "hidden_size is 'wide' in config.json"),
        ({"transformer_layer_config": LAYER | {"num_attention_heads": 5}}, "not a multiple of the number of attention heads"),
        ({"transformer_layer_config": LAYER | {"layer_types": ["chunked_attention"]}}, "layer_types"),
        ({"transformer_layer_config": LAYER | {"hidden_act": "sulu"}}, "sulu"),
        ({"transformer_layer_config": LAYER | {"vocab_size": 60}}, r"tensor t2d has shape \(50,\), but \(60,\) is needed"),
        ({"draft_vocab_size": 11}, r"tensor d2t has shape \(10,\), but \(11,\) is needed"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3]},
            r"tensor fc.weight has shape \(32, 96\), but \(32, 64\) is needed for hidden states",
        ),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}, "hidden state 9 does not exist: the model has 7 layers"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]},
            "what leaves layer 7, the last, before the final norm: that state is not available",
        ),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state False in config.json is not supported: only True is"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, "config.json and tensors make no speculators drafter"),
        ({"norm_before_fc": True}, r"tensor input_norm.weight of shape \(96,\) is missing"),
    ],
)
def test_what_is_not_supported_is_named(deep, tmp_path, changes, said):
    folder = write(tmp_path / "d", speculators(**changes), eagle3_tensors("layers.0."))
    with pytest.raises(ValueError, match=said) as error:
        load_drafter(folder, deep)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_a_vocabulary_map_of_ids_instead_of_offsets_is_refused(deep, tmp_path):
    folder, config = tmp_path / "d", LAYER | {"draft_vocab_size": len(KNOWN)}
    with pytest.raises(ValueError, match="tensor d2t leads to target ids 1 to 58, but there are 50: it holds offsets, not ids"):
        load_drafter(write(folder, config, eagle3_tensors() | {"d2t": KNOWN}), deep)
    other = torch.zeros(V, dtype=torch.bool).index_fill_(0, KNOWN + (KNOWN == 40), True)
    with pytest.raises(ValueError, match="tensors d2t and t2d disagree"):
        load_drafter(write(folder, config, eagle3_tensors() | {"t2d": other}), deep)
    whole = eagle3_tensors(known=None) | {"d2t": torch.arange(V), "t2d": torch.ones(V, dtype=torch.bool)}
    with pytest.raises(ValueError, match="tensor d2t moves ids"):
        load_drafter(write(folder, LAYER | {"draft_vocab_size": V}, whole), deep)


def test_a_drafter_for_another_target_is_refused(big, deep, tmp_path):
    save_drafter(Medusa(16, 2), tmp_path / "narrow")
    with pytest.raises(ValueError, match="reads hidden states 16 wide, but the target's are 32"):
        load_drafter(tmp_path / "narrow", big)
    save_drafter(Medusa(32, 2, own_heads=40), tmp_path / "short")
    with pytest.raises(ValueError, match="is for a target of 40 values, but this one has 50"):
        load_drafter(tmp_path / "short", big)


def test_a_drafter_takes_its_targets_dtype(tmp_path):
    target = llama(7, seed=4).to(torch.float64)
    net = load_drafter(write(tmp_path / "d", LAYER | {"draft_vocab_size": len(KNOWN)}, eagle3_tensors()), target)
    assert {tensor.dtype for tensor in net.parameters()} == {torch.float64}
    assert net.d2t.dtype == torch.long


# --- Medusa ----------------------------------------------------------------------------------------------------------------------------


def medusa_tensors(heads=3, layers=2, outputs=V, prefix=""):
    shapes = {}
    for head in range(heads):
        for j in range(layers):
            shapes |= {f"{prefix}{head}.{j}.linear.weight": (H, H), f"{prefix}{head}.{j}.linear.bias": (H,)}
        if outputs:
            shapes[f"{prefix}{head}.{layers}.weight"] = (outputs, H)
    return tensors(shapes)


@torch.no_grad()
def medusa_by_hand(w, hidden, head, output, layers=2, linear_of="{head}.{j}.linear"):
    for j in range(layers):
        name = linear_of.format(head=head, j=j)
        hidden = hidden + silu(linear(hidden, w[f"{name}.weight"], w.get(f"{name}.bias")))
    return linear(hidden, output)


def medusa_heads(net, target):
    """What every head says of random states, and the states."""
    hidden = noise(4, H)
    with torch.no_grad():
        return hidden, [net.logits(net.read(net.start(hidden, hidden), level), level, head_of(target)) for level in range(net.most)]


MEDUSA = {"base_model_name_or_path": "some/model", "medusa_num_heads": 2, "medusa_num_layers": 2}


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors", "model.safetensors"])
@pytest.mark.parametrize("config", [MEDUSA, {}])
def test_medusa(big, tmp_path, file, config):
    w = medusa_tensors()
    net = load_drafter(write(tmp_path / "d", config, w, file))
    assert net.most == 3  # one more than the config declares: known from published files
    hidden, found = medusa_heads(net, big)
    for head, logits in enumerate(found):
        close(logits, medusa_by_hand(w, hidden, head, w[f"{head}.2.weight"]))
    drafts(net, big)


def test_medusa_inside_a_whole_model_without_heads_of_its_own(big, tmp_path):
    w = medusa_tensors(2, 2, 0, "medusa_head.")
    net = load_drafter(write(tmp_path / "d", MEDUSA, w | {"model.norm.weight": noise(H)}))
    hidden, found = medusa_heads(net, big)
    for head, logits in enumerate(found):
        close(logits, medusa_by_hand(w, hidden, head, big.lm_head.weight, linear_of="medusa_head.{head}.{j}.linear"))


def test_medusas_repeated_block_may_be_stored_once(big, tmp_path):
    w = {name: tensor for name, tensor in medusa_tensors().items() if ".1.linear" not in name}
    hidden, found = medusa_heads(load_drafter(write(tmp_path / "d", MEDUSA, w)), big)
    again = w | {f"0.1.linear.{part}": w[f"0.0.linear.{part}"] for part in ("weight", "bias")}
    close(found[0], medusa_by_hand(again, hidden, 0, w["0.2.weight"]))


def test_a_missing_medusa_head_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"tensor 3.0.linear.weight of shape \(32, 32\) is missing"):
        load_drafter(write(tmp_path / "d", MEDUSA | {"medusa_num_heads": 4}, medusa_tensors()))


VLLM = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": H, "vocab_size": V, "num_heads": 2, "num_hidden_layers": 1}


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
def test_medusa_under_vllms_names(big, tmp_path, prefix, bias, truncated):
    shapes = {f"{prefix}blocks.{i}.layers.0.weight": (H, H) for i in range(2)}
    shapes |= {f"{prefix}blocks.{i}.layers.0.bias": (H,) for i in range(2) if bias}
    w = tensors(shapes | {f"{prefix}lm_heads.{i}.weight": (V, H) for i in range(2)})
    if truncated:
        w["token_map"] = KNOWN.flip(0)  # ids, in any order, not offsets
    config = VLLM | {"medusa_fc_bias": bias, "truncated_vocab_size": len(KNOWN) if truncated else V}
    net = load_drafter(write(tmp_path / "d", config, w), big)
    hidden, found = medusa_heads(net, big)
    for i, logits in enumerate(found):
        wanted = medusa_by_hand(w, hidden, i, w[f"{prefix}lm_heads.{i}.weight"], 1, prefix + "blocks.{head}.layers.{j}")
        if truncated:
            wanted[:, [v for v in range(V) if v not in KNOWN]] = -torch.inf
        close(logits, wanted)
    drafts(net, big)
    if truncated:
        with pytest.raises(
            ValueError, match=r"tensor token_map holds ids 1 to 50: 10 different ones of 50 are needed|make no medusa drafter"
        ):
            load_drafter(write(tmp_path / "d", config, w | {"token_map": KNOWN + 1}))


@pytest.mark.parametrize("stored", [{}, {"lm_head.weight": (V, H)}, {"lm_heads.0.weight": (V, H)}])
def test_medusa_with_the_targets_head_under_vllms_names(big, tmp_path, stored):
    w = tensors({f"blocks.{i}.layers.0.weight": (H, H) for i in range(2)} | stored)
    net = load_drafter(write(tmp_path / "d", VLLM | {"original_lm_head": True, "truncated_vocab_size": V}, w))
    hidden, found = medusa_heads(net, big)
    close(found[1], medusa_by_hand(w, hidden, 1, big.lm_head.weight, 1, "blocks.{head}.layers.{j}"))


def test_hydra_is_refused_by_name(tmp_path):
    config = {"hydra_head_arch": "prefix-mlp", "hydra_num_heads": 4, "hydra_num_layers": 4}
    with pytest.raises(ValueError, match="hydra_head_arch 'prefix-mlp' is not supported"):
        load_drafter(write(tmp_path / "d", config, {"hydra_mlp.0.1.linear.weight": noise(H, H)}, "hydra_lm_head.pt"))


# --- which layout --------------------------------------------------------------------------------------------------------------------


def test_models_are_no_drafters(big, tmp_path):
    big.save_pretrained(tmp_path / "model")
    assert not is_drafter(tmp_path / "model")
    llama(1, seed=1).save_pretrained(tmp_path / "one-layer")
    assert not is_drafter(tmp_path / "one-layer")
    assert not is_drafter(tmp_path / "nothing")
    write(tmp_path / "vlm", {"model_type": "eagle_2_5_vl", "architectures": ["Eagle2_5_VLForConditionalGeneration"]}, {"a": noise(2)})
    assert not is_drafter(tmp_path / "vlm")
    with pytest.raises(ValueError, match="holds no drafter of a known layout"):
        load_drafter(tmp_path / "model")


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (LAYER, eagle1_tensors()),
        (LAYER, eagle3_tensors()),
        (LAYER | {"architectures": ["LlamaForCausalLMEagle3"]}, {}),
        (speculators(), {}),
        (MEDUSA, {}),
        ({}, medusa_tensors()),
    ],
)
def test_drafters_are_told_from_models(tmp_path, config, weights):
    assert is_drafter(write(tmp_path / "d", config, weights))


# --- writing the speculators format ----------------------------------------------------------------------------------------------------

SIZES = {key: LAYER[key] for key in LAYER if key not in ("architectures", "model_type", "num_hidden_layers", "rope_scaling")}


def lively(net):
    torch.manual_seed(3)
    for parameter in net.parameters():
        parameter.data.mul_(2).add_(0.2 * torch.randn_like(parameter))
    if isinstance(net, Eagle3) and net.vocabulary is not None:
        net.know(KNOWN)
    return net.eval()


EXPORTED = {
    "eagle3": lambda: Eagle3((1, 3, 5), SIZES, V),
    "eagle3 known in part": lambda: Eagle3((0, 2, 6), SIZES, V, len(KNOWN), norm_before_residual=True),
    "eagle3 in another order": lambda: Eagle3((5, 1, -5), SIZES, V, norm_before_fc=True, fc_norm=True, norm_output=True),
    "eagle3 with its embedding": lambda: Eagle3((1, 3, 5), SIZES | {"head_dim": 16, "sliding_window": 3}, V, own_embedding=True),
    "eagle3 with scaled rope": lambda: Eagle3(
        (1, 3, 5), SIZES | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}}, V
    ),
    "eagle1": lambda: Eagle1(SIZES),
    "eagle1 without a bias": lambda: Eagle1(SIZES, bias=False),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_export_and_load_give_the_same_distributions(deep, tmp_path, name):
    net = lively(EXPORTED[name]())
    export_speculators(net, tmp_path / "out", deep, tokens=4, verifier_name="some/target")
    again = load_drafter(tmp_path / "out", deep)
    close(of_net(again, deep), of_net(net, deep))
    export_speculators(again, tmp_path / "out", deep, verifier_name="some/target")  # a drafter may be replaced
    close(of_net(load_drafter(tmp_path / "out", deep), deep), of_net(net, deep))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def vllm_reads(config):
    """The keys vLLM's translation takes, as it takes them: a missing one is a KeyError. Returns the drafter's config."""
    method = config["speculators_config"]["proposal_methods"][0]
    assert method["speculative_tokens"] == 4
    assert config["speculators_config"]["verifier"]["name_or_path"] == "some/target"
    assert config["speculators_model_type"] == "eagle3"
    assert "model_type" not in config
    layer = dict(config["transformer_layer_config"])
    layer["draft_vocab_size"] = config["draft_vocab_size"]
    if config["target_hidden_size"] is not None:
        layer["target_hidden_size"] = config["target_hidden_size"]
    for key in ("norm_before_residual", "norm_before_fc", "eagle_aux_hidden_state_layer_ids"):
        layer[key] = config[key]
    return layer


@pytest.mark.parametrize("name", ["eagle3", "eagle3 known in part"])
def test_vllm_finds_every_key_and_every_tensor(deep, tmp_path, name):
    from safetensors.torch import load_file
    from transformers import LlamaConfig

    net = lively(EXPORTED[name]())
    export_speculators(net, tmp_path / "out", deep, tokens=4, verifier_name="some/target", dtype=torch.bfloat16)
    layer = vllm_reads(json.loads((tmp_path / "out" / "config.json").read_text()))
    llama_config = LlamaConfig(**layer)
    assert llama_config.rope_parameters == net.llama.rope_parameters
    assert layer["eagle_aux_hidden_state_layer_ids"] == sorted(net.reads)
    known = layer["draft_vocab_size"] < layer["vocab_size"]
    wanted = set(eagle3_tensors("layers.0.", KNOWN if known else None))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == wanted  # one more, and vLLM stops at its name
    assert found["fc.weight"].dtype == torch.bfloat16
    assert found["fc.weight"].shape == (H, 3 * H)  # three states, whatever the config says
    if known:
        assert (torch.arange(len(KNOWN)) + found["d2t"]).tolist() == KNOWN.tolist()
        assert found["t2d"].dtype == torch.bool


def test_an_embedding_that_scales_is_written_out(tmp_path):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    sizes = {key: SIZES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")}
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(num_hidden_layers=7, head_dim=8, **sizes)).eval()
    net = lively(EXPORTED["eagle3"]())
    export_speculators(net, tmp_path / "out", gemma, verifier_name="some/target")
    again = load_drafter(tmp_path / "out", gemma)
    assert again.embed_tokens is not None
    close(of_net(again, gemma), of_net(net, gemma))


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (
            lambda: Medusa(H, 3),
            {},
            "the speculators format has no medusa drafters: export eagle3, p-eagle, dflash, dflash2, dspark or eagle1",
        ),
        (lambda: Eagle3((1, 3), SIZES, V), {}, r"reads hidden states \(1, 3\) of 7 layers: vLLM hands out 3 different ones, 0 to 6"),
        (lambda: Eagle3((1, 3, -1), SIZES, V), {}, r"reads hidden states \(1, 3, 7\) of 7 layers"),
        (lambda: Eagle3((1, 3, 3), SIZES, V), {}, "3 different ones"),
        (lambda: Eagle3((1, 3, 5), SIZES, V), {"tokens": 0}, "tokens is 0"),
        (lambda: Eagle3((1, 3, 5), SIZES, V), {"verifier_name": None}, "the target has no name: give verifier_name="),
    ],
)
def test_what_cannot_be_exported_is_said_and_leaves_nothing(deep, tmp_path, make, options, said):
    with pytest.raises(ValueError, match=said):
        export_speculators(make(), tmp_path / "out", deep, **({"verifier_name": "some/target"} | options))
    assert not list(tmp_path.iterdir())


def test_an_export_does_not_replace_a_model(big, deep, tmp_path):
    big.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="exists and is no drafter: it would be replaced; give a new folder"):
        export_speculators(Eagle3((1, 3, 5), SIZES, V), tmp_path / "model", deep, verifier_name="some/target")
    assert (tmp_path / "model" / "model.safetensors").exists()
