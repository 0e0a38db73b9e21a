"""`/v1/images/generations`."""

import base64
from time import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from mmspec.serving.handle import RequestHandle
from mmspec.serving.http.choices import drafting_facts, seed_of
from mmspec.serving.http.endpoints.shared import check_count, client_of, read_body, server_state, worked
from mmspec.serving.http.errors import api_error
from mmspec.serving.http.models import ImageServed
from mmspec.serving.http.schemas.media import ImageBody
from mmspec.serving.http.waiting import all_ended, answer
from mmspec.serving.http.worker import WorkerJob
from mmspec.vision.families.base import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.quality.contact_sheets import picture_bytes

router = APIRouter()


@router.post("/v1/images/generations")
async def draw(request: Request) -> dict[str, Any]:
    """Generate pictures.

    Args:
        request: the request; its body is `ImageBody`.

    Returns:
        The pictures, as base64 of image files.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    body, _ = await read_body(request, ImageBody)
    served: ImageServed = state.models.find("image", body.model)
    check_count(state, body.n)
    seed = seed_of(body.seed)
    try:
        pixels = body.pixels
    except ValueError as error:
        raise api_error(error) from error
    if served.engine is None or pixels is not None:
        out, files = await worked(request, served, lambda job: _draw(served, body, seed, job))
        outs = [out]
    else:
        outs, files = await _joined(request, served, body, seed)
    stats = [each.stats for each in outs]
    state.metrics.add(served.id, stats)
    data = [{"b64_json": base64.b64encode(file).decode()} for file in files]
    facts = drafting_facts(seed, stats)
    return {"created": int(time()), "data": data, "output_format": body.output_format, "model": served.id, "mmspec": facts}


async def _joined(request: Request, served: ImageServed, body: ImageBody, seed: int) -> tuple[list[Pictures], list[bytes]]:
    """The pictures of a request, drawn in one generation with those of others."""
    handles: list[RequestHandle] = []
    try:
        await run_in_threadpool(_submit, served, body, seed, handles, client_of(request))
        await answer(request, all_ended(handles), server_state(request).limits.timeout)
        outs: list[Pictures] = [handle.result(0) for handle in handles]
        return outs, await run_in_threadpool(lambda: [_file(out, 0, body) for out in outs])
    except Exception as error:
        raise api_error(error) from error
    finally:
        for handle in handles:
            handle.cancel()


def _submit(served: ImageServed, body: ImageBody, seed: int, handles: list[RequestHandle], client: str) -> None:
    assert served.engine is not None
    options = _options(served, body)
    for row, prompt in enumerate(served.loaded.prompts(body.prompt, body.n)):
        handles.append(served.engine.submit(prompt, seed=seed + row, client=client, **options))


def _options(served: ImageServed, body: ImageBody) -> dict[str, Any]:
    """How the distributions of a request's pictures are formed."""
    given = {"top_k": body.top_k, "top_p": None if body.top_p == 1 else body.top_p}
    guidance = served.loaded.guidance if body.guidance is None else body.guidance
    shared = {"temperature": 1.0 if body.temperature is None else body.temperature, "guidance": guidance}
    return shared | {name: value for name, value in given.items() if value is not None}


def _draw(served: ImageServed, body: ImageBody, seed: int, job: WorkerJob) -> tuple[Pictures, list[bytes]]:
    loaded, options = served.loaded, _options(served, body)
    sized: dict[str, Any] = options if body.pixels is None else options | {"size": body.pixels}
    out = generate(
        loaded.model,
        loaded.prompts(body.prompt, body.n),
        method=served.method,
        seed=[seed + row for row in range(body.n)],
        on_step=job.on_step,
        **sized,
    )
    return out, [_file(out, row, body) for row in range(body.n)]


def _file(out: Pictures, row: int, body: ImageBody) -> bytes:
    """A picture of a batch as a file, decoded alone, so that its bytes do not depend on the others."""
    model = out.model
    picture = model.decode_row(out.tokens, row) if isinstance(model, ImageModel) else model.decode(out.tokens[row : row + 1])[0]
    return picture_bytes(picture.convert("RGB"), body.output_format.upper())
