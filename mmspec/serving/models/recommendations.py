"""A recommender in an engine: what all requests share, and what is read of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.core.beams.listed import ListedNodes
from mmspec.core.beams.search import BeamRule
from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.beams.trie import Trie
from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Rounds
from mmspec.core.noise import Noise
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.rows.changes import join_tensors, refuse_fixed_rows
from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.drafters.model.beams import BeamDrafter, BeamSource
from mmspec.models.families.registry import family_of
from mmspec.models.model_checks import check_prompt_ids
from mmspec.models.proof.require import require
from mmspec.recsys.catalogue import SHOWN
from mmspec.recsys.cost import CostModel
from mmspec.recsys.filters.item_filter import ItemFilter
from mmspec.recsys.generation import beams_of, check_paths_fit, refuse_temperature
from mmspec.recsys.methods import BeamMethod, method_of
from mmspec.recsys.search import beam_source, beam_target, history_prompts, look_ahead, path_processors, spare_columns
from mmspec.run.arguments import check, check_items
from mmspec.run.draft_length import control_of
from mmspec.run.request import Request, refuse
from mmspec.serving.models.rows import by_rows, check_one_row, first_control
from mmspec.serving.models.searches import RecommendOptions, RecommendSettings, RecommendWork

_NAMES = {"input_ids": 0, "attention_mask": 0, SHOWN: -1}  # what a prompt holds, and what stands before a shorter one


@dataclass(frozen=True)
class RecommendModel:
    """A model that writes items as the paths of a catalogue, and a drafter, that serve many requests.

    Args:
        model: a transformers decoder-only model.
        settings: what all requests share.
        method: how beams are selected.
        trie: the catalogue's, on the model's device.
        control: chooses draft lengths.
        source: distributions of draft tokens; None for plain search.
        max_length: most tokens of a prompt and a path; None for the model's positions.
    """

    options: ClassVar[type] = RecommendOptions
    model: Any
    settings: RecommendSettings
    method: BeamMethod
    trie: Trie
    control: Control
    source: BeamSource | None = field(repr=False)
    max_length: int | None = None

    @staticmethod
    def of(model: Any, request: Request, max_length: int | None, settings: RecommendSettings) -> "RecommendModel":
        """Check a model and a drafter, and open a session of both.

        Args:
            model: a transformers decoder-only model.
            request: drafter and draft length.
            max_length: most tokens of a prompt and a path; None for the model's positions.
            settings: what all requests share beside these.

        Returns:
            The model.

        Raises:
            ValueError: for models, drafters and methods whose rows cannot join a running generation.
        """
        refuse(
            "engines of texts",
            tree=request.tree,
            stop_below=request.stop_below,
            accept=None if request.accept == "exact" else request.accept,
        )
        catalogue, drafter = settings.catalogue, request.drafter
        check(catalogue=catalogue, beams=settings.beams, width=settings.width)
        check_items(settings.beams, settings.width, len(catalogue), settings.beams)
        family, method = family_of(model), method_of(settings.method)
        _check_method(method, settings, drafter)
        width = 4 * settings.beams if settings.width is None else settings.width
        require(model, family, trees=True)
        if hasattr(drafter, "begin"):
            raise ValueError(
                "drafter is a Drafter of its own, and an engine draws its tries anew: give a model or a source of distributions"
            )
        if isinstance(request.draft_length, CostModel):
            raise ValueError("draft_length is a CostModel, which chooses for whole calls: give a number of levels or 'auto'")
        trie = catalogue.trie.to(model.device)
        target = beam_target(model, family, trie, settings.beams, width, catalogue.tokens_used)
        source = None if drafter is None else beam_source(drafter, target, settings.beams, width)
        if source is None:
            own = look_ahead(method, trie, settings.beams, spare_columns(model.device))
        else:
            own = BeamDrafter(source, trie, method.spread(settings.beams, width, 1.0))
        control = control_of(request.draft_length, own, auto=lambda: Fixed(trie.levels - 1), thompson=False, unit="levels")
        found = RecommendModel(model, replace(settings, width=width), method, trie, by_rows(control), source, max_length)
        found._refuse_fixed_rows()
        return found

    @property
    def rule(self) -> BeamRule:
        """The accept rule, without what is each request's own."""
        return self.method.rule(self.trie, self.settings.beams, 1.0)

    def read(self, inputs: Any, options: RecommendOptions) -> RecommendWork:
        """Check a request.

        Args:
            inputs: the items of one user, oldest first; or what a tokenizer returned for one prompt.
            options: its options.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line.
        """
        catalogue = self.settings.catalogue
        check_one_row(options)
        check(**{name: getattr(options, name) for name in ("k", "beams", "allowed", "unseen", "rules")})
        Request.of(seed=options.seed, temperature=1.0 if options.temperature is None else options.temperature)
        Noise.from_seed([options.seed], 1)  # checks it
        refuse_temperature(self.method, options.temperature)
        if (asked := beams_of(options.beams, options.k)) > self.settings.beams:
            raise ValueError(
                f"the request keeps {asked} beams, but this engine {self.settings.beams}: lower k or beams, or make it with more"
            )
        prompt = self._prompt(inputs)
        check_paths_fit(self.model, prompt, catalogue)
        columns = prompt["input_ids"].shape[1]
        if self.max_length is not None and columns + catalogue.levels > self.max_length:
            raise ValueError(
                f"the prompt has {columns} tokens, and an item {catalogue.levels}: the engine's max_length is {self.max_length}"
            )
        allow, deny = (None if line is None else [line] for line in (options.allow, options.deny))
        seen = None if not options.unseen else inputs if isinstance(inputs, Mapping) else [inputs]
        filters = ItemFilter.of(catalogue, 1, options.allowed, allow, deny, seen).as_lists()
        listed = filters.listed_trie(catalogue, catalogue.trie).listed
        assert listed is not None
        pipeline = path_processors(self.model, family_of(self.model), prompt, catalogue.levels)
        return RecommendWork(prompt, filters, listed.to(self.model.device), options, catalogue, pipeline)

    def open(self, works: Sequence[RecommendWork], control: Control | None = None) -> Rounds:
        """Open a generation of some requests, one a row; see `EngineModel.open`."""
        settings, device, rows = self.settings, self.model.device, len(works)
        listed = reduce(partial(ListedNodes.join_rows, nodes=len(self.trie.token)), (work.listed for work in works))
        trie = replace(self.trie, listed=listed)
        heat = [work.options.temperature for work in works]
        temperature = torch.tensor([[1.0 if each is None else each] for each in heat], dtype=torch.float64, device=device)
        rule = replace(
            self.method.rule(trie, settings.beams, temperature), most=torch.tensor([work.beams for work in works], device=device)
        )
        if self.source is None:
            drafter, width = look_ahead(self.method, trie, settings.beams, spare_columns(device)), 0  # the cache grows where it is needed
        else:
            width = settings.width or 0
            drafter = BeamDrafter(self.source, trie, self.method.spread(settings.beams, width, temperature))
        pipelines, tokens = RowPipelines(tuple(work.pipeline for work in works)), settings.catalogue.tokens_used
        return Rounds(
            beam_target(self.model, family_of(self.model), trie, settings.beams, width, tokens, pipelines),
            drafter,
            rule,
            _beside([work.inputs for work in works]),
            stopping=BeamStopping(rows, trie.levels, settings.beams, device),
            noise=Noise.from_seed([work.options.seed for work in works], rows, device),
            control=first_control(self.control, drafter) if control is None else control,
        )

    def _prompt(self, inputs: Any) -> dict[str, Tensor]:
        """The prompt of a request, without padding."""
        if not isinstance(inputs, Mapping):
            return history_prompts(self.settings.catalogue, [inputs], self.model.device)
        if "input_ids" not in inputs:
            raise ValueError(
                f"the prompt has no input_ids (it has {', '.join(inputs) or 'nothing'}): pass items, or what a tokenizer returned"
            )
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask", torch.ones_like(ids))
        check_prompt_ids("inputs", {"input_ids": ids, "attention_mask": mask}, self.model.config.get_text_config(decoder=True).vocab_size)
        if len(ids) != 1:
            raise ValueError(f"a request of an engine is one prompt, but input_ids has {len(ids)} rows: submit them one by one")
        kept = mask[0].bool()
        return {"input_ids": ids[:, kept].to(self.model.device), "attention_mask": mask[:, kept].to(self.model.device)}

    def _refuse_fixed_rows(self) -> None:
        """ValueError where rows of a session cannot join."""
        work = self.read([self.settings.catalogue.items[0]], RecommendOptions(k=1))
        rounds = self.open([work])
        rounds.refuse_fixed_rows()
        if self.source is not None:
            trie = replace(self.trie, listed=work.listed)
            refuse_fixed_rows(self.source.beam_guide(work.inputs, rounds.session, trie), "the drafter")


def _check_method(method: BeamMethod, settings: RecommendSettings, drafter: Any) -> None:
    exactness = method.rule(settings.catalogue.trie, settings.beams, 1.0).exactness
    if exactness != TOKEN_EXACT:
        raise ValueError(
            f"method {settings.method!r} is {exactness}, so that items would depend on the requests beside them: "
            "choose 'strict', 'plain' or 'coupled'"
        )
    if method.plain and drafter is not None:
        raise ValueError("method 'plain' drafts nothing: leave drafter out, or take method 'strict'")


def _beside(prompts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The prompts of some requests as one batch, padded on the left."""
    return {
        name: reduce(partial(join_tensors, pad=pad), (each[name] for each in prompts)) for name, pad in _NAMES.items() if name in prompts[0]
    }
