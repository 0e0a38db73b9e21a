"""transformers' codecs: what is given out piece by piece is what decoding everything at once gives, and nothing is given out too early."""

import pytest
import torch

from mmspec.speech.codecs.streams import WindowCodec
from mmspec.speech.codecs.transformers import HFCodec
from tests.speech.small_codecs import BOOKS, SIZE, codes, dac, encodec, mimi, xcodec2

ROUNDING = 1e-5  # relative to the loudest sample


def pieces(codec, steps, sizes=(1,)):
    """Pieces pushed in runs of `sizes`, and how many steps were known when each came out."""
    stream, found, known = codec.stream(), [], 0
    while known < len(steps):
        run = sizes[known % len(sizes)]
        for piece in stream.push(steps[known : known + run]):
            found.append((piece, min(known + run, len(steps))))
        known += run
    return found + [(piece, len(steps)) for piece in stream.close()]


def together(found):
    return torch.cat([piece for piece, _ in found])


@pytest.mark.parametrize("name", BOOKS)
@pytest.mark.parametrize("count", [2, 7, 45])
def test_pieces_are_the_whole(name, count):
    make, books = BOOKS[name]
    steps = codes(count, books)
    for block in (1, 3, 8):
        codec = HFCodec(make(), block=block, first_block=min(block, 2))
        whole, found = codec.decode(steps), together(pieces(codec, steps))
        assert found.shape == whole.shape
        assert (found - whole).abs().max() <= ROUNDING * whole.abs().max().clamp_min(1)


@pytest.mark.parametrize("name", BOOKS)
def test_the_samples_do_not_depend_on_how_steps_arrive(name):
    make, books = BOOKS[name]
    steps, codec = codes(40, books), HFCodec(make())
    singly = together(pieces(codec, steps))
    for sizes in ((40,), (5,), (1, 3, 2, 7, 4)):
        assert torch.equal(singly, together(pieces(codec, steps, sizes)))


@pytest.mark.parametrize("name", ["dac", "encodec", "mimi"])
def test_nothing_given_out_rests_on_what_was_not_known(name):
    """Whatever follows, the pieces that came before it are the same."""
    make, books = BOOKS[name]
    codec, first = HFCodec(make(), block=4, first_block=4), codes(28, books)
    early = []
    for follows in (codes(12, books, seed=1), codes(12, books, seed=2)):
        stream = codec.stream()
        early.append(torch.cat([*stream.push(first)]))
        rest = [*stream.push(follows), *stream.close()]
        whole = codec.decode(first + follows)
        assert (torch.cat([early[-1], *rest]) - whole).abs().max() <= ROUNDING * whole.abs().max().clamp_min(1)
    assert len(early[0]) > 0
    assert torch.equal(early[0], early[1])
    if name != "dac":  # these look back only: every known code is sound already
        assert len(early[0]) == 28 * codec.samples


def test_a_stream_that_looks_too_little_ahead_is_caught():
    """The mutant the test above is for: a decoder said to look back only gives out what the next codes change."""
    codec, first = HFCodec(dac(), block=4), codes(28, 3)
    for layer in codec.parts.leave.layers:
        object.__setattr__(layer, "ready", lambda known, layer=layer: known * (layer.up or 1))
    stream = codec.stream()
    early = torch.cat([*stream.push(first)])
    whole = codec.decode(first + codes(12, 3, seed=1))
    assert (early - whole[: len(early)]).abs().max() > 100 * ROUNDING


def test_lengths_are_the_decoders_own():
    """DAC with an odd stride cuts its end: 7,992 samples for 50 codes of 160, and no padding is made up."""
    codec = HFCodec(dac(downsampling_ratios=[2, 4, 5, 4]))
    assert (codec.samples, codec.rate, codec.pace) == (160, 16000, 100)
    steps = codes(50, 3)
    assert len(codec.decode(steps)) == len(together(pieces(codec, steps))) == 7992
    assert len(HFCodec(dac()).decode(steps)) == 50 * 128


def test_what_needs_everything_gives_it_at_the_end():
    backwards = HFCodec(encodec(use_causal_conv=False, trim_right_ratio=1.0))
    for codec, books in ((HFCodec(xcodec2()), 1), (backwards, 3)):
        assert not codec.streams
        found = pieces(codec, codes(20, books))
        assert [known for _, known in found] == [20]
        assert torch.equal(found[0][0], codec.decode(codes(20, books)))


def test_no_steps_no_sound():
    codec = HFCodec(mimi())
    assert not pieces(codec, [])
    assert len(codec.decode([])) == 0


def test_a_function_as_a_codec():
    """Each frame's sound is a sum over its neighbours: 2 before, 1 after."""

    def decode(frames):
        x = torch.nn.functional.pad(frames.sum(1).float(), (2, 1))
        near = x[:-3] + 3 * x[1:-2] + 5 * x[2:-1] + 7 * x[3:]
        return (near[:, None] + torch.arange(4)).flatten()

    steps = codes(21, 3)
    whole = decode(torch.tensor(steps))
    for block in (1, 4):
        codec = WindowCodec(decode, rate=8000, samples=4, behind=2, ahead=1, block=block)
        found = pieces(codec, steps)
        assert torch.equal(together(found), whole)
        assert found[0][1] == 2  # the first block has one frame, or two of which the second waits for its next
    late = WindowCodec(decode, rate=8000, samples=4)
    assert [known for _, known in pieces(late, steps)] == [21]
    assert torch.equal(together(pieces(late, steps)), whole)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HFCodec(torch.nn.Linear(2, 2)), "Linear is not a codec"),
        (lambda: HFCodec(encodec(normalize=True)), "scales every chunk by a loudness"),
        (lambda: HFCodec(encodec(audio_channels=2)), "only codecs of one channel"),
        (lambda: HFCodec(mimi(), block=0), "block is 0: decode at least 1"),
        (lambda: HFCodec(mimi(), first_block=0), "first_block is 0: decode at least 1"),
        (lambda: HFCodec(mimi()).decode([[1, 2, SIZE, 0]]), "code 64 is none of the codec's 64"),
        (lambda: HFCodec(dac()).decode([[1, 2, 3, 0]]), "frames of 4 codes, but the codec has 3 books"),
    ],
)
def test_what_cannot_be_decoded_is_told_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as caught:
        make()
    assert "\n" not in str(caught.value)
