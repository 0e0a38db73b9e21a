"""`/v1/audio/speech`."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from torch import Tensor

from mmspec.serving.handle import RequestHandle
from mmspec.serving.http.choices import seed_of
from mmspec.serving.http.endpoints.shared import ServerState, client_of, in_lane, read_body, server_state, submitted
from mmspec.serving.http.errors import ApiError, api_error
from mmspec.serving.http.models import SpeechServed, SpeechWorkerServed
from mmspec.serving.http.schemas.media import SpeechBody
from mmspec.serving.http.waiting import Changes, all_ended, answer, job_result, raise_failure, wake
from mmspec.serving.http.worker import WorkerJob
from mmspec.speech.families.base import SpeechModel
from mmspec.speech.generation import synthesize
from mmspec.speech.sound.files import sound_bytes
from mmspec.speech.sound.speech import Speech

router = APIRouter()
_USUAL = 30  # seconds that `synthesize` gives a model without a bound of its own
_MEDIA = {"wav": "audio/wav", "flac": "audio/flac", "pcm": "audio/pcm"}


@router.post("/v1/audio/speech")
async def synthesize_text(request: Request) -> Response:
    """Synthesize a text.

    Args:
        request: the request; its body is `SpeechBody`.

    Returns:
        The sound file, whose header X-Finish-Reason is "length" where it was cut at its longest duration, else "stop"; or pcm as it is
        made, when its end is not known yet.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    body, _ = await read_body(request, SpeechBody)
    served: SpeechServed | SpeechWorkerServed = state.models.find("speech", body.model)
    if body.max_seconds is not None and body.max_seconds > state.limits.max_seconds:
        raise ApiError(400, f"max_seconds is {body.max_seconds:g}: this server makes at most {state.limits.max_seconds:g} s", "max_seconds")
    seed = seed_of(body.seed)
    rate = served.loaded.model.rate
    headers = {"X-Sample-Rate": str(rate), "X-Seed": str(seed)}
    source = await _sound(request, served, body, seed)
    if body.response_format == "pcm":
        sound = _PcmStream(state, served, source)
        first = await answer(request, sound.first(), state.limits.timeout)
        return StreamingResponse(sound.rest(first), media_type=_MEDIA["pcm"], headers=headers)
    out = await answer(request, source.whole(), state.limits.timeout)
    state.metrics.add(served.id, [out.stats])
    file = await asyncio.to_thread(sound_bytes, out.waveforms[0], out.sample_rate, body.response_format)
    headers["X-Finish-Reason"] = str(out.finish_reasons[0])
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


async def _sound(request: Request, served: SpeechServed | SpeechWorkerServed, body: SpeechBody, seed: int) -> "_EngineSound | _WorkerSound":
    """Submit a request. Its failures have their status."""
    bound = longest_sound(served.loaded.model, server_state(request).limits.max_seconds)
    options = {"seed": seed, "voice": body.voice, "temperature": body.temperature, "top_k": body.top_k, "top_p": body.top_p}
    options |= {"max_seconds": bound if body.max_seconds is None else body.max_seconds}
    if isinstance(served, SpeechWorkerServed):
        return _WorkerSound(request, served, body, options)
    client = client_of(request)
    submit = partial(served.engine.submit, body.input, client=client, **options)
    return _EngineSound(await in_lane(request, False, lambda _: submit(), RequestHandle.cancel))


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


class _EngineSound:
    """The sound of a request of an engine."""

    def __init__(self, handle: RequestHandle):
        self.handle = handle

    async def whole(self) -> Speech:
        """The sound once it is complete. Raises what ended the request."""
        await all_ended([self.handle])
        return self.handle.result(0)

    async def pieces(self) -> AsyncIterator[Tensor]:
        """Its pieces as they are made; raises at the end what ended the request."""
        changes, read, done = Changes([self.handle]), 0, False
        while not done:
            await changes.wait()
            done = self.handle.done
            new = self.handle.pieces[read:]
            for piece in new:
                yield piece
            read += len(new)
        raise_failure(self.handle)

    def cancel(self) -> None:
        self.handle.cancel()


class _WorkerSound:
    """The sound of a request of a worker."""

    def __init__(self, request: Request, served: SpeechWorkerServed, body: SpeechBody, options: Mapping[str, Any]):
        self.made: asyncio.Queue[Tensor | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(piece: Tensor | None) -> None:
            wake(loop, self.made.put_nowait, piece)

        def run(job: WorkerJob) -> Speech:
            heard = (lambda _, piece: put(piece)) if body.response_format == "pcm" else None
            try:
                loaded = served.loaded
                return synthesize(loaded.model, [body.input], loaded.drafter, on_sound=heard, on_step=job.on_step, **options)
            finally:
                put(None)

        self.job = submitted(request, served, run)

    async def whole(self) -> Speech:
        """The sound once it is complete. Raises what ended the request."""
        return await job_result(self.job)

    async def pieces(self) -> AsyncIterator[Tensor]:
        """Its pieces as they are made; raises at the end what ended the request."""
        while (piece := await self.made.get()) is not None:
            yield piece
        await asyncio.wrap_future(self.job.future)

    def cancel(self) -> None:
        self.job.cancel()


class _PcmStream:
    """Sound as it is made. The first piece is waited for before the response begins, so that errors have their status."""

    def __init__(self, state: ServerState, served: SpeechServed | SpeechWorkerServed, source: _EngineSound | _WorkerSound):
        self.state, self.name, self.rate, self.source = state, served.id, served.loaded.model.rate, source
        self.pieces = source.pieces()
        self.until = asyncio.get_running_loop().time() + state.limits.timeout

    async def first(self) -> Tensor | None:
        """The first piece; None for a text without sound. Raises what ended the request before it."""
        try:
            return await anext(self.pieces, None)
        except BaseException:
            self.source.cancel()
            raise

    async def rest(self, piece: Tensor | None) -> AsyncIterator[bytes]:
        try:
            while piece is not None:
                yield pcm_bytes(piece, self.rate)
                async with asyncio.timeout_at(self.until):
                    piece = await anext(self.pieces, None)
            self.state.metrics.add(self.name, [(await self.source.whole()).stats])
        except Exception as error:  # the connection is closed before the end, which clients see
            raise api_error(error) from error
        finally:
            self.source.cancel()
