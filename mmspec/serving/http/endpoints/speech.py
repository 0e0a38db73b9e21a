"""`/v1/audio/speech`."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from torch import Tensor

from mmspec.serving.http.choices import seed_of
from mmspec.serving.http.endpoints.shared import ServerState, server_state, submitted, worked
from mmspec.serving.http.errors import ApiError, api_error
from mmspec.serving.http.models import SpeechServed
from mmspec.serving.http.schemas.media import SpeechBody
from mmspec.serving.http.waiting import answer, wake
from mmspec.serving.http.worker import WorkerJob
from mmspec.speech.families.base import SpeechModel
from mmspec.speech.generation import synthesize
from mmspec.speech.sound.files import sound_bytes
from mmspec.speech.sound.speech import Speech

router = APIRouter()
_USUAL = 30  # seconds that `synthesize` gives a model without a bound of its own
_MEDIA = {"wav": "audio/wav", "flac": "audio/flac", "pcm": "audio/pcm"}


@router.post("/v1/audio/speech")
async def synthesize_text(body: SpeechBody, request: Request) -> Response:
    """Synthesize a text.

    Args:
        body: the request.
        request: its connection.

    Returns:
        The sound file; pcm as it is made.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    served: SpeechServed = state.models.find("speech", body.model)
    if body.max_seconds is not None and body.max_seconds > state.limits.max_seconds:
        raise ApiError(400, f"max_seconds is {body.max_seconds:g}: this server makes at most {state.limits.max_seconds:g} s", "max_seconds")
    seed = seed_of(body.seed)
    rate = served.loaded.model.rate
    headers = {"X-Sample-Rate": str(rate), "X-Seed": str(seed)}
    if body.response_format == "pcm":
        sound = _PcmStream(state, served, body, seed)
        first = await answer(request, sound.first(), state.limits.timeout)
        return StreamingResponse(sound.rest(first), media_type=_MEDIA["pcm"], headers=headers)
    out: Speech = await worked(request, served, lambda job: _synthesize(served, body, seed, job, state.limits.max_seconds))
    state.metrics.add(served.id, [out.stats])
    file = await asyncio.to_thread(sound_bytes, out.waveforms[0], out.sample_rate, body.response_format)
    return Response(file, media_type=_MEDIA[body.response_format], headers=headers)


def longest_sound(model: Any, most: float) -> float | None:
    """Return the bound of a sound whose request gives none: `most`, if the model's own is longer, else None.

    Args:
        model: a speech model.
        most: the server's limit in seconds.
    """
    if not isinstance(model, SpeechModel):  # of several networks: its own bound holds
        return None
    own = min((steps for steps in (model.usual, model.longest) if steps), default=round(_USUAL * model.pace) + model.lead)
    return most if (own - model.lead) / model.pace > most else None


def _synthesize(served: SpeechServed, body: SpeechBody, seed: int, job: WorkerJob, most: float, on_sound: Any = None) -> Speech:
    seconds = longest_sound(served.loaded.model, most) if body.max_seconds is None else body.max_seconds
    return synthesize(
        served.loaded.model,
        [body.input],
        served.loaded.drafter,
        seed=seed,
        voice=body.voice,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        max_seconds=seconds,
        on_sound=on_sound,
        on_step=job.on_step,
    )


def pcm_bytes(wave: Tensor, rate: int) -> bytes:
    """Return samples as 16-bit little-endian numbers without a header.

    Args:
        wave: float [T], or [T, 2] in stereo.
        rate: samples a second.
    """
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, wave.numpy(), rate, format="RAW", subtype="PCM_16", endian="LITTLE")
    return buffer.getvalue()


class _PcmStream:
    """Sound as it is made. The first piece is waited for before the response begins, so that errors have their status."""

    def __init__(self, state: ServerState, served: SpeechServed, body: SpeechBody, seed: int):
        self.state, self.served = state, served
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        loop, rate = asyncio.get_running_loop(), served.loaded.model.rate
        self.until = loop.time() + state.limits.timeout

        def put(piece: bytes | None) -> None:
            wake(loop, self.pieces.put_nowait, piece)

        def run(job: WorkerJob) -> Speech:
            try:
                return _synthesize(served, body, seed, job, state.limits.max_seconds, lambda _, piece: put(pcm_bytes(piece, rate)))
            finally:
                put(None)

        self.job = submitted(served, run)

    async def first(self) -> bytes | None:
        """The first piece; None for a text without sound. Raises what ended the request before it."""
        try:
            piece = await self.pieces.get()
            if piece is None:
                await asyncio.wrap_future(self.job.future)
            return piece
        except BaseException:
            self.job.cancel()
            raise

    async def rest(self, piece: bytes | None) -> AsyncIterator[bytes]:
        try:
            while piece is not None:
                yield piece
                async with asyncio.timeout_at(self.until):
                    piece = await self.pieces.get()
            out = await asyncio.wrap_future(self.job.future)
            self.state.metrics.add(self.served.id, [out.stats])
        except Exception as error:  # the connection is closed before the end, which clients see
            raise api_error(error) from error
        finally:
            self.job.cancel()
