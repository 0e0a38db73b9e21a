"""Errors in the shape of the OpenAI API: `{"error": {"message", "type", "param", "code"}}`."""

import json
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from mmspec.core.result import DecodeError
from mmspec.serving.model_thread import EngineClosed

_LOG = logging.getLogger("mmspec.serving")
_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 504: "timeout_error"}
GONE = 499
"""Status noted for requests whose client has left; it is not sent."""
_SHOWN = 60  # characters of a wrong value that are shown


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
    if isinstance(error, (EngineClosed, CancelledError)):  # whose requests are cancelled by nobody else
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

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return error.response()
        what = f"{request.method} {request.url.path[:100]!r}"
        line = {404: f"there is no {what} here", 405: f"there is no {what} here, but with another method"}.get(error.status_code)
        return JSONResponse(error_body(error.status_code, line or str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unknown_error(_: Request, error: Exception) -> JSONResponse:
        return _failed(error).response()  # the server logs it


_TYPE_ERRORS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
}
"""What a field takes, by pydantic's error for a value of another type."""
_RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda context: f"a number above {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"a number of at least {_number(context['ge'])}",
    "less_than": lambda context: f"a number below {_number(context['lt'])}",
    "less_than_equal": lambda context: f"a number of at most {_number(context['le'])}",
    "finite_number": lambda _: "a finite number",
    "literal_error": lambda context: context["expected"],
    "union_tag_invalid": lambda context: f"an object whose {context['discriminator']} is {context['expected_tags'].replace(', ', ' or ')}",
    "union_tag_not_found": lambda context: f"an object with {context['discriminator']}",
    "too_long": lambda context: f"at most {context['max_length']}",
    "too_short": lambda context: f"at least {context['min_length']}",
    "string_too_long": lambda context: f"at most {context['max_length']}",
    "string_too_short": lambda context: f"at least {context['min_length']}",
}
"""What a field takes, by pydantic's error for a value of the right type."""
_COUNTS = ("too_long", "too_short", "string_too_long", "string_too_short")


def invalid_fields(error: ValidationError, given: Mapping[str, Any]) -> ApiError:
    """Return the error for the first field that is wrong: its name, its value, and what it takes.

    Args:
        error: pydantic's. Of a field with several forms it has one for each; that which went deepest fits best.
        given: the fields that were sent.
    """
    found = [(_place(each["loc"], given), each) for each in error.errors(include_url=False, include_input=False)]
    same = [(place, each) for place, each in found if place[:1] == found[0][0][:1]]
    place, worst = max(same, key=lambda pair: (len(pair[0]), pair[1]["type"] not in _TYPE_ERRORS))
    kind, context, name = worst["type"], worst.get("ctx", {}), ".".join(map(str, place))
    if kind == "extra_forbidden":
        return ApiError(400, f"unknown field {name[:100]!r}: leave it out", name[:100], "unknown_field")
    if kind == "missing":
        null = place[-1:] == worst["loc"][-1:]
        name = ".".join(map(str, place if null else (*place, worst["loc"][-1])))
        return ApiError(400, f"{name} is {'null: give a value' if null else 'missing'}", name)
    if kind == "value_error":
        message = str(context["error"])
        return ApiError(400, message if not name or message.startswith(name) else f"{name}: {message}", name or None)
    if kind in _RULES:
        rule = _RULES[kind](context)
    else:  # every form of the field that is no deeper
        rules = [_TYPE_ERRORS.get(each["type"], str(each["msg"])) for other, each in same if other == place]
        rule = " or ".join(dict.fromkeys(rules))
    described = _described(_value(given, place), kind in _COUNTS)
    return ApiError(400, f"{name or 'the body'} {described}: give {rule}", name or None)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _place(location: Sequence[Any], given: Any) -> tuple[int | str, ...]:
    """The fields of a place that pydantic names, without the forms of fields in between."""
    found: list[int | str] = []
    for part in location:
        keys: Any = given if isinstance(given, Mapping) else range(len(given)) if isinstance(given, list) else ()
        if part in keys:
            found.append(part)
            given = given[part]
    return tuple(found)


def _value(given: Any, place: Sequence[int | str]) -> Any:
    for part in place:
        given = given[part]
    return given


def _described(value: Any, counted: bool) -> str:
    """A value as JSON has it; its length where that is wrong, and of what is long."""
    if isinstance(value, (str, list, dict)) and (counted or len(value) > _SHOWN):
        return f"has {len(value)} {'characters' if isinstance(value, str) else 'entries' if isinstance(value, list) else 'fields'}"
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"is {text if len(text) <= 2 * _SHOWN else text[:_SHOWN] + '...'}"
