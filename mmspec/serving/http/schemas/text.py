"""Bodies of `/v1/completions` and `/v1/chat/completions`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mmspec.serving.http.schemas.base import FIRST_ERROR, ApiBody, ApiFields, Seed, Temperature, Text, TopK, TopP

_UNUSED: dict[str, tuple[Any, ...]] = {"frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},)}
STOPS = 16
"""Most stop strings of a request."""
Stop = Annotated[Text, Field(min_length=1, max_length=256)]


class StreamOptions(ApiFields):
    """Options of a stream.

    Attributes:
        include_usage: send the token counts in a last chunk.
    """

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}

    include_usage: bool = False


class TextBody(ApiBody):
    """What completions and chats share.

    Attributes:
        n: outputs of each prompt; output i draws with seed + i.
        seed: of the noise; drawn at random where it is left out, and told in the response.
        temperature: 0 is greedy decoding.
        top_p, top_k, repetition_penalty: as in `mmspec.text.generate`.
        stop: ends an output before the first of these strings.
        stream: send the text as it is committed.
        stream_options: options of the stream.
    """

    n: Annotated[int, Field(ge=1)] = 1
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stop: Stop | Annotated[list[Stop], FIRST_ERROR, Field(max_length=STOPS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    @abstractmethod
    def reported(self) -> int | None:
        """How many of the most likely tokens are told beside each; None for no log-probabilities."""
        ...

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(TextBody):
    """The body of `/v1/completions`.

    Attributes:
        prompt: a text, several, the ids of one, or those of several.
        max_tokens: most new tokens; 16 by default, as OpenAI's.
        logprobs: tell the log-probability of every token, and those of this many most likely ones.
    """

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_UNUSED,
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
    }

    prompt: (
        Text
        | Annotated[list[Text], FIRST_ERROR]
        | Annotated[list[int], FIRST_ERROR]
        | Annotated[list[Annotated[list[int], FIRST_ERROR]], FIRST_ERROR]
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def reported(self) -> int | None:
        """How many of the most likely tokens are told beside each; None for no log-probabilities."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one an entry."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[each for each in self.prompt if isinstance(each, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]


class _Part(ApiFields):
    HARMLESS: ClassVar[frozenset[str]] = frozenset({"prompt_cache_breakpoint"})


class TextPart(_Part):
    """A part of a message: text.

    Attributes:
        type: "text".
        text: the text.
    """

    type: Literal["text"]
    text: Text


class ImageUrl(ApiFields):
    """Where a picture is.

    Attributes:
        url: a data URL with the picture itself, base64: nothing is fetched from other addresses.
        detail: not read: pictures are read in the size that the model's processor gives them.
    """

    url: Text
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(_Part):
    """A part of a message: a picture, for models that read pictures.

    Attributes:
        type: "image_url".
        image_url: the picture.
    """

    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class ChatMessage(ApiFields):
    """A message of a chat.

    Attributes:
        role: who says it, as the model's chat template names it.
        content: what is said, and shown.
    """

    HARMLESS: ClassVar[frozenset[str]] = frozenset({"name"})
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "refusal": (),
        "tool_calls": ([],),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], FIRST_ERROR]

    @property
    def parts(self) -> list[TextPart | ImagePart]:
        """The content in parts."""
        return [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else list(self.content)

    @property
    def pictures(self) -> list[str]:
        """The URLs of its pictures."""
        return [part.image_url.url for part in self.parts if isinstance(part, ImagePart)]

    @property
    def plain(self) -> dict[str, Any]:
        """The message as chat templates of tokenizers take it: its text alone."""
        return {"role": self.role, "content": "".join(part.text for part in self.parts if isinstance(part, TextPart))}

    @property
    def shown(self) -> dict[str, Any]:
        """The message as chat templates of processors take it: in parts, pictures without their content."""
        parts = [{"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in self.parts]
        return {"role": self.role, "content": parts}


class ChatBody(TextBody):
    """The body of `/v1/chat/completions`. `prediction` could make an answer faster, and would not change it.

    Attributes:
        messages: the chat so far.
        max_tokens, max_completion_tokens: most new tokens, two names of one field; by default what the server and the model allow.
        logprobs: tell the log-probability of every token.
        top_logprobs: and those of this many most likely ones.
    """

    HARMLESS: ClassVar[frozenset[str]] = ApiBody.HARMLESS | {"parallel_tool_calls", "prediction"}
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_UNUSED,
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": ("medium",),
        "web_search_options": (),
    }

    messages: Annotated[list[ChatMessage], FIRST_ERROR, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def top_of_what_is_told(self) -> Self:
        """Refuse `top_logprobs` without `logprobs`.

        Returns:
            The body.

        Raises:
            ValueError: if only `top_logprobs` was sent.
        """
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is for logprobs: send logprobs true, too, or leave it out")
        return self

    @property
    def reported(self) -> int | None:
        """How many of the most likely tokens are told beside each; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
