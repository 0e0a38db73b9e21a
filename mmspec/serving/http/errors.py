"""Errors in the shape of the OpenAI API: `{"error": {"message", "type", "param", "code"}}`."""

import logging
import queue
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mmspec.core.result import DecodeError
from mmspec.serving.model_thread import EngineClosed

_LOG = logging.getLogger("mmspec.serving")
_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 504: "timeout_error"}
GONE = 499
"""Status noted for requests whose client has left; it is not sent."""
_FIELD, _KINDS = re.compile(r"[a-z_]+|\d+"), ("str", "int")  # of the places that pydantic names, those that are fields


class ApiError(HTTPException):
    """An error with its HTTP status.

    Args:
        status: the HTTP status.
        message: one line for the caller.
        param: the field that is wrong, if it is one.
        code: a word for programs, such as "model_not_found".
        headers: more headers of the response.
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def content(self) -> dict[str, Any]:
        """The body of the response."""
        return error_body(self.status_code, self.detail, self.param, self.code)

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.content, self.status_code, self.headers)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error.

    Args:
        status: the HTTP status.
        message, param, code: as in `ApiError`.
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    line = " ".join(message.split()).encode("utf-8", "replace").decode()
    return {"error": {"message": line, "type": kind, "param": param, "code": code}}


def api_error(error: BaseException) -> ApiError:
    """Return the API's error for what ended a request. The traceback of a failure is logged.

    Args:
        error: an exception of the library. ValueErrors are invalid arguments, in one line, but for those of rounds (`DecodeError`).
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, queue.Full):
        return ApiError(429, "too many requests are waiting: try again later", code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, EngineClosed):
        return ApiError(503, "the server is being stopped", code="stopping")
    if isinstance(error, ValueError) and not isinstance(error, DecodeError):
        return ApiError(400, str(error))
    _LOG.error("a request failed", exc_info=error)
    return _failed(error)


def _failed(error: BaseException) -> ApiError:
    return ApiError(500, str(error) if isinstance(error, FloatingPointError) else f"the request failed ({type(error).__name__})")


def timed_out(seconds: float) -> ApiError:
    """Return the error for a request that took longer than `seconds`."""
    return ApiError(504, f"the request did not end within {seconds:g} s", code="timeout")


def install_handlers(app: FastAPI) -> None:
    """Have all errors of `app` answered in the API's shape.

    Args:
        app: the application.
    """

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return invalid_fields(list(error.errors())).response()

    @app.exception_handler(HTTPException)
    async def known(_: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return error.response()
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unknown_error(_: Request, error: Exception) -> JSONResponse:
        return _failed(error).response()  # the server logs it


def invalid_fields(errors: list[Any]) -> ApiError:
    """Return the error for the first field that pydantic found wrong; of a field with several forms, for the one that fits best.

    Args:
        errors: pydantic's errors.
    """
    first = max((each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]), key=lambda each: len(each["loc"]))
    place = [str(part) for part in first["loc"] if part != "body"]
    field = ".".join(part for part in place if _FIELD.fullmatch(part) and part not in _KINDS) or None
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first.get('ctx', {}).get('error', 'it cannot be read')}")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field {'.'.join(place)[:100]!r}: leave it out", field, "unknown_field")
    if first["type"] == "missing":
        return ApiError(400, f"{field} is missing" if field else "the body is missing: send JSON", field)
    if first["type"] == "value_error":
        return ApiError(400, str(first["ctx"]["error"]), field)
    message = str(first["msg"]).replace("Input", "it", 1)
    return ApiError(400, f"{field or 'the body'}: {message}", field)
