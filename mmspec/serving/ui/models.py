"""The models of the page, each with the thread that runs it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from mmspec.loading.text import Pair, load_pair
from mmspec.serving.http.loading import ModelNames, load_served, model_id
from mmspec.serving.http.models import WorkerServed
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.worker import ModelWorker

QUEUE = 64
"""Most runs of a model that wait."""


@dataclass(frozen=True)
class UiModel:
    """A model of the page.

    Args:
        served: the model with its drafter and the thread that runs its requests one by one.
        warm: keys of the generations that have run before, see `LiveComparison.run`.
    """

    served: WorkerServed
    warm: set[Hashable] = field(default_factory=set)

    @property
    def loaded(self) -> Any:
        """What was loaded: `Pair`, `Loaded` (images), `Speaker` or `Recommender`."""
        return self.served.loaded


def load_ui_models(names: ModelNames, told: Callable[[str], Any] | None = None) -> dict[str, UiModel]:
    """Load all models of a page and start their threads.

    Args:
        names: what to load; recognisers are not shown.
        told: called with the name of each model before it is loaded.

    Returns:
        The models by kind: text, image, speech, recommender.

    Raises:
        ValueError, FileNotFoundError: for what cannot be loaded or shown, in one line.
    """
    found: dict[str, UiModel] = {}
    if names.text is not None:
        if told is not None:
            told(names.text.target.path)
        pair = load_pair(names.text)
        _check_reads_text(pair)
        worker = ModelWorker("mmspec-text", QUEUE)
        found["text"] = UiModel(WorkerServed(model_id("text", pair.name), pair, worker))
    if names.names:
        others = load_served(replace(names, text=None), ServerLimits(max_queue=QUEUE), told, engines=False)
        found |= {kind: UiModel(served) for kind, served in others.all.items() if isinstance(served, WorkerServed)}
    return found


def _check_reads_text(pair: Pair) -> None:
    if pair.hears:
        raise ValueError(f"{pair.name} reads sound, and the page shows models that read text: take mmspec transcribe")
    if pair.examples and not isinstance(pair.examples[0], str):
        raise ValueError(f"{pair.name} reads more than one text: take mmspec caption")
