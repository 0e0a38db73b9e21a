"""A job of speech: texts in (one a line, or JSON lines), numbered sound files out, by every engine of `mmspec.jobs`.

>>> spec = SpeechJobSpec(texts=Path("lines.txt"), out=Path("out"), voice="jackson")
>>> report = mmspec.jobs.run(partial(make_speech_job, spec))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmspec.jobs import Job, Lines, NumberedFiles, Processes
from mmspec.jobs.rows import BATCHING
from mmspec.jobs.speech import Say, speech_job_identity
from mmspec.loading.speech import Speaker, load_speaker
from mmspec.speech.sound.files import SUBTYPES, sound_bytes
from mmspec.utils.devices import device_of
from mmspec.utils.names import unknown

OPTIONS = ("accept", "draft_length", "tree", "temperature", "top_k", "top_p", "repetition_penalty", "guidance", "max_seconds")


@dataclass(frozen=True, kw_only=True)
class SpeechJobSpec:
    """Settings of a speech job; plain values that can be sent to other machines."""

    texts: Path
    out: Path
    model: str = "mini"
    drafter: str | None = None
    voice: str | None = None
    accept: str = "exact"
    draft_length: int | str = "auto"
    tree: Sequence[int] | str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None
    form: str = "wav"
    sample_rate: int | None = None
    seed: int = 0
    batch_size: int = 8  # texts that are said at a time
    batching: str = "continuous"
    shard_size: int = 256
    device: str = "auto"
    dtype: str = "float32"


def make_speech_job(asked: SpeechJobSpec, speaker: Speaker | None = None) -> Job:
    """Return the job. ValueError for missing files and invalid settings, before anything is written."""
    from mmspec.utils.provenance import provenance

    source = Lines(asked.texts, "text")  # what is not there is told before a model is loaded
    check_format(asked.form, asked.sample_rate)
    speaker = speaker or load_speaker(asked.model, asked.drafter, asked.dtype, device_of(Processes.here().device(asked.device)))
    options = {name: value for name in OPTIONS if (value := getattr(asked, name)) is not None}
    if asked.batching not in BATCHING:
        raise unknown("batching", asked.batching, BATCHING)
    if asked.batch_size < 1:
        raise ValueError(f"batch size is {asked.batch_size}: give at least 1")
    rows, continuous = asked.batch_size, asked.batching == "continuous"
    work = Say(speaker, options, asked.voice, asked.seed, asked.form, asked.sample_rate, rows, continuous)
    work.rehearse()
    if not work.token_exact and asked.draft_length in ("auto", "thompson"):
        raise ValueError(
            f"accept {asked.accept!r} draws otherwise with another draft length, and {asked.draft_length!r} follows the clock: "
            "give draft length a number, so that a job that goes on says the same"
        )
    model, told = speech_job_identity(work)
    return Job(
        source=source,  # pyright: ignore[reportArgumentType] - its unit is the class's
        sink=NumberedFiles(f".{asked.form}", "sounds"),  # pyright: ignore[reportArgumentType] - its extension is the class's
        work=work,
        check=work.check,
        measures=work.measures,
        out=asked.out,
        model=model,
        options=told | {"dtype": asked.dtype},
        batch_size=asked.shard_size,  # the worker takes a shard and says `rows` of its texts at a time
        shard_size=asked.shard_size,
        unit="texts",
        about=provenance(speaker.model.model.device) | {"rows": rows, "batching": asked.batching},
    )


def check_format(form: str, rate: int | None) -> None:
    """Raise ValueError if `form` is unknown or does not support `rate` samples a second."""
    if form not in SUBTYPES:
        raise ValueError(f"unknown format {form!r}; valid: {', '.join(SUBTYPES)}")
    if rate is not None:
        sound_bytes(np.zeros(1, np.float32), rate, form)
