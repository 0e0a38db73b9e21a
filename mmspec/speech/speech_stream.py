"""Speech piece by piece, of one text or of texts that arrive one by one; and whole sentences of text that is still being written."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from mmspec.speech.sound.speech import Speech
from mmspec.utils.strict import strict

_END = re.compile(r"(?<=[.!?;:\n])\s+|\n+")


@strict
def whole_sentences(chunks: Iterable[str]) -> Iterator[str]:
    """Join pieces of text and yield every sentence as soon as the text behind its end begins.

    A sentence ends at a full stop, exclamation mark, question mark, colon or semicolon before white space, or at a line break. Use it on
    what a language model writes; a number such as 3.5 is not cut.

    Args:
        chunks: pieces of text of any length, such as those of a transformers streamer.

    Yields:
        Sentences without white space around them; none is empty.
    """
    text = ""
    for chunk in chunks:
        text += chunk
        *ended, text = _END.split(text)
        yield from (each.strip() for each in ended if each.strip())
    if text.strip():
        yield text.strip()


class SpeechStream(Iterator[Tensor]):
    """Iterator over pieces of sound, float [samples]; together they are the waveform.

    Args:
        saying: the generation that produces them.
    """

    def __init__(self, saying: Any):
        self._saying, self._pieces = saying, iter(saying)

    def __next__(self) -> Tensor:
        return next(self._pieces)[1]

    @property
    def speech(self) -> Speech:
        """What was synthesized so far; after the last piece, what `synthesize` returns. Its seconds include the time between pieces."""
        return self._saying.speech


class SentenceStream(SpeechStream):
    """Iterator over pieces of sound, float [samples], of texts that arrive one by one. The next text is asked for when the sound of the one
    before is complete.

    Args:
        texts: the texts, one a request.
        begin: starts the stream of the text with a number.

    Attributes:
        speeches: what `synthesize` returns for each text, in order; the last one so far while its sound still comes.
    """

    def __init__(self, texts: Iterable[str], begin: Callable[[str, int], Any]):
        self._texts, self._begin, self._running = iter(texts), begin, None
        self._done: list[Speech] = []

    def __next__(self) -> Tensor:
        while True:
            if self._running is None:
                self._running = self._begin(next(self._texts), len(self._done))
            piece = next(self._running, None)
            if piece is not None:
                return piece
            self._done.append(self._running.speech)
            self._running = None

    @property
    def speech(self) -> Speech:
        """What was synthesized so far of the last text. ValueError before the first."""
        if not self.speeches:
            raise ValueError("no text has been spoken: ask for a piece of sound first")
        return self.speeches[-1]

    @property
    def speeches(self) -> list[Speech]:
        """What was spoken so far, one a text."""
        return self._done + ([] if self._running is None else [self._running.speech])
