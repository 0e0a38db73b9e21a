"""What all request bodies share: unknown fields are refused, and so are values of OpenAI's fields that this server does not apply."""

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


class ApiBody(BaseModel):
    """The body of a request.

    Attributes:
        model: id of the model; it may be left out where an endpoint has one model.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's that are not applied, with the values that have no effect; others are refused."""

    model: str | None = None

    @model_validator(mode="before")
    @classmethod
    def refuse_not_applied(cls, body: Any) -> Any:
        """Drop fields with a value that has no effect.

        Args:
            body: what was sent.

        Returns:
            The body without them.

        Raises:
            ValueError: for another value of such a field.
        """
        if not isinstance(body, dict):
            return body
        for name, neutral in cls.NEUTRAL.items():
            if name in body and not any(body[name] == value and type(body[name]) in (type(value), float, int) for value in neutral):
                shown = " or ".join("null" if value is None else repr(value) for value in neutral)
                raise ValueError(f"{name} is not supported by this server: leave it out, or send {shown}")
        return {name: value for name, value in body.items() if name not in cls.NEUTRAL}
