"""Picture tokenizers: codes are the nearest vectors, decoding is the model's own, and training's start leaves no code dead."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

from mmspec.minis import HOME
from mmspec.minis.drawn.captioned import COLOURS
from mmspec.vision.codes import tokenizer as tokens


def tiny(colours=3, patch=2, size=16, codes=12, channels=(8, 16)):
    torch.manual_seed(0)
    model = tokens.make_tokenizer(size=size, colours=colours, patch=patch, channels=channels, codes=codes, dim=4).eval()
    with torch.no_grad():  # on latents: from diffusers' own start, one code would take everything
        found = tokens.latents(model, tokens.as_tensor(shown(8, colours, size, seed=7)))
        tokens.codebook(model).copy_(found.permute(0, 2, 3, 1).flatten(0, 2)[:: found.shape[2] ** 2 * 8 // codes][:codes])
    return model


def shown(count=3, colours=3, size=16, seed=0):
    sides = (count, size, size, 3) if colours == 3 else (count, size, size)
    return torch.randint(256, sides, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


LAYOUTS = [(1, 1, (8, 8), 8), (1, 2, (8,), 8), (3, 2, (8, 16), 4), (3, 4, (8,), 4)]


@pytest.mark.parametrize(("colours", "patch", "channels", "grid"), LAYOUTS)
def test_a_picture_becomes_a_grid_of_codes_and_a_picture_again(colours, patch, channels, grid):
    model = tiny(colours, patch, channels=channels)
    assert (tokens.colours(model), tokens.patch(model)) == (colours, patch)
    codes = tokens.encode_codes(model, shown(colours=colours))
    assert codes.shape == (3, grid, grid)
    assert len(codes.unique()) > 1
    drawn = tokens.decode_codes(model, codes)
    assert [picture.size for picture in drawn] == [(16, 16)] * 3
    assert drawn[0].mode == ("L" if colours == 1 else "RGB")


@pytest.mark.parametrize("patch", [1, 2])
def test_codes_and_pictures_are_those_of_diffusers_own_forward(patch):
    model, pixels = tiny(patch=patch), tokens.as_tensor(shown())
    found = model.encode(F.pixel_unshuffle(pixels, patch)).latents
    indices = model.quantize(found)[2][2]
    codes = tokens.encode_codes(model, pixels)
    assert codes.flatten().tolist() == indices.tolist()
    own = F.pixel_shuffle(model(F.pixel_unshuffle(pixels, patch)).sample, patch).clamp(-1, 1)
    assert torch.allclose(tokens.codes_to_pixels(model, codes), own, atol=1e-5)


def test_a_code_is_the_nearest_vector():
    model = tiny()
    vectors = tokens.codebook(model).detach()
    assert tokens.nearest_codes(model, vectors.T[None, :, None]).flatten().tolist() == list(range(12))
    found = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(1))
    by_hand = (found[:, None] - vectors[None, :, :, None, None]).square().sum(2).argmin(1)
    assert (tokens.nearest_codes(model, found) == by_hand).all()
    assert (tokens.nearest_codes(model, found.roll(1, 1)) != by_hand).any()  # the test sees a wrong order of the latent's parts


def test_a_picture_is_the_same_alone_and_in_a_batch():
    model, found = tiny(), shown(5)
    together = tokens.encode_codes(model, found, batch=2)
    for row in range(5):
        assert (tokens.encode_codes(model, found[row : row + 1]) == together[row]).all()


def test_bytes_survive_the_way_to_floats_and_back():
    for found in (shown(2), shown(2, colours=1)):
        back = np.stack([np.asarray(picture) for picture in tokens.as_pictures(tokens.as_tensor(found))])
        assert (back == found.numpy()).all()
    listed = [Image.fromarray(each.numpy()) for each in shown(2)]
    assert (tokens.as_tensor(listed) == tokens.as_tensor(shown(2))).all()


def test_wrong_inputs_are_named():
    model = tiny()
    with pytest.raises(ValueError, match="resize them"):
        tokens.encode_codes(model, shown(size=8))
    with pytest.raises(ValueError, match="uint8"):
        tokens.as_tensor(torch.zeros(2, 16, 16, 3))
    with pytest.raises(ValueError, match="0 to 11"):
        tokens.decode_codes(model, torch.full((1, 4, 4), 12))
    with pytest.raises(ValueError, match="raster order"):
        tokens.decode_codes(model, torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(ValueError, match="not a multiple of 4"):
        tokens.make_tokenizer(size=18, colours=3, patch=2, channels=(8, 8), codes=4, dim=4)
    with pytest.raises(ValueError, match="2 colours"):
        tokens.make_tokenizer(size=16, colours=2, patch=2, channels=(8,), codes=4, dim=4)


def test_varied_pictures_move_by_whole_pixels_and_only_those_allowed_are_mirrored():
    pixels = tokens.as_tensor(shown(200))
    allowed = torch.arange(200) % 2 == 0
    same = tokens.vary(pixels, torch.Generator().manual_seed(0), shift=0, mirror=allowed)
    plain = (same - pixels).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (same - pixels.flip(3)).abs().amax((1, 2, 3)) < 1e-4
    assert (plain | mirrored).all()
    assert not mirrored[~allowed].any()
    assert 30 < mirrored.sum() < 70
    moved = tokens.vary(pixels, torch.Generator().manual_seed(0), shift=2)
    framed = F.pad(pixels, (2, 2, 2, 2), value=1.0)  # white comes in at the edges
    near = torch.stack([(framed[:, :, y : y + 16, x : x + 16] - moved).abs().amax((1, 2, 3)) < 1e-4 for y in range(5) for x in range(5)])
    assert (near.sum(0) == 1).all()
    assert near.any(1).all()


def clusters(count=12, each=50):
    """Latents [1, 4, count, each] in tight, far-apart heaps of which one is as large as all others together."""
    chance = torch.Generator().manual_seed(5)
    heaps = 20 * torch.randn(count, 4, generator=chance)
    heavy = heaps[:1].expand(count, 4)
    owner = torch.cat([heaps, heavy]).repeat_interleave(each, 0)
    return (owner + 0.01 * torch.randn(owner.shape, generator=chance)).T.reshape(1, 4, 2 * count, each), heaps


def test_the_start_finds_every_heap_and_leaves_no_code_dead():
    model = tiny()
    found, heaps = clusters()
    before = torch.cdist(heaps, tokens.codebook(model)).min(1).values.max()
    tokens.start_codebook(model, found, torch.Generator().manual_seed(0))
    assert torch.cdist(heaps, tokens.codebook(model)).min(1).values.max() < 0.1
    assert len(tokens.nearest_codes(model, found).unique()) == 12
    assert before > 1


def test_dead_codes_move_to_where_the_error_is():
    model = tiny()
    found, heaps = clusters()
    with torch.no_grad():
        tokens.codebook(model).copy_(heaps)
        tokens.codebook(model)[7] = 1e4
    alive = tokens.codebook(model).detach().clone()
    assert tokens.restart_dead(model, found, torch.Generator().manual_seed(0)) == 1
    assert (tokens.codebook(model)[7] - heaps[7]).norm() < 0.1
    kept = torch.arange(12) != 7
    assert torch.equal(tokens.codebook(model)[kept], alive[kept])
    assert tokens.restart_dead(model, found, torch.Generator().manual_seed(0)) == 0


def test_perplexity_counts_codes_used_alike():
    assert tokens.perplexity(torch.arange(8).repeat(5), 12) == pytest.approx(8)
    assert tokens.perplexity(torch.zeros(40, dtype=torch.long), 12) == pytest.approx(1)


def test_a_example_teaches_every_part_and_the_warm_up_not_the_codebook():
    pixels = tokens.as_tensor(shown())
    for noise, coded in ((None, True), (torch.zeros(3, 4, 4, 4), False)):
        model = tiny()
        rebuilt, extra = tokens.TokenizerLoss(model)(pixels, noise)
        (tokens.rebuilding_loss(rebuilt, pixels) + extra).backward()
        parts = (model.encoder.conv_in.weight, model.decoder.conv_out.weight, tokens.codebook(model))
        assert [bool(part.grad.abs().sum() > 0) for part in parts] == [True, True, coded]
    assert tokens.rebuilding_loss(pixels, pixels) == 0


def test_a_tokenizer_comes_back_in_half_precision(tmp_path):
    model = tiny()
    tokens.save_tokenizer(model, tmp_path / "vq")
    back = tokens.load_tokenizer(tmp_path / "vq")
    assert sorted(path.name for path in (tmp_path / "vq").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["vq"]
    assert all(torch.equal(tensor.half().float(), back.state_dict()[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(FileNotFoundError, match=r"vision/train_tokenizer\.py"):
        tokens.load_tokenizer(tmp_path / "none")


def drawn(size, colours):
    """A picture that is in neither set: a disc on a bar; of scenes in their colours and between their corners."""
    picture = Image.new("RGB", (64, 64), "white" if colours == 3 else "black")
    pen = ImageDraw.Draw(picture)
    pen.rectangle((28, 8, 36, 60), fill=COLOURS["blue"])
    pen.ellipse((14, 10, 50, 42), fill=COLOURS["orange"])
    return picture.resize((size, size), Image.Resampling.LANCZOS).convert("RGB" if colours == 3 else "L")


@pytest.mark.parametrize(("name", "size", "colours", "grid", "count"), [("fashion", 28, 1, 14, 256), ("scenes", 64, 3, 16, 284)])
def test_the_shipped_tokenizers_rebuild_a_picture_they_never_saw(name, size, colours, grid, count):
    model, picture = tokens.load_tokenizer(HOME / "vision" / name / "tokenizer"), drawn(size, colours)
    codes = tokens.encode_codes(model, [picture])
    assert codes.shape == (1, grid, grid)
    assert tokens.codebook(model).shape == (count, 8)
    [rebuilt] = tokens.decode_codes(model, codes)
    wrong = (np.asarray(rebuilt, np.float64) - np.asarray(picture, np.float64)) / 255
    assert -10 * np.log10((wrong**2).mean()) > 20
    [mixed] = tokens.decode_codes(model, codes.roll(1, 2))  # the bound is not met by chance
    wrong = (np.asarray(mixed, np.float64) - np.asarray(picture, np.float64)) / 255
    assert -10 * np.log10((wrong**2).mean()) < 20
