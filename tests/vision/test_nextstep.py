"""NextStep-1: checkpoints in the published layout load, and tokens are those of a direct loop by the paper's formulas."""

import json
import math
from typing import Any

import diffusers
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2Model

import mmspec
from mmspec.core.noise import Noise
from mmspec.vision import Sampling
from mmspec.vision.checkpoints.nextstep import LatentDecoder, load_nextstep
from mmspec.vision.continuous.flow_schedule import FlowSchedule
from mmspec.vision.continuous.nextstep import NextStep, nextstep_config, place_embeddings
from mmspec.vision.continuous.nextstep_pictures import NextStepPictures
from tests.vision import small_checkpoints
from tests.vision.small_nextstep import FIELDS, GRID, SIZE, STEPS, WIDTH, network, pictures, words

SEED = 11
TEXTS = ["a red shoe", "a boat on the green sea", "red"]


def near(model: NextStep, amount: float) -> NextStep:
    torch.manual_seed(1)
    found = NextStep(model.config).eval()
    found.load_state_dict({name: each + amount * torch.randn_like(each) for name, each in model.state_dict().items()})
    return found


def generate(model: NextStepPictures, texts: list[str], **options: Any) -> Any:
    return mmspec.vision.generate(model, texts, seed=SEED, **options)


# --- the loop by the formulas -------------------------------------------------------------------------------------------


def velocity(weights: dict[str, Tensor], x: Tensor, t: float, c: Tensor) -> Tensor:
    """The head by the checkpoint's names: an MLP whose norms are shifted, scaled and gated by time and conditioning."""

    def linear(name: str, value: Tensor) -> Tensor:
        return F.linear(value, weights[f"image_head.net.{name}.weight"], weights[f"image_head.net.{name}.bias"])

    rates = torch.exp(-math.log(10000) * torch.arange(128) / 128)
    time = torch.cat([torch.cos(t * rates), torch.sin(t * rates)])
    y = linear("time_embed.mlp.2", F.silu(linear("time_embed.mlp.0", time))) + linear("cond_embed", c)
    x = linear("input_proj", x)
    for block in range(2):
        shift, scale, gate = linear(f"res_blocks.{block}.adaLN_modulation.1", F.silu(y)).chunk(3)
        own = (weights[f"image_head.net.res_blocks.{block}.in_ln.{part}"] for part in ("weight", "bias"))
        h = F.layer_norm(x, (24,), *own, eps=1e-6) * (1 + scale) + shift
        x = x + gate * linear(f"res_blocks.{block}.mlp.2", F.silu(linear(f"res_blocks.{block}.mlp.0", h)))
    shift, scale = linear("final_layer.adaLN_modulation.1", F.silu(y)).chunk(2)
    return linear("final_layer.linear", F.layer_norm(x, (24,), eps=1e-6) * (1 + scale) + shift)


def direct(model: NextStep, ids: list[list[int]], noise: Tensor, guidance: float | None, shift: float, normalised: bool) -> Tensor:
    """One picture: every token by a whole forward of the backbone, and the SDE of the flow. `ids`: the prompt, and what it is led from."""
    weights, tokens, config = model.state_dict(), torch.zeros(0, WIDTH), model.config
    side = getattr(config, "base_image_grid_size", 0)
    place = place_embeddings(32, side)[: GRID[0], : GRID[1]].reshape(-1, 32) if config.use_gen_pos_embed else torch.zeros(6, 32)
    even = torch.linspace(0, 0.96, STEPS)
    times = even / (shift - (shift - 1) * even)
    for cell in range(GRID[0] * GRID[1]):
        conditions = []
        for prompt in ids if guidance is not None else ids[:1]:
            fed = F.linear(tokens, weights["image_in_projector.weight"], weights["image_in_projector.bias"])
            embeds = torch.cat([weights["embed_tokens.weight"][prompt], fed])[None]
            state = Qwen2Model.forward(model, inputs_embeds=embeds, use_cache=False).last_hidden_state[0, -1] + place[cell]
            conditions.append(F.linear(state, weights["image_out_projector.weight"], weights["image_out_projector.bias"]))

        def flow(x: Tensor, t: Tensor, conditions: list[Tensor] = conditions) -> Tensor:
            found = [velocity(weights, x, float(t), c) for c in conditions]
            return found[0] if guidance is None else found[1] + guidance * (found[0] - found[1])

        x = noise[cell, 0]
        for step in range(STEPS - 1):
            t, dt = times[step], times[step + 1] - times[step]
            v = flow(x, t)
            score = (t * v - x) / ((1 - t) ** 2 + t * (1 - t))
            x = x + (v + (1 - t) * score) * dt + torch.sqrt(2 * (1 - t)) * torch.sqrt(dt) * noise[cell, step + 1]
        x = x + 0.04 * flow(x, times[-1])
        x = (x - x.mean()) / (x.var(unbiased=False) + 1e-6).sqrt() if normalised else x
        tokens = torch.cat([tokens, x[None]])
    return tokens.view(*GRID, WIDTH)


@pytest.mark.parametrize(
    ("guidance", "shift", "places", "normalised"), [(None, 1.0, True, True), (3.0, 3.2, False, True), (2.0, 1.0, True, False)]
)
@torch.no_grad()
def test_plain_decoding_is_the_direct_loop(guidance, shift, places, normalised):
    model = pictures(places, normalised=normalised)
    sampling = Sampling(schedule=FlowSchedule(shift=shift))
    out = generate(model, TEXTS, method="plain", guidance=guidance, sampling=sampling)
    ids, mask = model.encode(TEXTS, guidance is not None)
    assert ids[0, mask[0]].tolist()[-2:] == [4, 5]
    for row in range(3):
        noise = Noise.from_seed([SEED + row], 1)
        keys = noise.aligned(torch.arange(6)[None])
        normal = keys.branch(STEPS).normal(WIDTH)[0].float()
        prompts = [ids[at, mask[at]].tolist() for at in ((row, row + 3) if guidance is not None else (row,))]
        wanted = direct(network(places), prompts, normal, guidance, shift, normalised)
        assert torch.allclose(out.tokens[row], wanted, atol=2e-4)
    assert out.stats.head_calls == STEPS * 6
    other = generate(model, TEXTS, method="plain", guidance=1.5, sampling=sampling)
    assert not torch.allclose(out.tokens, other.tokens, atol=1e-2)


# --- faster ----------------------------------------------------------------------------------------------------------


def test_chain_is_the_default_and_takes_fewer_calls_of_the_head():
    model = pictures()
    sampling = Sampling(steps=24)
    out = generate(model, TEXTS[:2], sampling=sampling, guidance=2.0)
    assert out.tokens.shape == (2, *GRID, WIDTH)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.head_calls < 24 * 6
    alone = generate(model, TEXTS[:1], sampling=sampling, guidance=2.0)
    assert torch.allclose(alone.tokens[0], out.tokens[0], atol=1e-4)
    steps = generate(model, TEXTS[:1], sampling=sampling, guidance=2.0, draft_steps=0)
    assert steps.stats.head_calls == 24 * 6


@pytest.mark.parametrize("method", ["path", "aligned", "stepwise", "block"])
def test_a_drafter_saves_forwards_of_the_backbone(method):
    sampling = Sampling(sigma_out=0.3)
    itself = generate(pictures(drafter=network()), TEXTS, method=method, sampling=sampling, window=3, guidance=2.0)
    assert itself.stats.target_calls <= 3
    assert itself.stats.rejected == 0
    near_one = generate(pictures(), TEXTS, drafter=near(network(), 0.002), method=method, sampling=sampling, window=3)
    assert near_one.tokens.isfinite().all()
    assert 0 < near_one.stats.accepted <= near_one.stats.drafted


# --- checkpoints -----------------------------------------------------------------------------------------------------

PUBLISHED = (
    *("embed_tokens.weight", "norm.weight", "layers.0.self_attn.q_proj.bias", "layers.1.mlp.gate_proj.weight", "lm_head.weight"),
    *("image_in_projector.bias", "image_out_projector.weight", "image_head.net.time_embed.mlp.0.weight", "image_head.net.cond_embed.bias"),
    *("image_head.net.input_proj.weight", "image_head.net.res_blocks.1.in_ln.weight", "image_head.net.res_blocks.0.mlp.2.bias"),
    *("image_head.net.res_blocks.0.adaLN_modulation.1.weight", "image_head.net.final_layer.linear.weight"),
    *("image_head.net.final_layer.adaLN_modulation.1.bias", "gen_pos_embed"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nextstep")
    extra = {"lm_head.weight": torch.zeros(60, 32), "gen_pos_embed": torch.zeros(1, 16, 32)}
    save_file({**network().state_dict(), **extra}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(FIELDS), encoding="utf-8")
    words().save_pretrained(folder)
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"block_out_channels": (32, 32, 32, 32), "layers_per_block": 1, "latent_channels": 4}
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    vae = diffusers.AutoencoderKL(**sizes, **blocks, use_quant_conv=False, use_post_quant_conv=False).eval()
    (folder / "vae").mkdir()
    torch.save(small_checkpoints.taming_names(vae), folder / "vae" / "checkpoint.pt")
    (folder / "vae" / "config.json").write_text(json.dumps({"scaling_factor": 2.0, "shift_factor": 0.5}), encoding="utf-8")
    return folder, vae


@torch.no_grad()
def test_a_published_checkpoint_loads_and_draws(home):
    folder, vae = home
    found = load_nextstep(folder, size=SIZE, negative="the sea")
    names = {*found.model.state_dict(), "lm_head.weight", "gen_pos_embed"}
    assert set(PUBLISHED) <= names
    assert "layers.0.self_attn.o_proj.bias" not in names
    out = generate(found, TEXTS[:1])
    assert torch.equal(out.tokens, generate(pictures(), TEXTS[:1]).tokens)
    (picture,) = out.images
    assert picture.size == SIZE[::-1]
    latents = out.tokens.view(1, *GRID, 4, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(1, 4, 4, 6)
    pixels = vae.decode(latents / 2 + 0.5).sample
    assert torch.allclose(LatentDecoder.load(folder / "vae").decoded(latents / 2 + 0.5), pixels, atol=1e-4)
    assert generate(found, TEXTS[:1], size=16).tokens.shape == (1, 1, 1, WIDTH)


REFUSED = [
    (lambda: nextstep_config({"model_type": "llama"}), "model_type is 'llama'"),
    (lambda: nextstep_config(FIELDS | {"o_attention_bias": True}), "biases are"),
    (lambda: nextstep_config({name: FIELDS[name] for name in FIELDS if name != "boi"}), "boi is missing"),
    (lambda: pictures().resized(40), "multiples of 16 pixels"),
    (lambda: pictures().resized(96), "places for 4 a side"),
    (lambda: generate(pictures(), TEXTS, method="path", drafter=network()), "path needs noise in the last step"),
    (lambda: generate(pictures(), TEXTS, method="path", sampling=Sampling(sigma_out=0.1)), "needs a drafter"),
    (lambda: generate(pictures(), TEXTS, method="density"), "density"),
    (lambda: generate(pictures(), TEXTS, sampling=Sampling(schedule=diffusers.DDPMParallelScheduler())), "give a FlowSchedule"),
    (lambda: generate(pictures(), [3]), "is not a text"),
    (lambda: generate(pictures(), TEXTS, top_k=3), "top_k"),
    (lambda: FlowSchedule(shift=0.0), "shift is 0.0"),
    (lambda: FlowSchedule().noise_schedule(1, 0.0), "2 steps or more"),
    (lambda: generate(pictures(), TEXTS[:1]).images, "no decoder"),
]


@pytest.mark.parametrize(("attempt", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_done_is_said_in_one_line(attempt, said):
    with pytest.raises(ValueError, match=said) as error:
        attempt()
    assert "\n" not in str(error.value)
