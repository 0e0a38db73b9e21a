"""Recommendations on the page: both searches for a history, and their lists."""

from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import Any

from mmspec import minis
from mmspec.core.records import Step
from mmspec.loading.recsys import MINIS, Recommender, items_of
from mmspec.recsys.generation import Recommendations, recommend
from mmspec.recsys.methods import METHODS, method_of
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration
from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.rendering import Sameness, board
from mmspec.serving.ui.settings import draft_length_field, number_field, text_field, whole_field

DRAWING = tuple(name for name, method in METHODS.items() if not method.plain)
"""Methods that draft."""
MOST_ITEMS = 100
"""Most items of a list on the page."""


class ListView:
    """A search as far as it is committed, and its list at the end.

    Args:
        levels: levels of a path.

    Attributes:
        committed: levels so far.
        items: the items, best first; None before the end.
        scores: their scores.
    """

    def __init__(self, levels: int):
        self.levels, self.committed = levels, 0
        self.items: list[Any] | None = None
        self.scores: list[float] = []

    def add(self, step: Step) -> None:
        """Take in a round.

        Args:
            step: the round.
        """
        self.committed += len(step.committed.values[0])

    def finish(self, out: Recommendations) -> None:
        """Take in the result.

        Args:
            out: the items and their scores.
        """
        self.items, self.scores = list(out.items[0]), list(out.scores[0])


@dataclass(frozen=True)
class RecommendationSide:
    """The recommender of a page.

    Args:
        model: the model with its catalogue and drafter.
    """

    model: UiModel

    @property
    def recommender(self) -> Recommender:
        """The model, its catalogue and its drafter."""
        return self.model.loaded

    @property
    def examples(self) -> list[str]:
        """Histories to begin with, as they are typed."""
        if self.recommender.name not in MINIS:
            return []
        return [", ".join(map(str, history)) for history in _mini(self.recommender.name).examples[:6]]

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters: the recommender's own, and those of the mini."""
        own = tuple(_mini(self.recommender.name).drafters) if self.recommender.name in MINIS else ()
        return tuple(dict.fromkeys((self.recommender.drafter_name, *own)))

    def compare(
        self,
        history: Any,
        method: str,
        drafter: str,
        draft_length: Any,
        k: Any,
        temperature: Any,
        seed: Any,
        unseen: bool = False,
        slow: Any = 1,
    ) -> LiveComparison:
        """Return plain and speculative search for a history, not yet run.

        Args:
            history: the user's items, oldest first, separated by commas.
            method: one of `DRAWING`.
            drafter: one of `drafters`.
            draft_length: levels drafted a round, or "auto".
            k, temperature, seed, unseen: as in `mmspec.recsys.recommend`. Temperature is not read by methods that take the best items.
            slow: how many times slower it is shown.

        Returns:
            The comparison.

        Raises:
            ValueError: for an invalid value, in one line. Others are refused by `mmspec.recsys.recommend` when it runs.
        """
        loaded, samples = self.recommender, method_of(method).samples
        items = self.history(history)
        options: dict[str, Any] = {
            "k": _most("items", whole_field("items", k, 1)),
            "seed": whole_field("seed", seed),
            "unseen": bool(unseen),
            "temperature": number_field("temperature", temperature) if samples else None,
        }
        drafting = {"drafter": self._drafter(drafter), "method": method, "draft_length": draft_length_field("draft length", draft_length)}
        plain = {"drafter": None, "method": method if samples else "plain"}

        def search(more: dict[str, Any], on_step: Any) -> Recommendations:
            return recommend(loaded.model, [items], catalogue=loaded.catalogue, on_step=on_step, **(options | more))

        def view() -> ListView:
            return ListView(loaded.catalogue.levels)

        return LiveComparison(
            [
                LiveGeneration("plain", lambda _, on_step: search(plain, on_step), view, ("plain", method)),
                LiveGeneration("speculative", lambda _, on_step: search(drafting, on_step), view, (drafter, method)),
            ],
            number_field("slow motion", slow),
        )

    def history(self, text: Any) -> list[Any]:
        """Return the items of a history that was typed.

        Args:
            text: items, separated by commas.

        Raises:
            ValueError: for an empty history, and for what is not in the catalogue.
        """
        catalogue = self.recommender.catalogue
        items = items_of(text_field("history", text, "give items, oldest first, separated by commas"), catalogue, "history")
        catalogue.tokens(items)
        return items

    def board(self, comparison: LiveComparison, history: str) -> str:
        """Render both panes.

        Args:
            comparison: what `compare` returned.
            history: as in `compare`.

        Returns:
            HTML.
        """
        catalogue = self.recommender.catalogue
        lists = [each.view.items or [] for each in comparison.generations]
        rows = {}
        for number, each in enumerate(comparison.generations):
            other, view = lists[1 - number], each.view
            best, levels = max(view.scores, default=0.0), catalogue.levels
            rows[each.name] = [
                {
                    "item": item,
                    "name": catalogue.name(item),
                    "score": score,
                    "width": 100 * exp(levels * (score - best)),
                    "other": other.index(item) + 1 if item in other else None,
                }
                for item, score in zip(view.items or [], view.scores, strict=True)
            ]
        shown = [catalogue.name(item) for item in self.history(history)[-catalogue.most :]]
        return board(
            "recommendations.html", comparison, "levels", _sameness(comparison), rows=rows, history=shown, complete=comparison.done
        )

    def _drafter(self, name: str) -> Any:
        """The drafter called `name`, as `recommend` takes it."""
        if name == self.recommender.drafter_name:
            return self.recommender.drafter
        if name not in self.drafters:
            raise ValueError(f"unknown drafter {name!r:.40}; valid: {', '.join(self.drafters)}")
        found, model = _mini(self.recommender.name).drafters[name], self.recommender.model
        return found.to(model.device, model.dtype) if hasattr(found, "parameters") else found


@lru_cache(maxsize=1)
def _mini(name: str) -> minis.Mini:
    return minis.load(MINIS[name])


def _most(name: str, value: int) -> int:
    if value > MOST_ITEMS:
        raise ValueError(f"{name} is {value}: the page shows at most {MOST_ITEMS}")
    return value


def _sameness(comparison: LiveComparison) -> Sameness | None:
    if not comparison.done:
        return None
    plain, other = (each.out for each in comparison.generations)
    return Sameness(plain.items[0], other.items[0], other.stats.exactness, "items")
