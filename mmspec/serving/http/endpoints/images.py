"""`/v1/images/generations`."""

import base64
from time import time
from typing import Any

from fastapi import APIRouter, Request

from mmspec.serving.http.choices import drafting_facts, seed_of
from mmspec.serving.http.endpoints.shared import check_count, server_state, worked
from mmspec.serving.http.models import ImageServed
from mmspec.serving.http.schemas.media import ImageBody
from mmspec.serving.http.worker import WorkerJob
from mmspec.vision.families.base import ImageModel
from mmspec.vision.generation import Pictures, generate
from mmspec.vision.quality.contact_sheets import picture_bytes

router = APIRouter()


@router.post("/v1/images/generations")
async def draw(body: ImageBody, request: Request) -> dict[str, Any]:
    """Generate pictures.

    Args:
        body: the request.
        request: its connection.

    Returns:
        The pictures, as base64 of image files.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    served: ImageServed = state.models.find("image", body.model)
    check_count(state, body.n)
    seed = seed_of(body.seed)
    out: Pictures
    out, files = await worked(request, served, lambda job: _draw(served, body, seed, job))
    state.metrics.add(served.id, [out.stats])
    data = [{"b64_json": base64.b64encode(file).decode()} for file in files]
    facts = drafting_facts(seed, [out.stats])
    return {"created": int(time()), "data": data, "output_format": body.output_format, "model": served.id, "mmspec": facts}


def _draw(served: ImageServed, body: ImageBody, seed: int, job: WorkerJob) -> tuple[Pictures, list[bytes]]:
    loaded = served.loaded
    options = {"size": body.pixels, "top_k": body.top_k, "top_p": None if body.top_p == 1 else body.top_p}
    out = generate(
        loaded.model,
        loaded.prompts(body.prompt, body.n),
        method=served.method,
        seed=[seed + row for row in range(body.n)],
        temperature=1.0 if body.temperature is None else body.temperature,
        guidance=loaded.guidance if body.guidance is None else body.guidance,
        on_step=job.on_step,
        **{name: value for name, value in options.items() if value is not None},
    )
    return out, [picture_bytes(_picture(out, row), body.output_format.upper()) for row in range(body.n)]


def _picture(out: Pictures, row: int) -> Any:
    """A picture of a batch, decoded alone, so that its bytes do not depend on the others."""
    model = out.model
    picture = model.decode_row(out.tokens, row) if isinstance(model, ImageModel) else model.decode(out.tokens[row : row + 1])[0]
    return picture.convert("RGB")
