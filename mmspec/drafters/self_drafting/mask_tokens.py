"""PaSS (Monea et al. 2023): learned look-ahead embeddings behind the newest value give several distributions in one forward of the
target."""

from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState
from mmspec.drafters.guided import check_width
from mmspec.models.compat import is_stateful
from mmspec.models.families.hybrid import HybridDecoder
from mmspec.models.module_copy import own_copy
from mmspec.models.partial_forward import PartialForward
from mmspec.models.skipped_parts import Change, rewired
from mmspec.models.target import HFSession


class MaskTokens(nn.Module):
    """PaSS (Monea et al. 2023): learned look-ahead embeddings as wide as the target's; only these are trained.

    A draft takes one forward. The first draft token comes from the target's own distribution after the newest value; each embedding adds
    one draft token that does not depend on those before it. A second forward verifies them.

    Args:
        hidden: width of the target's embeddings.
        tokens: number of look-ahead embeddings.

    Raises:
        ValueError: for sizes below 1.
    """

    kind = "mask-tokens"

    def __init__(self, hidden: int, tokens: int = 4):
        super().__init__()
        if min(hidden, tokens) < 1:
            raise ValueError(f"hidden and tokens are {hidden} and {tokens}: each must be at least 1")
        self.config = {"hidden": hidden, "tokens": tokens}
        self.hidden, self.most = hidden, tokens + 1
        self.reads: tuple[int, ...] = ()  # no hidden states
        self.embedding = nn.Parameter(torch.randn(tokens, hidden) * 0.02)
        self._target: tuple[Any, ...] = ()  # in a tuple, or it would be a submodule

    @property
    def target(self) -> Any:
        """The target that training runs through, None until `attach`."""
        return self._target[0] if self._target else None

    def attach(self, target: Any) -> None:
        """Train through `target`, which is neither trained nor saved.

        Raises:
            ValueError: for a target with recurrent states.
        """
        if is_stateful(target) or HybridDecoder.drives(target):
            raise ValueError(
                f"mask tokens are trained at many places of a text at once by a mask, and {type(target).__name__} has layers that read "
                "none: train another kind of drafter, such as eagle3 or dflash"
            )
        self._target = (target,)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`."""
        return {"hidden": config.hidden_size}

    def start_from(self, target: Any) -> None:
        """Initialise with the mean of the target's embeddings, and `attach` it."""
        self.attach(target)
        self.embedding.data.copy_(target.get_input_embeddings().weight.detach().mean(0).expand_as(self.embedding))

    def guide(self, session: HFSession) -> "MaskGuide":
        """Return the guide of one generation on the target session `session`."""
        return MaskGuide(self, session)


class MaskGuide(RowState):
    """Guide of look-ahead embeddings. The first round runs the prompt and is not drafted."""

    def __init__(self, net: MaskTokens, session: HFSession):
        check_width(net.kind, net.hidden, session.target.model)
        self.net, self.session, self.most = net, session, net.most
        self.view = MaskView(session, net.embedding)
        self.logits: Tensor | None = None  # [B, tokens + 1, V] after the pending token and after each embedding
        self.level = self.known = 0

    @property
    def joinable(self) -> bool:
        """True once the target has run the prompt; see `core.rows.changes.ChangesRows`."""
        return self.view.ready

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return pending if self.view.ready else None

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Return the same distribution for all nodes of a level, except for processors that read each node's path."""
        every = self.logits = self.view.look(draft) if self.logits is None else self.logits
        first, count = self.known, draft.size - self.known
        logits = every[:, self.level : self.level + 1].expand(-1, count, -1)
        self.level, self.known = self.level + 1, draft.size
        return Scored(self.session.distribution(logits, draft, first))

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.logits, self.level, self.known = None, 0, 0

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        pass


class MaskView(PartialForward):
    """Partial forward that runs the pending token with look-ahead embeddings `tokens` [K, H] after it."""

    def __init__(self, session: HFSession, tokens: Tensor):
        super().__init__(session)
        self.tokens = tokens

    def look(self, pending: Draft) -> Tensor:
        """Return logits [B, K + 1, V] after `pending`, a draft of one root, and after each embedding."""
        count = len(self.tokens)
        columns = torch.arange(count, device=pending.nodes.device).expand(len(pending.nodes), -1)
        parents = torch.where(pending.valid, columns, PAD)
        ahead = pending.extend(torch.zeros_like(columns), parents, linear=True)
        layout = self.session.place(ahead, 0)
        embed = own_copy(self.session.target.model).get_decoder().get_input_embeddings()
        with rewired({embed: put_in(self.tokens)}):
            return self.forward(ahead, layout, count + 1)


def put_in(tokens: Tensor) -> Change:
    """Return a patch of an embedding that replaces the last columns by `tokens` [K, H]."""

    def change(real: Any) -> Any:
        def forward(ids: Tensor) -> Tensor:
            found = real(ids)
            learned = tokens.to(found.dtype).expand(len(found), -1, -1)
            return torch.cat([found[:, : -len(tokens)], learned], 1)

        return forward

    return change
