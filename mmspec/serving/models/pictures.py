"""A model of pictures of codes in an engine: what all requests share, and what is read of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch

from mmspec.core.control import Control
from mmspec.core.decode import Rounds
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.processors.raster import Grammar
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import STOP, DefaultStopping
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.models.guidance import Guided, GuidedRows
from mmspec.run.arguments import check, public_call
from mmspec.run.request import Request, refuse
from mmspec.serving.models.base import RequestOutput
from mmspec.serving.models.rows import by_rows, check_greedy, check_one_row, first_control, shared_rule
from mmspec.vision.codes.methods import Method
from mmspec.vision.codes.registry import method_of
from mmspec.vision.codes.usual import code_record
from mmspec.vision.continuous.methods import continuous_model
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel, Size
from mmspec.vision.families.prompts import Prompt
from mmspec.vision.generation import Pictures
from mmspec.vision.plan import PicturePlan, guidance_of


@dataclass(frozen=True)
class PictureSettings:
    """What all requests of a model of pictures share, beside its drafter, as in `mmspec.vision.generate`.

    Args:
        method: the method; its own accept rule is not used.
        size: pixels a side, or (height, width).
        couple, init: of windows.
    """

    method: str | Method | None = None
    size: Size | None = None
    couple: Coupler | None = None
    init: str | Initialiser | None = None


@public_call
@dataclass(frozen=True)
class PictureOptions:
    """The options of one request, as in `mmspec.vision.generate`.

    Args:
        seed: seed of the picture.
        temperature, top_k, top_p: how the distribution is formed.
        guidance: the scale of classifier-free guidance; None or 1 for none.
    """

    seed: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None


@dataclass(frozen=True)
class PictureWork:
    """One request, checked.

    Args:
        prompts: what is drawn, as `mmspec.vision.generate` takes it.
        model: the adapter that decodes its picture.
        encoded: its prompt, and its unconditional prompt where it is guided.
        pipeline: forms its distributions; `Guided` where it is guided.
        options: its options.
    """

    prompts: Any
    model: ImageModel
    encoded: Prompt
    pipeline: Pipeline
    options: PictureOptions

    together = True

    @property
    def guided(self) -> bool:
        """True if it has an unconditional prompt."""
        return isinstance(self.pipeline, Guided)

    @property
    def columns(self) -> int:
        """Positions of its prompts."""
        return self.encoded.mask.numel()

    @property
    def size(self) -> int:
        """How long it may run; see `EngineWork.size`."""
        return self.model.raster.length

    def output(self) -> "PictureOutput":
        """Return what takes in its codes."""
        return PictureOutput(self.model)


class PictureOutput(RequestOutput):
    """The codes of a picture, and how many of them every forward committed.

    Args:
        model: the adapter that decodes them.
    """

    def __init__(self, model: ImageModel):
        super().__init__(model.model.device)
        self.model = model
        self.runs: list[int] = []

    def add(self, values: Sequence[int], ended: bool) -> Sequence[int]:
        """Take in the codes of a round; see `RequestOutput.add`."""
        self.runs += [len(values)] * len(values)
        return values

    def result(self, tokens: Sequence[int], stats: Stats) -> Pictures:
        """Return the picture; see `RequestOutput.result`."""
        out = super().result(tokens, stats)
        runs = self.model.picture(torch.tensor([self.runs]))
        code_record(self.model.model, self.model.raster).add(out.tokens)
        return Pictures(self.model.picture(out.tokens), out.lengths, stats, self.model, out.tokens, runs)


@dataclass(frozen=True)
class PictureModel:
    """A model of pictures and a drafter that serve many requests.

    Args:
        model: the adapter.
        plan: method, accept rule and drafter.
        control: chooses draft lengths.
    """

    options: ClassVar[type] = PictureOptions
    settings: ClassVar[type] = PictureSettings
    model: ImageModel
    plan: PicturePlan
    control: Control

    @staticmethod
    def of(model: Any, request: Request, max_length: int | None, settings: PictureSettings) -> "PictureModel":
        """Check a model and a drafter, and open a session of both.

        Args:
            model: an image model of codes, or its adapter.
            request: drafter, accept rule, draft length and tree.
            max_length: None: a picture has as many codes as it has.
            settings: what all requests share beside these.

        Returns:
            The model.

        Raises:
            ValueError: for models, drafters and rules whose rows cannot join a running generation.
        """
        refuse("models whose outputs have no fixed length", max_length=max_length, stop_below=request.stop_below)
        check(couple=settings.couple)
        if continuous_model(model) is not None:
            raise ValueError(
                "this model writes continuous tokens, of which no rule is token-exact, so that pictures would depend on those beside them: "
                "use mmspec.vision.generate"
            )
        found = image_model(model)
        found = found if settings.size is None else found.resized(settings.size)
        if settings.method is not None and method_of(settings.method).rows is not None:
            raise ValueError("this method writes the rows of a picture side by side, so that no other picture can join: take jacobi")
        plan = PicturePlan.of(
            found, settings.method, request.drafter, tree=request.tree, couple=settings.couple, init=settings.init,
            accept=shared_rule(request),
        )  # fmt: skip
        length = request.draft_length
        plan = plan.windowed(length + 1 if isinstance(length, int) else length, rows=1)
        return PictureModel(found, plan, by_rows(plan.control))

    @property
    def rule(self) -> Accept:
        """The accept rule."""
        return self.plan.rule

    @property
    def max_length(self) -> int | None:
        """None: a picture has as many codes as it has."""
        return None

    def read(self, inputs: Any, options: PictureOptions) -> PictureWork:
        """Check a request and encode its prompt.

        Args:
            inputs: what to draw: a text, a class, a `mmspec.vision.ImagePrompt`, None for models without prompts; or the tensors that the
                model's processor returned for one picture.
            options: its options.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line.
        """
        given = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
        check_one_row(options)
        check_greedy(self.rule, options.temperature)
        Request.of(seed=options.seed, **given)
        Noise.from_seed([options.seed], 1)  # checks it
        scale: Any = guidance_of(self.model, options.guidance)
        prompts = inputs if isinstance(inputs, Mapping) else [inputs]
        found = self.model.prepared(prompts)
        if found.raster != self.model.raster:
            raise ValueError("this prompt makes a picture of another size, and the pictures of an engine have one: make an engine for it")
        formed = pipeline(**given, first=[Grammar(found.raster)])
        encoded = found.encode(prompts, guided=scale is not None)
        rows = len(encoded.mask) // (1 if scale is None else 2)
        if rows != 1:
            raise ValueError(f"a request of an engine is one picture, but the prompt has {rows} rows: submit them one by one")
        return PictureWork(prompts, found, encoded, formed if scale is None else Guided(formed.steps, scale), options)

    def open(self, works: Sequence[PictureWork], control: Control | None = None) -> Rounds:
        """Open a generation of some requests, one a row.

        Args:
            works: the requests.
            control: chooses draft lengths; by default those of the rounds before the rows join others.

        Returns:
            The generation. Nothing has run yet.

        Raises:
            ValueError: for a drafter whose rows cannot join a running generation.
        """
        processors = GuidedRows.of([work.pipeline for work in works])
        noise = Noise.from_seed([work.options.seed for work in works], len(works), self.model.model.device)
        drafter = self.plan.proposer(processors, lambda small: _beside([small.encode(each.prompts, guided=each.guided) for each in works]))
        found = Rounds(
            self.plan.target(processors),
            drafter,
            self.rule,
            _beside([work.encoded for work in works]),
            stopping=DefaultStopping(len(works), self.model.raster.length, device=self.model.model.device, full=STOP),
            noise=self.plan.noise(noise),
            control=first_control(self.control, drafter) if control is None else control,
        )
        found.refuse_fixed_rows()
        return found


def _beside(prompts: Sequence[Prompt]) -> Prompt:
    """The prompts of several requests: the conditional ones first, then the unconditional ones."""
    parts = [prompt.take_rows([0]) for prompt in prompts] + [prompt.take_rows([1]) for prompt in prompts if len(prompt.mask) == 2]
    return reduce(Prompt.join_rows, parts)
