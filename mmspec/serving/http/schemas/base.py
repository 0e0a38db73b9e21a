"""What all request bodies share: fields of OpenAI's that are not applied, and null, which is a field left out."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def encodable(text: str) -> str:
    """Return a text that can be written as UTF-8.

    Args:
        text: what was sent; JSON may escape halves of surrogate pairs.

    Raises:
        ValueError: for half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text holds half of a surrogate pair: send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(encodable)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=0, lt=2**31)]
FIRST_ERROR = Field(fail_fast=True)
"""Of a list: the check ends at the first wrong entry."""


class ApiFields(BaseModel):
    """A body, or an object in one.

    Unknown fields are refused, and null is the same as leaving a field out.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    HARMLESS: ClassVar[frozenset[str]] = frozenset()
    """Fields of OpenAI's that would not change the answer: they are taken and have no effect."""
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's that are not applied, with the values that have no effect; others are refused."""

    @model_validator(mode="before")
    @classmethod
    def leave_out_what_is_not_applied(cls, body: Any) -> Any:
        """Drop fields without an effect.

        Args:
            body: what was sent.

        Returns:
            The body without them.

        Raises:
            ValueError: for a field that is not applied, with a value that would have an effect.
        """
        if not isinstance(body, dict):
            return body
        sent = {name: value for name, value in body.items() if value is not None and name not in cls.HARMLESS}
        for name, neutral in cls.NEUTRAL.items():
            if name in sent and not any(_is(sent[name], value) for value in neutral):
                shown = "".join(f" or send {value!r}" for value in neutral)
                raise ValueError(f"{name} is not supported by this server: leave it out{shown}")
        return {name: value for name, value in sent.items() if name not in cls.NEUTRAL}


def _is(value: Any, neutral: Any) -> bool:
    return value == neutral and type(value) in (type(neutral), float, int)


class ApiBody(ApiFields):
    """The body of a request.

    Attributes:
        model: id of the model; it may be left out where an endpoint has one model.
    """

    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {
            "metadata",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        }
    )

    model: str | None = None
