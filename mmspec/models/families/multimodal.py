"""Multimodal language models: decoder-only models whose prompts hold images or audio at placeholders.

Images and audio are encoded once a request, by the model's own forward, which is intercepted at the call of its language model. The
arguments of that call are the prompt as the decoder reads it: embeddings, and where the family has them positions along several axes
(M-RoPE), blocks that see each other in both directions, and features for inner layers (DeepStack). From then on positions within the prompt
take their embeddings from it and all others from their ids; no state of a request stays on the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.models.compat import adapter_for_sound, per_layer_inputs
from mmspec.models.compat.cache_name import CALLERS_NAMES, cache_keyword
from mmspec.models.families.base import DecoderOnly, attention_mask, side_by_side, text_prompt
from mmspec.models.intercept import handing, intercept_decoder_inputs
from mmspec.models.layout import Layout
from mmspec.models.rows.merged import Merged, repacked, rows_at, stacked
from mmspec.models.slot_cache import SlotCache

_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Modality:
    """A model's inputs besides text, under the names its processor uses.

    `brings` maps each feature to what must accompany it wherever a model's forward takes it: without it, most models run and give wrong
    results.
    """

    unit: str
    brings: Mapping[str, tuple[str, ...]]


TOKEN_TYPES = ("mm_token_type_ids", "token_type_ids")
"""Inputs [B, P] that say what every token of a prompt is."""
_PICTURES = ("image_grid_thw", "image_position_ids", "image_merge_sizes", "high_res_pixel_values", *TOKEN_TYPES)
_VIDEOS = {"pixel_values_videos": ("video_grid_thw", "video_position_ids", "video_merge_sizes", *TOKEN_TYPES)}
_SOUND = {"input_features": ("feature_attention_mask", "input_features_mask")}
SIGHT = Modality("pictures", {"pixel_values": _PICTURES, **_VIDEOS})
STRIP_SIGHT = Modality(  # all patches of a batch in one strip, and how many each picture has
    "pictures", {"pixel_values": ("target_sizes", *TOKEN_TYPES), "pixel_values_videos": ("target_sizes_videos", *TOKEN_TYPES)}
)
PACKED_SIGHT = Modality("pictures", {"pixel_values": ("spatial_shapes", "pixel_attention_mask")})
TILED_SIGHT = Modality("pictures", {"pixel_values": ("image_sizes", *TOKEN_TYPES), **_VIDEOS})
HEARING = Modality("sound", _SOUND)
SIGHT_AND_HEARING = Modality("pictures or sound", {**SIGHT.brings, **_SOUND})
ENCODED = "mm_encoder_outputs"  # outputs of the model's own encoder, by modality, in place of pixels
PROMPTS = "prompts"  # the prompts of a batch as the processor returned each by itself, which are encoded one by one
_OWN_ARGUMENTS = ("position_ids", "inputs_embeds", *CALLERS_NAMES, "labels", "use_cache", "logits_to_keep", "cache_position")
_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index")  # in configs
_BRACKETS = (
    *(f"{kind}_{end}_token_id" for kind in ("vision", "image", "video") for end in ("start", "end")),
    *(f"{mark}_token_{kind}" for mark in ("boi", "eoi") for kind in ("index", "id")),
)


def placeholders_of(model: Any) -> tuple[int, ...]:
    """The ids that stand for images or audio in prompts."""
    return _ids(model.config, _PLACEHOLDERS)


def never_generated_ids_of(model: Any) -> tuple[int, ...]:
    """Placeholders and the ids that enclose them, as far as they are in the vocabulary."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return tuple(i for i in _ids(model.config, _PLACEHOLDERS + _BRACKETS) if i < size)


def _axes(model: Any) -> int:
    """Number of axes of a decoder's positions: the parts of its `mrope_section`, at least three. Further ones in front are for masks."""
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    return max(3, len(rope.get("mrope_section") or ()))


def _ids(config: Any, names: Sequence[str]) -> tuple[int, ...]:
    found = [getattr(config, name, None) for name in names]
    return tuple(dict.fromkeys(i for i in found if isinstance(i, int)))


@dataclass(frozen=True)
class Multimodal(DecoderOnly):
    """A multimodal language model. `placeholders` are the ids that stand for its other inputs, `first` its first position."""

    modality: Modality = SIGHT
    placeholders: tuple[int, ...] = ()
    never_generated_ids: tuple[int, ...] = ()
    """Ids that are never generated: a generated placeholder would have no image or audio."""
    first: int = 0
    trims: bool = False  # its forward takes `logits_to_keep`
    rebuilds: bool = False  # it derives masks from the one it is given: masks by kind of layer are passed to its decoder
    fills: int | None = None
    """The id read in place of placeholders where every layer takes inputs made from ids (Gemma-4); None where none does."""

    @classmethod
    def of(cls, model: Any, modality: Modality = SIGHT) -> "Multimodal":
        """The family of `model`. ValueError for models it cannot drive."""
        return cls.around(DecoderOnly.of(model), model, modality)

    @classmethod
    def around(cls, base: DecoderOnly, model: Any, modality: Modality, **more: Any) -> Self:
        """The family of `model`, whose language model `base` drives."""
        marks, known = placeholders_of(model), signature(model.forward).parameters
        pali, text = model.config.model_type == "paligemma", model.config.get_text_config(decoder=True)
        own = {"chunk": base.chunk, "keeps": base.keeps, "trims": "logits_to_keep" in known, "rebuilds": pali and base.mixed}
        if "per_layer_inputs" in known and text.hidden_size_per_layer_input:
            own["fills"] = text.pad_token_id
        return cls(base.layers, base.window, base.mixed, modality, marks, never_generated_ids_of(model), int(pali), **own, **more)

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Merged]:
        """A cache and the prompt as the decoder reads it: `inputs["merged"]` if it was encoded before, else encoded here."""
        return SlotCache(self.layers, capacity), inputs.get("merged") or self._encoded(model, inputs)

    def pieces(self, model: Any, state: Merged) -> tuple[int, int] | None:
        return super().pieces(model, state) if state.sees is None else None  # columns see later ones

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Merged, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        table = model.get_input_embeddings()
        embeds = table(layout.ids.clamp(max=table.num_embeddings - 1))  # some placeholders are beyond the table
        masks, more = self.masks_of(model, layout, state), {}
        if layout.opening:
            embeds, more = state.over(embeds, layout.positions), state.deepened(layout.positions)
        if self.rebuilds:
            more, masks = {**more, "attention_mask": masks}, masks["full_attention"]
        given: dict[str, Any] = {"logits_to_keep": keep} if self.trims else {}
        if self.fills is not None:
            given["per_layer_inputs"] = per_layer_inputs(model, layout.ids, self.placeholders, self.fills)
        with handing(model, more) as model:
            out = model(
                inputs_embeds=embeds,
                attention_mask=masks,
                position_ids=state.along(layout.positions) + self.first,
                **cache_keyword(model, cache),
                use_cache=True,
                output_hidden_states=bool(states),
                **given,
            )
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)

    def masks_of(self, model: Any, layout: Layout, state: Merged) -> Any:
        """Return the attention masks of a forward as the decoder takes them: one, or one by kind of layer.

        Args:
            model: the model.
            layout: columns of the forward.
            state: of the prompt.
        """
        if state.sees is None or not layout.opening:
            return self._masks(model, layout)
        within = layout.visible if self.window is None else layout.near(self.window)
        seen = {"full_attention": layout.visible, "sliding_attention": within}
        kinds = _KINDS if self.mixed else (_KINDS[self.window is not None],)
        masks = {kind: attention_mask(state.visible(kind, layout, seen[kind]), model) for kind in kinds}
        return masks if self.mixed else masks[kinds[0]]

    # --- encoding the prompt ------------------------------------------------------------------------------------------

    def _encoded(self, model: Any, inputs: Mapping[str, Any]) -> Merged:
        if PROMPTS not in inputs:
            return self._merge(model, inputs)
        return stacked([self._merge(model, own) for own in inputs[PROMPTS]])

    def _merge(self, model: Any, inputs: Mapping[str, Any]) -> Merged:
        ids, mask = text_prompt(inputs)
        self.check(model, inputs)
        given = intercept_decoder_inputs(model, self._read(model, inputs), self.modality.unit)
        embeds = given["inputs_embeds"]
        if embeds.shape[1] != ids.shape[1]:
            raise ValueError(
                f"the prompt has {ids.shape[1]} tokens, but {embeds.shape[1]} with its {self.modality.unit}: repeat the placeholder "
                f"{self.placeholders[0]} for every position they take, as the model's processor does"
            )
        order = torch.argsort((~mask).long(), dim=1, stable=True)  # packed as a session packs ids
        places, deep = given.get("position_ids"), given.get("deepstack_visual_embeds")
        return Merged(
            rows_at(embeds, order),
            mask.sum(1),
            repacked(places[-_axes(model) :], order) if places is not None and places.dim() == 3 else None,
            self._sees(given.get("attention_mask"), order),
            None if deep is None else _packed_features(deep, given["visual_pos_masks"], embeds, order),
        )

    def _sees(self, masks: Any, order: Tensor) -> dict[str, Tensor] | None:
        """The visibility by kind of attention, from the intercepted masks; None where they are causal."""
        if masks is None or (isinstance(masks, Tensor) and masks.dim() == 2):
            return None
        masks = masks if isinstance(masks, Mapping) else dict.fromkeys(_KINDS, masks)
        found = {kind: (m if m.dtype == torch.bool else m == 0)[:, 0] for kind, m in masks.items() if m is not None}
        return {kind: rows_at(m, order).gather(2, order[:, None].expand_as(m)) for kind, m in found.items()} or None

    def _read(self, model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that the model's forward takes."""
        known = signature(model.forward).parameters
        found = {key: value for key, value in inputs.items() if key in known}
        return found | {key: dict(found[key]) for key in (ENCODED,) if key in found}  # the model writes into it

    def check(self, model: Any, inputs: Mapping[str, Any]) -> None:
        """Check that a prompt has what its placeholders stand for; nothing is run.

        Args:
            model: the model.
            inputs: what its processor returned.

        Raises:
            ValueError: for placeholders without pictures or sound, the other way round, and inputs that are missing or not read.
        """
        ids, mask = text_prompt(inputs)
        marked = bool((torch.isin(ids, torch.tensor(self.placeholders, device=ids.device)) & mask).any())
        name, known, unit = type(model).__name__, signature(model.forward).parameters, self.modality.unit
        refuse_unread_inputs(model, inputs, known)
        brought = [feature for feature in (*self.modality.brings, ENCODED) if feature in inputs]
        if marked != bool(brought):
            features = " or ".join(brought or [feature for feature in self.modality.brings if feature in known])
            why = f"placeholders for {unit} but no {features}" if marked else f"{features} but no placeholder for them"
            raise ValueError(f"inputs has {why} (the placeholder is {self.placeholders[0]}): pass what {name}'s processor returned")
        if (adapted := adapter_for_sound(model)) not in (None, marked):
            state = "on" if adapted else "off"
            raise ValueError(f"{name}'s adapter is for sound and {state}: call model.{'dis' if adapted else 'en'}able_adapters() first")
        for feature in brought:
            for need in self.modality.brings.get(feature) or _beside_encoded(inputs):
                if need in known and need not in inputs:
                    raise ValueError(f"inputs has {feature} but no {need}: pass what {name}'s processor returned")


def _beside_encoded(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """What must accompany `mm_encoder_outputs`, from which positions are computed."""
    return tuple(f"{kind}_grid_thw" for kind in inputs.get(ENCODED) or ()) + TOKEN_TYPES


def refuse_unread_inputs(model: Any, inputs: Mapping[str, Any], known: Collection[str]) -> None:
    """ValueError, by name, for inputs that are not among the `known` ones or that only mmspec itself may set."""
    unread = [key for key in inputs if key not in known or key in _OWN_ARGUMENTS]
    if unread:
        raise ValueError(
            f"inputs has {', '.join(unread)}, which mmspec does not pass on to {type(model).__name__}: pass what its processor returned"
        )


def _packed_features(deep: Sequence[Tensor], where: Tensor, embeds: Tensor, order: Tensor) -> Tensor:
    """Features [L, B, P, D] from those of the positions `where` [B, P] alone, zeros elsewhere."""
    spread = embeds.new_zeros(len(deep), *embeds.shape)
    for layer, features in zip(spread, deep, strict=True):
        layer[where] = features.to(layer.dtype)
    return torch.stack([rows_at(layer, order) for layer in spread])
