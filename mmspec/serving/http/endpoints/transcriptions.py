"""`/v1/audio/transcriptions`."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from torch import Tensor

from mmspec.serving.http.choices import drafting_facts
from mmspec.serving.http.endpoints.shared import in_lane, server_state, worked
from mmspec.serving.http.errors import ApiError, api_error, invalid_fields
from mmspec.serving.http.models import RecognizerServed
from mmspec.serving.http.schemas.media import TranscriptionFields
from mmspec.speech.recognition.prompted import extractor_of
from mmspec.speech.recognition.transcribe import transcribe as write_down
from mmspec.speech.recognition.transcript import Transcript
from mmspec.speech.sound.audio import SoundTooLong, read_sound_and_rate

router = APIRouter()
_MEDIA = {"text": "text/plain; charset=utf-8", "srt": "application/x-subrip", "vtt": "text/vtt"}


@router.post("/v1/audio/transcriptions")
async def transcribe_upload(request: Request) -> Response:
    """Write down an uploaded recording.

    Args:
        request: a multipart form with the file and `TranscriptionFields`.

    Returns:
        The text in the format that was asked for. The header X-Finish-Reason, and `finish_reason` in JSON, is "length" where the text was
        cut at the most tokens of a window, else "stop".

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    async with request.form(max_files=1, max_fields=16) as form:
        fields, file = _fields(form)
        served: RecognizerServed = state.models.find("recognizer", fields.model)
        content = await file.read()
    try:
        times, rate = fields.timestamps, extractor_of(served.loaded.processor).sampling_rate
    except Exception as error:
        raise api_error(error) from error
    wave = await in_lane(request, True, lambda _: decoded_sound(content, rate, state.limits.max_seconds))
    pair = served.loaded

    def run(job: Any) -> Any:
        options: dict[str, Any] = {"language": fields.language, "prompt": fields.prompt, "timestamps": times}
        return write_down(pair.target, pair.processor, wave, pair.drafter, on_step=job.on_step, **options)

    out = await worked(request, served, run)
    state.metrics.add(served.id, [out.stats])
    return _response(out.transcripts[0], fields, drafting_facts(None, [out.stats]))


def _fields(form: FormData) -> tuple[TranscriptionFields, UploadFile]:
    """The fields of a form, and its file."""
    file, given = form.get("file"), {}
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file is missing: send the recording as a multipart form", "file")
    for name in form:
        values, plain = form.getlist(name), name.partition("[")[0]  # clients write lists as name[], and objects as name[field]
        if plain == "timestamp_granularities":
            given[plain] = values
        elif name != "file":
            if len(values) > 1 and name == plain:
                raise ApiError(400, f"{name} was sent {len(values)} times: send it once", name)
            given[plain] = values[0] if name == plain else values
    try:
        return TranscriptionFields.model_validate(given), file
    except ValidationError as error:
        raise invalid_fields(error, given) from None


def decoded_sound(content: bytes, rate: int, most: float) -> Tensor:
    """Decode a sound file.

    Args:
        content: the file: WAV, FLAC, OGG or MP3.
        rate: samples a second of what is returned.
        most: longest duration in seconds.

    Returns:
        Samples of one channel, float [T].

    Raises:
        ApiError: 400, for what is no sound file; 413, for a longer recording.
    """
    try:
        return read_sound_and_rate(content, rate, most)[0]
    except SoundTooLong as error:
        raise ApiError(413, str(error), "file", "too_large") from None
    except ValueError as error:
        raise ApiError(400, str(error), "file") from None


def _response(found: Transcript, fields: TranscriptionFields, facts: dict[str, Any]) -> Response:
    form, headers = fields.response_format, {"X-Finish-Reason": found.finish_reason}
    facts = facts | {"finish_reason": found.finish_reason}
    if form in _MEDIA:
        return Response(found.formatted(form), media_type=_MEDIA[form], headers=headers)
    if form == "json":
        return JSONResponse({"text": found.text, "mmspec": facts}, headers=headers)
    segments = [{"id": number, "start": part.start, "end": part.end, "text": part.text} for number, part in enumerate(found.segments)]
    told = {"task": "transcribe", "language": found.language or "", "duration": found.seconds, "text": found.text, "segments": segments}
    if "word" in fields.timestamp_granularities:
        told["words"] = [{"word": word.text, "start": word.start, "end": word.end} for part in found.segments for word in part.words]
    return JSONResponse(told | {"mmspec": facts}, headers=headers)
