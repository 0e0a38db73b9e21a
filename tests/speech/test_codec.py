"""The codec: sound given out while codes still come is the sound of all of them, and rests on nothing that may still change."""

import random

import pytest
import torch

from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig, PatchStream
from mmspec.speech.sound.audio import PhaseFinder
from tests.speech import small_models

CODES = torch.randint(0, small_models.CODES, (41,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module")
def codec():
    return small_models.codec()


def chopped(codes: list[int], seed: int) -> list[list[int]]:
    """`codes` in runs of 0 to 9."""
    pick, runs = random.Random(seed), []
    while codes:
        size = pick.randrange(10)
        runs.append(codes[:size])
        codes = codes[size:]
    return runs


def spoken(codec: PatchCodec, runs: list[list[int]]) -> torch.Tensor:
    stream = codec.stream()
    return torch.cat([*(piece for run in runs for piece in stream.push(run)), *stream.close()])


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_is_the_whole_however_it_is_chopped(codec, seed):
    for length in (len(CODES), 17, 3):
        assert torch.equal(spoken(codec, chopped(CODES[:length], seed)), codec.decode(torch.tensor(CODES[:length])))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 41])
def test_every_code_has_its_samples(codec, length):
    wave = codec.decode(torch.tensor(CODES[:length], dtype=torch.long))
    assert len(wave) == length * codec.config.samples
    assert wave.isfinite().all()
    usual = PatchCodec(PatchCodecConfig(codes=16, width=8))
    assert len(usual.decode(torch.tensor(CODES[:length], dtype=torch.long))) == length * usual.config.samples


def test_what_was_given_out_rests_on_no_later_code(codec):
    """Whatever follows, the pieces given out after n codes are the same."""
    for length in range(2, len(CODES), 5):
        stream, other = codec.stream(), codec.stream()
        early = [*stream.push(CODES[:length])]
        assert sum(map(len, early)) <= max(0, length - codec.config.look_ahead) * codec.config.samples
        changed = [*other.push(CODES[:length] + [(code + 5) % small_models.CODES for code in CODES[length:]])]
        assert all(torch.equal(a, b) for a, b in zip(early, changed, strict=False))
        assert len(changed) >= len(early)


def test_a_stream_that_is_too_hasty_is_seen(codec, monkeypatch):
    """One that does not wait for the last code its piece rests on: the distributions above tell."""

    def hasty(self, codes):
        self.codes += codes
        while len(self.codes) >= self.done + self.config.block + self.config.look_ahead - 1:
            yield self._block(self.config.block, self.config.overlap)

    assert _matters(codec, codec.config.look_ahead)
    monkeypatch.setattr(PatchStream, "push", hasty)
    with pytest.raises(AssertionError):
        test_a_stream_is_the_whole_however_it_is_chopped(codec, 0)
    with pytest.raises(AssertionError):
        test_what_was_given_out_rests_on_no_later_code(codec)


def _matters(codec: PatchCodec, ahead: int) -> bool:
    """Does the last code of a look-ahead change the sound before it?"""
    block, changed = codec.config.block, list(CODES)
    changed[block + ahead - 1] = (CODES[block + ahead - 1] + 5) % small_models.CODES
    first, second = (codec.decode(torch.tensor(codes))[: block * codec.config.samples] for codes in (CODES, changed))
    return not torch.equal(first, second)


def test_codes_reach_as_far_as_the_configuration_says(codec):
    """Magnitudes of a patch do not see beyond `layers * ahead` codes, and see as far."""
    config, ids = codec.config, torch.tensor([CODES])
    before = codec.magnitudes(ids)[0, : config.stack * 10]
    for ahead, moves in ((config.layers * config.ahead, True), (config.layers * config.ahead + 1, False)):
        other = ids.clone()
        other[0, 9 + ahead] = (other[0, 9 + ahead] + 1) % config.codes
        assert (codec.magnitudes(other)[0, : config.stack * 10] != before).any() == moves


def test_encoding_finds_the_nearest_centre(codec):
    wave = 0.1 * torch.randn(8 * codec.config.samples + 5, generator=torch.Generator().manual_seed(0))
    patches, codes = codec.patches(wave), codec.encode(wave)
    assert len(codes) == 9  # what is left of the last patch counts
    distances = (patches[:, None] - codec.centres[None]).norm(dim=-1)
    assert torch.allclose(distances.gather(1, codes[:, None])[:, 0], distances.min(1).values)


def test_a_codec_comes_back_from_its_folder(codec, tmp_path):
    codec.save(tmp_path)
    again = PatchCodec.load(tmp_path)
    assert again.config == codec.config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codec.json", "codec.safetensors"]
    ids = torch.tensor([CODES])
    assert (again.magnitudes(ids) - codec.magnitudes(ids)).abs().max() < 0.01  # weights are stored in half
    again.save(tmp_path / "twice")
    assert torch.equal(PatchCodec.load(tmp_path / "twice").decode(ids[0]), again.decode(ids[0]))


# --- phases -------------------------------------------------------------------------------------------------------------


def finder() -> PhaseFinder:
    return PhaseFinder(hop=40, window=128, points=128)


def test_a_block_is_committed_for_good_and_follows_from_what_it_was_shown():
    """Two blocks with two frames ahead: what follows the frames that a block was shown cannot change it."""
    frames = torch.rand(65, 20, generator=torch.Generator().manual_seed(1))
    one, two = finder(), finder()
    first = one.push(frames[:, :10], 8)
    changed = frames.clone()
    changed[:, 10:] = 0.5
    assert torch.equal(first, two.push(changed[:, :10], 8))
    assert len(first) == 8 * 40
    assert not torch.equal(one.push(frames[:, 8:18], 8), two.push(changed[:, 8:18], 8))


def test_the_wave_has_the_magnitudes_that_were_asked_for():
    """A true spectrogram is met far better than by random phases, blocks or not."""
    beat = torch.arange(4000) / 8000
    wave = (torch.sin(2 * torch.pi * 300 * beat) + 0.5 * torch.sin(2 * torch.pi * 1100 * beat)) * 0.3
    spectrum = torch.stft(wave, 128, 40, window=torch.hann_window(128), return_complex=True).abs()
    found = finder()
    pieces = [found.push(spectrum[:, start : start + 12], 8) for start in range(0, 88, 8)]
    again = torch.stft(torch.cat(pieces), 128, 40, window=torch.hann_window(128), return_complex=True).abs()
    inside = slice(4, 84)
    off = (again[:, inside] - spectrum[:, inside]).norm() / spectrum[:, inside].norm()
    torch.manual_seed(0)
    noise = torch.istft(
        spectrum * torch.polar(torch.ones_like(spectrum), 6.28 * torch.rand_like(spectrum)), 128, 40, 128, torch.hann_window(128)
    )
    worse = torch.stft(noise, 128, 40, window=torch.hann_window(128), return_complex=True).abs()
    assert off < 0.2 < 0.4 < (worse[:, inside] - spectrum[:, inside]).norm() / spectrum[:, inside].norm()
