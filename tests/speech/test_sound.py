"""Sound files: every bit of a float wav, whole files or none, the same bytes every time; levels and rates."""

import errno
import io

import numpy as np
import pytest
import soundfile
import torch

import mmspec.speech.recognition.transcribe
from mmspec.speech.sound import audio, files
from mmspec.speech.sound.audio import SoundTooLong, at_rate, levelled, logs, read_sound, save
from mmspec.speech.sound.files import GrowingWav, sound_bytes
from mmspec.speech.sound.voice_sample import VoiceSample

WAVE = 0.7 * torch.sin(torch.arange(4001) / 7) * torch.rand(4001, generator=torch.Generator().manual_seed(0))


def test_a_float_wav_keeps_every_bit(tmp_path):
    odd = torch.cat([WAVE, torch.tensor([1.5, -2.0, 1e-30])])  # beyond full scale, too
    save(tmp_path / "a.wav", odd, 8000)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert rate == 8000
    assert torch.equal(torch.from_numpy(samples), odd)
    assert torch.equal(read_sound(tmp_path / "a.wav", 8000), odd)
    assert soundfile.info(tmp_path / "a.wav").subtype == "FLOAT"


@pytest.mark.parametrize(("form", "off"), [("flac", 2**-23), ("ogg", 0.05)])
def test_the_other_formats_keep_what_they_can(tmp_path, form, off):
    save(tmp_path / f"a.{form}", WAVE, 8000)
    again = read_sound(tmp_path / f"a.{form}", 8000)
    assert len(again) == len(WAVE)
    assert (again - WAVE).square().mean().sqrt() <= off
    assert soundfile.info(tmp_path / f"a.{form}").format == form.upper()


@pytest.mark.parametrize("form", files.SUBTYPES)
@pytest.mark.parametrize("length", [0, 1, 4001, 40000])
def test_the_same_sound_is_the_same_file(form, length, monkeypatch):
    """libsndfile numbers Ogg streams at random, and tells the time in float wavs."""
    wave = WAVE.repeat(10)[:length]
    first = sound_bytes(wave, 8000, form)
    monkeypatch.setattr("time.time", lambda: 1.0)
    assert all(sound_bytes(wave, 8000, form) == first for _ in range(3))
    if length:
        assert len(soundfile.read(io.BytesIO(first))[0]) == length


def test_ogg_numbers_would_differ():
    """The check above is not idle: without the renumbering, two writings of one sound differ."""
    raw = []
    for _ in range(2):
        buffer = io.BytesIO()
        soundfile.write(buffer, WAVE.numpy(), 8000, format="OGG", subtype="VORBIS")
        raw.append(buffer.getvalue())
    assert raw[0] != raw[1]
    assert files._numbered(raw[0]) == files._numbered(raw[1]) == sound_bytes(WAVE, 8000, "ogg")


def test_an_ogg_with_a_wrong_check_sum_is_not_read():
    broken = bytearray(sound_bytes(WAVE, 8000, "ogg"))
    broken[22] ^= 1
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.read(io.BytesIO(bytes(broken)))


def test_a_growing_wav_is_whole_after_every_piece(tmp_path):
    path, told = tmp_path / "a.wav", 0
    with path.open("wb") as file:
        growing = GrowingWav(file, 8000)
        for piece in WAVE.split(700):
            growing.add(piece)
            told += len(piece)
            assert np.array_equal(soundfile.read(path, dtype="float32")[0], WAVE[:told].numpy())
    assert path.read_bytes() == sound_bytes(WAVE, 8000)


@pytest.mark.parametrize("form", files.SUBTYPES)
def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch, form):
    path = tmp_path / f"a.{form}"
    save(path, WAVE, 8000)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as planted:
        planted.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            save(path, -WAVE, 8000)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    save(path, -WAVE, 8000)
    assert path.read_bytes() != before


def test_places_that_cannot_be_written_to(tmp_path):
    for name, words in (
        ("no/a.wav", "cannot write"),
        ("a.mp3", r"ends in \.mp3: give it one of \.wav, \.flac, \.ogg"),
        ("a", "ends in nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            save(tmp_path / name, WAVE, 8000)
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_sound(tmp_path / "a.wav", 8000)
    (tmp_path / "a.wav").write_text("no sound")
    with pytest.raises(ValueError, match="cannot be read"):
        read_sound(tmp_path / "a.wav", 8000)


def test_reading_mixes_and_resamples(tmp_path):
    beat = np.sin(2 * np.pi * 200 * np.arange(16000) / 16000)
    soundfile.write(tmp_path / "a.wav", np.stack([beat, np.zeros(16000)], 1), 16000, subtype="FLOAT")
    wave = read_sound(tmp_path / "a.wav", 8000)
    assert len(wave) == 8000
    wanted = 0.5 * torch.sin(2 * torch.pi * 200 * torch.arange(8000) / 8000)
    assert (wave - wanted)[100:-100].abs().max() < 1e-3


def test_levels_and_logarithms():
    for loud in (0.001, 1.0, 30.0):
        assert levelled(loud * WAVE).square().mean().sqrt() == pytest.approx(0.08, rel=1e-3)
    peak = torch.zeros(4000)
    peak[7] = 1.0
    assert levelled(peak).abs().max() <= 0.9901
    assert at_rate(WAVE, 8000, 8000) is WAVE
    assert logs(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([np.log(1e-3), 0.0])


RATES = (8000, 16_000, 22_050, 24_000, 44_100, 48_000)


@pytest.mark.parametrize("rate", RATES)
def test_resampling_keeps_what_both_rates_hold_and_nothing_else(rate):
    """Tones up to nine tenths of the smaller rate's half, against the formula; what lies above it is silent."""
    for wanted in RATES:
        if wanted == rate:
            continue
        times = [torch.arange(each, dtype=torch.float64) / each for each in (rate, wanted)]
        for share in (0.02, 0.4, 0.45):
            pitch = share * min(rate, wanted)
            tone, same = (torch.sin(2 * torch.pi * pitch * time).float() for time in times)
            found = at_rate(tone, rate, wanted)
            assert len(found) == wanted
            assert (found - same)[wanted // 10 : -wanted // 10].abs().max() < 2e-3
        if wanted < 0.9 * rate:
            above = torch.sin(2 * torch.pi * 0.6 * wanted * times[0])
            assert at_rate(above.float(), rate, wanted)[wanted // 10 : -wanted // 10].abs().max() < 1e-3


def test_a_file_read_in_blocks_is_the_file_read_whole(tmp_path):
    wave = torch.rand(5000, generator=torch.Generator().manual_seed(1)) - 0.5
    for channels in (1, 32):
        soundfile.write(tmp_path / "a.wav", np.stack([wave.numpy()] * channels, 1), 44_101, subtype="FLOAT")
        assert torch.equal(read_sound(tmp_path / "a.wav", 44_101), wave)
        before = audio._BLOCK
        try:
            audio._BLOCK = 64
            pieces = read_sound(tmp_path / "a.wav", 16_000)
        finally:
            audio._BLOCK = before
        assert torch.equal(pieces, at_rate(wave, 44_101, 16_000))


@pytest.mark.parametrize("rate", [0, 1, 999, 768_001, 10**9])
def test_rates_outside_those_of_sound_are_refused(rate):
    for call in (
        lambda: at_rate(WAVE, rate, 16_000),
        lambda: at_rate(WAVE, 16_000, rate),
        lambda: VoiceSample(WAVE, rate),
        lambda: sound_bytes(WAVE, rate, "ogg"),
    ):
        with pytest.raises(ValueError, match=rf"rate is {rate}: give 1000 to"):
            call()


def test_what_a_format_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="sample rate is 200001: give 1000 to 192000"):
        sound_bytes(WAVE, 200_001, "ogg")  # libvorbis would end the process
    with pytest.raises(ValueError, match=r"flac cannot hold 191999 samples a second .*: give a usual rate, or wav"):
        sound_bytes(WAVE, 191_999, "flac")
    with pytest.raises(ValueError, match="pass the 4 GB of a wav"):
        files._header(2**30, 24_000, 1)


def test_encoders_get_a_block_at_a_time(monkeypatch):
    """libvorbis puts what it is given on the stack: 3.6 million samples in one piece end the process."""
    sizes, own = [], soundfile.SoundFile.write
    monkeypatch.setattr(soundfile.SoundFile, "write", lambda self, data: sizes.append(len(data)) or own(self, data))
    monkeypatch.setattr(files, "_BLOCK", 1500)
    whole = soundfile.read(io.BytesIO(sound_bytes(WAVE, 8000, "flac")), dtype="float32")[0]
    assert sizes == [1500, 1500, 1001]
    assert np.abs(whole - WAVE.numpy()).max() <= 2**-23


def test_voices_are_read_within_bounds(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(400, np.nan), 8000, subtype="FLOAT")
    with pytest.raises(ValueError, match="holds samples that are NaN or infinite"):
        VoiceSample.read(tmp_path / "a.wav")
    soundfile.write(tmp_path / "b.wav", np.zeros(4000), 1000)
    with pytest.raises(SoundTooLong, match=r"b\.wav lasts more than 3 s: cut it into pieces"):
        read_sound(tmp_path / "b.wav", 16_000, longest=3)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        mmspec.speech.recognition.transcribe._wave(torch.full((9,), torch.inf), 16_000)
