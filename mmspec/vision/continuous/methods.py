"""Methods for pictures of continuous tokens, by name.

| name | a value is | its distribution | rule | exactness |
|---|---|---|---|---|
| plain | a token | as in density or aligned | none: plain sampling | distribution-exact |
| density | a token | the mixture (mixture heads) | token | distribution-exact |
| path | a token and its chain of states | the chain's | token | distribution-exact |
| stepwise | the same | the same | reflection step by step (De Bortoli et al. 2025, arXiv 2501.05370) | distribution-exact |
| block | the same | the same | block verification over all steps (Soen et al. 2026, 2606.13426) | distribution-exact |
| chain | the same | the same, several steps judged in one call of the head | none: plain sampling | distribution-exact |
| aligned | a token | a Gaussian, given noise that target and drafter share | token | distribution-exact |
| d-grs | the same | the same | several draft tokens a token (Bullo et al. 2026, 2609.17691) | distribution-exact |
| aligned-block | the same | the same | block (Sun et al. 2024, 2403.10444) | distribution-exact |
| cspd-compat | sets of tokens (masked models) | | the CSpD code's (Wang et al. 2024, 2411.11925) | lossy, not metered |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.chains.linear import LinearDraft
from mmspec.core.distributions.denoising_path import recorded
from mmspec.core.rules.block import Block
from mmspec.core.rules.d_grs import dgrs
from mmspec.core.rules.steps import BlockSteps, Stepwise
from mmspec.core.rules.token import Token
from mmspec.drafters.shapes import Chain, Comb, Shape, draw_with_replacement, sampled
from mmspec.utils.names import unknown
from mmspec.utils.strict import strict
from mmspec.vision.continuous.ar import ContinuousAR
from mmspec.vision.continuous.flow_schedule import FlowSchedule
from mmspec.vision.continuous.latents import LatentRequest, Latents, Sampling
from mmspec.vision.continuous.mar import MaskedAR
from mmspec.vision.continuous.state_draft import StateDraft
from mmspec.vision.families.base import class_of


@dataclass(frozen=True)
class ContinuousMethod:
    """A method for continuous tokens.

    Args:
        form: form of a value.
        accept: accept rule; None for methods without drafts.
        heads: heads it applies to.
        siblings: draft tokens drawn for each position, of which the first is continued. They cost no drafter calls.
    """

    form: str
    accept: Any
    heads: tuple[str, ...]
    siblings: int = 1

    @property
    def shape(self) -> Shape:
        """Shape of its drafts."""
        if self.siblings > 1:
            return Comb(self.siblings, draw_with_replacement)
        draw: Any = recorded if self.form == "path" else sampled
        return Chain(draw)


CONTINUOUS_METHODS: dict[str, ContinuousMethod] = {
    "plain": ContinuousMethod("aligned", None, ("diffusion", "mixture", "masked")),
    "density": ContinuousMethod("density", Token(), ("mixture",)),
    "path": ContinuousMethod("path", Token(), ("diffusion",)),
    "stepwise": ContinuousMethod("path", Stepwise(), ("diffusion",)),
    "block": ContinuousMethod("path", BlockSteps(), ("diffusion",)),
    "chain": ContinuousMethod("path", None, ("diffusion", "masked")),
    "aligned": ContinuousMethod("aligned", Token(), ("diffusion",)),
    "d-grs": ContinuousMethod("aligned", dgrs(), ("diffusion",), siblings=3),
    "aligned-block": ContinuousMethod("aligned", Block(), ("diffusion",)),
    "cspd-compat": ContinuousMethod("sets", None, ("masked",)),
}


@strict
class ContinuousPictures:
    """A model of continuous tokens, with its classes and its picture decoder.

    Args:
        model: the network.
        to_pictures: maps tokens [B, h, w, d] to PIL pictures, such as an autoencoder's decoder; without it only tokens are available.
        labels: one name a class.
        drafter: a smaller model of the same tokens, or one that drafts states of chains, used by methods that draft when none is given.
        others: models with other heads over the same tokens. A method for another head runs on the first of them that has it.
        linear: a linear model of a diffusion head, by which steps of its chains are drafted (`chain_draft.fit_linear_draft`).
    """

    shared: tuple[str, ...] = ("channels", "grid", "head")
    """Fields of the config that a drafter must share."""

    def __init__(
        self,
        model: ContinuousAR | MaskedAR,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        labels: Sequence[str] = (),
        drafter: ContinuousAR | MaskedAR | StateDraft | None = None,
        others: Sequence["ContinuousPictures"] = (),
        linear: LinearDraft | None = None,
    ):
        self.model, self.to_pictures, self.labels, self.drafter, self.others = model, to_pictures, tuple(labels), drafter, tuple(others)
        self.linear = linear

    @property
    def head(self) -> str:
        """Kind of the model's head: "diffusion", "mixture" or "masked"."""
        return "masked" if isinstance(self.model, MaskedAR) else self.model.config.head

    @property
    def method(self) -> str:
        """Default method of the model's head."""
        return {"diffusion": "path", "mixture": "density", "masked": "plain"}[self.head]

    def fit(self, method: str) -> "ContinuousPictures":
        """Choose the model for a method.

        Args:
            method: name of the method.

        Returns:
            This object, or the first of `others`, whose head the method is for.

        Raises:
            ValueError: if none has such a head.
        """
        heads = way_of(method).heads
        for each in (self, *self.others):
            if each.head in heads:
                return each
        raise ValueError(
            f"method {method!r} is for {' or '.join(heads)} heads, and this model has a {self.head} head: {_fitting(self.head)}"
        )

    def classes(self, prompts: Sequence[Any]) -> Tensor:
        """Look up class numbers. `ValueError` names the first unknown class.

        Args:
            prompts: names or numbers of classes.

        Returns:
            LongTensor [B].
        """
        numbers = [class_of(prompt, self.labels, self.model.config.classes) for prompt in prompts]
        return torch.tensor(numbers, device=self.model.device)

    @property
    def cells(self) -> int:
        """Tokens of a picture."""
        return self.model.config.grid**2

    def resized(self, size: Any) -> "ContinuousPictures":
        """Return this model for pictures of another size.

        Args:
            size: pixels a side, or (height, width).

        Returns:
            A model of the same network.

        Raises:
            ValueError: for models of one size, as this class is.
        """
        raise ValueError(f"size is {size!r}: this model makes pictures of one size only, leave size out")

    def encode(self, prompts: Sequence[Any], guided: bool) -> Any:
        """Encode prompts for the model's family.

        Args:
            prompts: names or numbers of classes.
            guided: append the rows for no class.

        Returns:
            Class numbers [B], or [2B] if `guided`.
        """
        classes = self.classes(prompts)
        return torch.cat([classes, torch.full_like(classes, self.model.config.classes)]) if guided else classes

    def family(self, network: Any, request: LatentRequest, sampling: Sampling) -> Latents:
        """Make the family that runs a network, this model's or its drafter's, in one generation.

        Args:
            network: the network.
            request: settings of the generation.
            sampling: of the head.

        Returns:
            The family.

        Raises:
            ValueError: for a schedule of another kind of head.
        """
        if isinstance(sampling.schedule, FlowSchedule):
            raise ValueError("schedule is a FlowSchedule, which is NextStep-1's: give a diffusers scheduler, or leave it out")
        return Latents(network, request, sampling)

    def picture(self, sequences: Tensor) -> Tensor:
        """Arrange tokens as pictures.

        Args:
            sequences: float [B, h * w, d] in raster order.

        Returns:
            Tokens [B, h, w, d].
        """
        return sequences.unflatten(1, (self.model.config.grid, -1))

    def decode(self, tokens: Tensor) -> list[Image.Image]:
        """Decode tokens to pictures.

        Args:
            tokens: float [B, h, w, d].

        Returns:
            One PIL picture for each of B.

        Raises:
            ValueError: if the model has no decoder.
        """
        if self.to_pictures is None:
            raise ValueError("this model has no decoder: give the adapter to_pictures, a function from tokens [B, h, w, d] to pictures")
        return self.to_pictures(tokens)


def way_of(method: Any) -> ContinuousMethod:
    """Return the method of a name. ValueError lists the names."""
    if method not in CONTINUOUS_METHODS:
        raise unknown("method for continuous tokens", method, CONTINUOUS_METHODS)
    return CONTINUOUS_METHODS[method]


def _fitting(head: str) -> str:
    return f"take {', '.join(name for name, way in CONTINUOUS_METHODS.items() if head in way.heads)}, or a model with such a head"


def continuous_model(model: Any) -> ContinuousPictures | None:
    """Return the adapter of a model of continuous tokens; None for any other model."""
    if isinstance(model, ContinuousAR | MaskedAR):
        return ContinuousPictures(model)
    return model if isinstance(model, ContinuousPictures) else None
