"""A drafter body made of settings: decoder layers over the target's states, and a way to read draft tokens.

Layers run over columns that pair a committed value with the target's state before it. Draft tokens go through the same layers, or are read
by heads on the layers' output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from mmspec.drafters.body.heads import HEADS
from mmspec.drafters.body.layers import LAYERS, BlockCell, LayerAttention
from mmspec.drafters.features.eagle import Eagle3, FeatureNet
from mmspec.drafters.features.eagle3_parts import DraftVocabulary
from mmspec.drafters.features.eagle_guide import FeatureGuide
from mmspec.models.target import HFSession

_LAYERS = "layers"
_NAMES = {
    "reads": ("last", "three", "all"),
    "join": ("projection", "attention"),
    "layers": tuple(LAYERS),
    "step": (_LAYERS, *HEADS),
}


@dataclass(frozen=True, kw_only=True)
class BodySettings:
    """What makes a published drafter of `Body`.

    Args:
        paper: where it is published.
        reads: the target's hidden states: "last", "three", a low, a middle and a high one, or "all".
        join: how several states become one: by a "projection" as in EAGLE-3, or by "attention" over them and their mean.
        layers: what each layer reads of a column: the "state" alone, a "pair" of value and state, as EAGLE-3's, or the "value" alone, which
            attends to the target's states of committed columns. The output of one layer is the next one's state.
        step: how a draft token is read: by the "layers", or by one of `HEADS` on their output.
        step_options: of these heads' class.
        block: draft tokens that the layers give in one forward; those of a block do not depend on one another.
        glancing: share of the net's own states that training replaces by the target's.

    Raises:
        ValueError: for other names, for no layers, and for settings that contradict one another.
    """

    paper: str
    reads: str = "three"
    join: str = "projection"
    layers: Sequence[str] = ("pair",)
    step: str = _LAYERS
    step_options: Mapping[str, Any] = field(default_factory=dict)
    block: int = 1
    glancing: float = 0.0

    def __post_init__(self):
        for name, known in _NAMES.items():
            given = getattr(self, name)
            unknown = [each for each in ((given,) if isinstance(given, str) else given) if each not in known]
            if unknown or not given:
                raise ValueError(f"{name} is {given!r}: give {', '.join(known)}")
        if "value" in self.layers[1:]:
            raise ValueError(f"layers is {self.layers!r}: a layer that reads values alone can only be the first")
        if self.block < 1 or not 0 <= self.glancing < 1 or (self.block > 1 and self.step != _LAYERS):
            raise ValueError(
                f"block is {self.block}, glancing {self.glancing} and step {self.step!r}: give a block of 1 or more, where draft tokens go "
                "through the layers, and a share of states below 1"
            )


class Body(DraftVocabulary, FeatureNet):
    """A drafter made of `settings`; see `mmspec.drafters.body.systems`.

    Args:
        reads: hidden states of the target, numbered as in `mmspec.models.stack`.
        sizes: options of the LlamaConfig of the layers.
        size: number of values of the target.
        values: number of values of the drafter; 0 for all.
        shared_head: the rows of the target's head for the drafter's values, not trained and not saved, instead of a head of its own.
        changes: settings that differ from the class's.

    Attributes:
        settings: of this net.

    Raises:
        ValueError: for options that contradict one another.
    """

    settings: ClassVar[BodySettings]

    def __init__(
        self, reads: Sequence[int], sizes: Mapping[str, Any], size: int, values: int = 0, shared_head: bool = False, **changes: Any
    ):
        values, own = values or size, replace(type(self).settings, **changes)
        saved = {name: value for name, value in asdict(own).items() if name not in ("paper", "reads")} | {"layers": list(own.layers)}
        super().__init__(reads, sizes, size=size, values=values, shared_head=shared_head, **saved)
        if values > size:
            raise ValueError(f"values is {values}, but the target has {size}: the drafter's vocabulary must be a part of the target's")
        self.own, self.shared_head, eps = own, shared_head, self.llama.rms_norm_eps
        several = len(self.reads) if len(self.reads) > 1 else 0
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(self.hidden, eps) for _ in range(several))
        projecting, self.across = own.join == "projection", own.layers[0] == "value"
        self.fc = nn.Linear(several * self.hidden, self.hidden, bias=False) if several and projecting else None
        self.mix = LayerAttention(self.hidden, self.llama.num_attention_heads, several) if several and not projecting else None
        self.layers = nn.ModuleList(LAYERS[reading](self.llama, k + (self.across and k > 0)) for k, reading in enumerate(own.layers))
        self.cached, self.block, self.glancing = len(own.layers) + self.across, own.block, own.glancing
        self.cell = BlockCell(self.hidden) if own.block > 1 else None
        self.step = None if own.step == _LAYERS else HEADS[own.step](self.hidden, **own.step_options)
        self.reads_drafts, self.most = self.step is None, None if self.step is None else self.step.most
        self.stages = getattr(self.step, "stages", 1)
        if self.stages > len(own.layers):
            raise ValueError(f"{own.step} reads the outputs of {self.stages} layers, but there are {len(own.layers)}")
        self.norm = LlamaRMSNorm(self.hidden, eps)
        self.set_vocabulary(size, values, self.hidden, shared_head)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`; see `FeatureNet.fit`."""
        chosen = Eagle3.fit(config)
        reads = {"last": (-1,), "three": chosen["reads"], "all": tuple(range(1, config.num_hidden_layers + 1))}
        return {name: chosen[name] for name in ("sizes", "size")} | {"reads": reads[cls.settings.reads]}

    def guide(self, session: HFSession) -> FeatureGuide:
        """Return the guide of one generation on the target session `session`."""
        self.attach(session.target.model)
        return super().guide(session)

    def take(self, features: Tensor) -> Tensor:
        """Map the target's states to the drafter's width; see `FeatureNet.take`. A single state is taken as it is."""
        if len(self.reads) == 1:
            return features
        parts = [norm(part) for norm, part in zip(self.fc_norm, features.split(self.width, -1), strict=True)]
        if self.mix is not None:
            return self.mix(torch.stack(parts, -2))
        assert self.fc is not None
        return self.fc(torch.cat(parts, -1))

    def forward(self, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the layers' output, of several stages side by side; see `FeatureNet.forward`."""
        rope, found = self.rotate(state, positions), []
        for layer in self.layers:
            state = layer(state, value, mask, rope, cache)
            found.append(state)
        return torch.cat(found[-self.stages :], -1)

    def enter(self, state: Tensor, level: int, beside: Tensor | None) -> Tensor:
        """Return the input state of a level; see `FeatureNet.enter`."""
        return state[..., : self.hidden]

    def attends(self, level: int) -> bool:
        """Return True if the tokens of `level` take a forward; see `FeatureNet.attends`."""
        return level == 0 or (self.step is None and level % self.block == 0)

    def node_states(self, out: Tensor, value: Tensor) -> Tensor:
        """Return the states of nodes; see `FeatureNet.node_states`. Those of a block's tokens stand side by side."""
        if self.step is not None:
            return self.step.start(out, value)
        return out if self.cell is None else self.cell(out, self.block)

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """Return the states of draft tokens; see `FeatureNet.advance`. Inside a block they do not depend on the tokens."""
        if self.step is not None:
            return self.step.advance(state, value, level)
        return nn.functional.pad(state[..., self.hidden :], (0, self.hidden))

    def feature(self, state: Tensor, level: int) -> Tensor:
        """Return what `own_logits` reads; see `FeatureNet.feature`."""
        return state[..., : self.hidden] if self.step is None else self.step.read(state, level)

    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's own vocabulary; see `FeatureNet.own_logits`."""
        return self.lm_head(self.norm(state))
