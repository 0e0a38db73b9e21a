"""Text on the page: both generations of a prompt, and their tokens by round."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mmspec import minis
from mmspec.core.records import Step
from mmspec.loading.model_drafter import aligned_model
from mmspec.loading.text import MINIS, Pair
from mmspec.run.config import changed
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration
from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.rendering import Sameness, board
from mmspec.serving.ui.settings import draft_length_field, number_field, text_field, whole_field
from mmspec.text.pieces import TextRounds

ACCEPT = ("exact", "match", "token", "block", "typical", "lenience", "ensemble", "topk-gap")
"""Accept rules that the page offers."""
_MODEL_FREE = ("lookup", "suffix", "ngram", "recycling", "jacobi", "lookahead", "early-exit", "layer-skip", "windowed")


class TextView:
    """The rounds of a generation as text.

    Args:
        decode: maps ids to text.

    Attributes:
        rounds: what was committed round by round.
        rest: text of an incomplete character at the end.
    """

    def __init__(self, decode: Any):
        self._record = TextRounds(decode)
        self.rest = ""

    @property
    def rounds(self) -> list[Any]:
        """The rounds so far."""
        return list(self._record.found)

    def add(self, step: Step) -> None:
        """Take in a round.

        Args:
            step: the round.
        """
        self._record(step)

    def finish(self, out: Any) -> None:
        """Take in the result.

        Args:
            out: the `Generation`; not read.
        """
        self.rest = self._record.pieces.rest()


@dataclass(frozen=True)
class TextSide:
    """The language model of a page.

    Args:
        model: the model with its drafter.
    """

    model: UiModel

    @property
    def pair(self) -> Pair:
        """Target, drafter and tokenizer."""
        return self.model.loaded

    @property
    def examples(self) -> list[str]:
        """Prompts to begin with."""
        return [str(each) for each in self.pair.examples]

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters: the pair's own, those that ship with a mini, and those that need no model."""
        own = ("model", *minis.shipped_drafters(MINIS[self.pair.name])) if self.pair.name in MINIS else ()
        return tuple(dict.fromkeys((self.pair.drafter_name, *own, *_MODEL_FREE)))

    @property
    def chats(self) -> bool:
        """True if the tokenizer has a chat template."""
        return getattr(self.pair.tokenizer, "chat_template", None) is not None

    def compare(
        self,
        prompt: Any,
        drafter: str,
        accept: str,
        draft_length: Any,
        temperature: Any,
        top_p: Any,
        max_new_tokens: Any,
        seed: Any,
        slow: Any = 1,
        chat: bool = False,
    ) -> LiveComparison:
        """Return plain and speculative generation of a prompt, not yet run.

        Args:
            prompt: the text to continue.
            drafter: one of `drafters`.
            accept: one of `ACCEPT`.
            draft_length: draft tokens a round, or "auto".
            temperature, top_p, max_new_tokens, seed: as in `mmspec.text.generate`.
            slow: how many times slower it is shown.
            chat: wrap the prompt in the chat template.

        Returns:
            The comparison.

        Raises:
            ValueError: for an invalid value, in one line. Others are refused by `mmspec.text.generate` when it runs.
        """
        pair = replace(self.pair, chat=bool(chat))
        text = text_field("prompt", prompt, "write the beginning of a text")
        options: dict[str, Any] = {
            "temperature": number_field("temperature", temperature),
            "top_p": None if number_field("top-p", top_p) == 1 else top_p,
            "max_new_tokens": whole_field("new tokens", max_new_tokens, 1),
            "seed": whole_field("seed", seed),
            "tree": None,
            "stop_below": None,
        }
        drafting = {
            "drafter": self._drafter(drafter, options["temperature"], accept),
            "accept": accept,
            "draft_length": draft_length_field("draft length", draft_length),
        }
        if pair.view is not None:
            drafting["view"] = pair.view

        def generate(more: dict[str, Any], on_step: Any) -> Any:
            return pair.generate(pair.inputs([text]), on_step=on_step, **(options | more))

        def view() -> TextView:
            return TextView(pair.decode)

        plain = {"drafter": None, "accept": "exact"}
        return LiveComparison(
            [
                LiveGeneration("plain", lambda _, on_step: generate(plain, on_step), view, "plain"),
                LiveGeneration("speculative", lambda _, on_step: generate(drafting, on_step), view, (drafter, accept)),
            ],
            number_field("slow motion", slow),
        )

    def board(self, comparison: LiveComparison, prompt: str) -> str:
        """Render both panes.

        Args:
            comparison: what `compare` returned.
            prompt: the text that is continued.

        Returns:
            HTML.
        """
        return board("text.html", comparison, "tokens", _sameness(comparison), prompt=prompt)

    def _drafter(self, name: str, temperature: float, accept: str) -> Any:
        """The drafter called `name`, as `generate` takes it. One with another tokenizer is made for a temperature and a rule."""
        if name == self.pair.drafter_name:
            if self.pair.own_tokenizer is None:
                return self.pair.drafter
            return aligned_model(replace(self.pair, config=changed(self.pair.config, "run", temperature=temperature), accept=accept), {})
        if name in _MODEL_FREE:
            return name
        if name not in self.drafters:
            raise ValueError(f"unknown drafter {name!r:.40}; valid: {', '.join(self.drafters)}")
        return _shipped(MINIS[self.pair.name])[name].to(self.pair.target.device, self.pair.target.dtype)


@lru_cache(maxsize=1)
def _shipped(name: str) -> dict[str, Any]:
    return minis.load(name).drafters


def _sameness(comparison: LiveComparison) -> Sameness | None:
    if not comparison.done:
        return None
    plain, other = (each.out for each in comparison.generations)
    ids = [out.tokens[0, : out.lengths[0]].tolist() for out in (plain, other)]
    return Sameness(ids[0], ids[1], other.stats.exactness, "tokens")
