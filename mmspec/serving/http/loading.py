"""Models by name for a server, each with the thread that runs it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.loading.recsys import load_recommender
from mmspec.loading.speech import Speaker, load_speaker
from mmspec.loading.text import load_pair
from mmspec.loading.vision import Loaded, check_decoder, drafting_method, load_image_model, with_image_drafter
from mmspec.minis import TEXT_CHAT
from mmspec.run.config import Config
from mmspec.serving.engine import Engine
from mmspec.serving.http.models import (
    ImageServed,
    RecognizerServed,
    RecommenderServed,
    ServedModels,
    SpeechServed,
    SpeechWorkerServed,
    TextServed,
)
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.worker import ModelWorker
from mmspec.serving.models.speech import SpeechOptions
from mmspec.text.inputs.vision_inputs import has_template
from mmspec.utils.devices import device_of
from mmspec.vision.codes.registry import method_of
from mmspec.vision.families.base import ImageModel
from mmspec.vision.plan import usual_window


@dataclass(frozen=True)
class ModelNames:
    """What a server loads.

    Args:
        text: settings of the language model and its drafter, as of `mmspec text`; None for no language model.
        names: names of the others by kind: image, speech, recognizer, recommender.
        drafters: names of their drafters by kind; those left out are the defaults of the other commands.
        device: where they run.
        dtype: of their weights.
    """

    text: Config | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    drafters: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "float32"


def load_served(
    names: ModelNames,
    limits: ServerLimits,
    told: Callable[[str], Any] | None = None,
    *,
    engines: bool = True,
    clients: Collection[str] = (),
) -> ServedModels:
    """Load all models of a server and start their threads.

    Args:
        names: what to load.
        limits: bounds of rows and queues.
        told: called with the name of each model before it is loaded.
        engines: run speech and pictures in engines where the models allow; False for workers, which run one request at a time. Text
            always runs in an engine.
        clients: those that places of every model are kept for; see `client_names`.

    Returns:
        The models.

    Raises:
        ValueError, FileNotFoundError: for what cannot be loaded or served, in one line.
    """
    found: dict[str, Any] = {}
    room = _Room(limits, clients)
    if names.text is not None:
        _tell(told, names.text.target.path)
        found["text"] = _text(names.text, room)
    for kind, name in names.names.items():
        _tell(told, name)
        found[kind] = _OTHERS[kind](name, names, room, engines)
    return ServedModels(**found)


def model_id(kind: str, name: str) -> str:
    """Return the id that requests give for a model.

    Args:
        kind: its kind.
        name: its name on the command line: the mini of a kind has the kind in its id, a local folder or file is called by its last part.
    """
    if name == "mini":
        return f"mini-{kind}"
    path = Path(name).expanduser()
    return path.resolve().name if path.exists() else name


def _tell(told: Callable[[str], Any] | None, name: str) -> None:
    if told is not None:
        told(name)


@dataclass(frozen=True)
class _Room:
    """How many requests of a model may run and wait."""

    limits: ServerLimits
    clients: Collection[str]

    @property
    def of_engine(self) -> dict[str, Any]:
        """Arguments of `Engine`. Where several requests run at a time, one more row is kept for short ones."""
        limits = self.limits
        shared = {"max_rows": limits.max_rows, "max_queue": limits.max_queue, "clients": self.clients}
        return shared | {"short_rows": int(limits.max_rows > 1)}

    def worker(self, kind: str) -> ModelWorker:
        return ModelWorker(f"mmspec-{kind}", self.limits.max_queue, self.limits.max_rows, self.clients)


def _text(config: Config, room: _Room) -> TextServed:
    pair, section = load_pair(config), config.drafter
    if pair.name == "mini" and not has_template(pair.tokenizer):
        pair.tokenizer.chat_template = TEXT_CHAT
    options = {"accept": pair.accept, "draft_length": section.length, "tree": section.tree}
    engine = Engine(pair.target, pair.drafter, **room.of_engine, **options)
    return TextServed(model_id("text", pair.name), engine, pair)


def _image(name: str, names: ModelNames, room: _Room, engines: bool) -> ImageServed:
    drafter = names.drafters.get("image")
    loaded = load_image_model(name, names.dtype, device_of(names.device))
    check_decoder(loaded)
    loaded = with_image_drafter(loaded, drafter)
    method = drafting_method(loaded, [None], drafter)
    engine = _picture_engine(loaded, method, room) if engines else None
    return ImageServed(model_id("image", name), loaded, room.worker("image"), method, engine)


def _picture_engine(loaded: Loaded, method: str, room: _Room) -> Engine | None:
    """The engine of an image model; None where its method is not token-exact, so that pictures would be others than the method's."""
    model = loaded.model
    if not isinstance(model, ImageModel) or method_of(method).rule(model).exactness != TOKEN_EXACT:
        return None
    length = usual_window(method_of(method)) - 1
    return Engine(model, method=method, draft_length=length, **room.of_engine)


def _speech(name: str, names: ModelNames, room: _Room, engines: bool) -> SpeechServed | SpeechWorkerServed:
    loaded = load_speaker(name, names.drafters.get("speech"), names.dtype, device_of(names.device))
    engine = _speech_engine(loaded, room) if engines else None
    if engine is None:
        return SpeechWorkerServed(model_id("speech", name), loaded, room.worker("speech"))
    return SpeechServed(model_id("speech", name), engine, loaded)


def _speech_engine(loaded: Speaker, room: _Room) -> Engine | None:
    """The engine of a speech model; None where its rows cannot join a running generation, or their rule depends on the temperature."""
    if getattr(loaded.model, "draws_always", False):
        return None
    try:
        engine = Engine(loaded.model, loaded.drafter, **room.of_engine)
    except ValueError:
        return None
    try:
        engine.model.read(next(iter(loaded.examples.get("texts", ())), "a"), SpeechOptions())
    except ValueError:
        engine.close()
        return None
    return engine


def _recognizer(name: str, names: ModelNames, room: _Room, engines: bool) -> RecognizerServed:
    from mmspec.loading.hearing import load_transcriber

    if name == "mini":
        raise ValueError("recognizer is mini, but no recogniser ships with mmspec: give a folder or a hub name")
    loaded = load_transcriber(name, names.drafters.get("recognizer", "none"), names.device, names.dtype)
    return RecognizerServed(model_id("recognizer", name), loaded, room.worker("recognizer"))


def _recommender(name: str, names: ModelNames, room: _Room, engines: bool) -> RecommenderServed:
    loaded = load_recommender(name, None, names.drafters.get("recommender"), names.dtype, device_of(names.device))
    return RecommenderServed(model_id("recommender", name), loaded, room.worker("recommender"))


_OTHERS: dict[str, Callable[[str, ModelNames, _Room, bool], Any]] = {
    "image": _image,
    "speech": _speech,
    "recognizer": _recognizer,
    "recommender": _recommender,
}
