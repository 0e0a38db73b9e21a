"""Multi-head grouping repaired by Viterbi (Nguyen et al. 2024, arXiv 2410.13839): several heads speak at once, the best path is kept.

Heads that do not hear one another choose values that do not go together. Of each head's `k` likeliest values, this shape takes the
path x_1 .. x_n of largest

    sum_i log P_i(x_i) + omega log A(x_i | x_{i-1}),

where x_0 is the pending token and A a first-order Markov model of training data; or draws a path from the distribution of which this is the
logarithm, up to a constant (`draw`: filtering forwards, sampling backwards).

In the paper all n heads, the target's own next-value head among them, are decoded together and nothing is checked. Here the target's own
value comes first and is committed as it is, for it knows what came before; the n - 1 heads that look further ahead follow it in the next
round, from the same hidden state. With `AlwaysAccept` the target so runs once for n values, lossy by an unknown amount. Under rules that
check (match, token with a point mass as q), the path is a draft like any other.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Budget, Draft
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.shapes import UNRUN, Score


def best_path(emission: Tensor, start: Tensor, step: Tensor) -> Tensor:
    """The states [B, L] of the path of largest total weight (Viterbi; ties go to the earlier states).

    `emission` [B, L, k] weighs every state, `start` [B, k] the entry into the first ones, `step` [B, L - 1, k, k] every transition;
    all are logarithms.
    """
    total, came_from = start + emission[:, 0], []
    for level in range(1, emission.shape[1]):
        value, state = (total[..., None] + step[:, level - 1]).max(1)
        total = value + emission[:, level]
        came_from.append(state)
    path = [total.argmax(-1, keepdim=True)]
    for state in reversed(came_from):
        path.insert(0, state.gather(1, path[0]))
    return torch.cat(path, 1)


def best_paths(emission: Tensor, start: Tensor, step: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` paths of largest total weight, the best first (list Viterbi).

    Args:
        emission, start, step: as of `best_path`.
        count: number of paths.

    Returns:
        States [B, count, L], and total weights [B, count], -inf where there are fewer paths.
    """
    total, came_from = (start + emission[:, 0])[..., None], []  # [B, k, n] the n best ways to every state
    for level in range(1, emission.shape[1]):
        ways = rearrange(total[:, :, None] + step[:, level - 1, :, :, None], "b i j n -> b j (i n)")
        value, origin = ways.topk(min(count, ways.shape[-1]), -1)
        came_from.append((origin, total.shape[-1]))
        total = value + emission[:, level, :, None]
    weight, at = total.flatten(1).topk(min(count, total[0].numel()), -1)
    missing, ranks = count - weight.shape[1], total.shape[-1]
    path = [at // ranks]
    for origin, before in reversed(came_from):
        at = origin.flatten(1).gather(1, at)
        path.insert(0, at // before)
    return nn.functional.pad(torch.stack(path, -1), (0, 0, 0, missing)), nn.functional.pad(weight, (0, missing), value=-torch.inf)


def drawn_path(emission: Tensor, start: Tensor, step: Tensor, keys: Keys) -> Tensor:
    """States [B, L] drawn with probability in proportion to exp(total weight of the path); `keys` [B, L], arguments as in `best_path`.

    The filter sums over all beginnings, so the last state is drawn first and each one before it given what follows.
    """
    forward = [start + emission[:, 0]]
    for level in range(1, emission.shape[1]):
        forward.append((forward[-1][..., None] + step[:, level - 1]).logsumexp(1) + emission[:, level])
    path = [keys[:, -1:].choose(forward[-1][:, None])]
    for level in range(emission.shape[1] - 2, -1, -1):
        into = step[:, level].gather(2, path[0][:, None].expand(-1, step.shape[2], -1))[..., 0]  # [B, k] towards the state drawn
        path.insert(0, keys[:, level : level + 1].choose((forward[level] + into)[:, None]))
    return torch.cat(path, 1)


@dataclass(frozen=True)
class JointPath:
    """One chain through the heads' `k` likeliest values, the most probable path under `bigrams` or a sampled one; or several as a tree.

    The heads' distributions must not depend on the draft tokens before them, as those of Medusa's heads do not. Processors that read the
    history see the likeliest values in place of the path. Draws are keyed by position. No q is recorded, because the path is drawn as a
    whole.

    Args:
        bigrams: transition probabilities between values.
        k: candidates per head.
        omega: weight of the transitions; 0 decodes every head by itself.
        draw: sample the path instead of taking the most probable one.
        paths: number of most probable paths, drafted as a tree (BPD's lattice refinement, Kim et al. 2024, whose language model is the
            bigrams).

    Raises:
        ValueError: for numbers out of range, and for several paths that are drawn.
    """

    bigrams: Bigrams
    k: int = 10
    omega: float = 1.0
    draw: bool = False
    paths: int = 1
    replaces: ClassVar[bool] = True

    def __post_init__(self):
        if self.k < 1 or not 0 <= self.omega < float("inf"):
            raise ValueError(f"k and omega are {self.k} and {self.omega}: at least 1 candidate, and an omega of 0 or more, are needed")
        if self.paths < 1 or (self.draw and self.paths > 1):
            raise ValueError(f"paths is {self.paths} and draw {self.draw}: give at least 1 path, and one alone where it is drawn")

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""
        spine, tops = draft, []
        for _ in range(budget.length):
            scores = score(spine).p.last(1).scores[:, 0].double().log_softmax(-1)
            tops.append(scores.topk(min(self.k, scores.shape[-1]), -1))
            spine = spine.extend_chain(tops[-1].indices[:, :1], budget.draft_tokens)
        if not tops:
            return draft, draft.parents[:, draft.roots :]
        values, emission = torch.stack([top.indices for top in tops], 1), torch.stack([top.values for top in tops], 1)  # [B, L, k]
        start = self.omega * self.bigrams.log_prob(draft.nodes[:, draft.roots - 1, None], values[:, 0])
        step = self.omega * self.bigrams.log_prob(values[:, :-1, :, None], values[:, 1:, None])
        if self.paths > 1:
            return self._tree(draft, budget, values, *best_paths(emission, start, step, self.paths))
        keys = noise.draft_token(draft.start[:, None] + torch.arange(budget.length, device=values.device), draft.start)
        states = drawn_path(emission, start, step, keys) if self.draw else best_path(emission, start, step)
        draft_tokens = values.gather(2, states[..., None])[..., 0]
        return draft.extend_chain(draft_tokens, budget.draft_tokens), torch.full_like(draft_tokens, UNRUN)

    def _tree(self, draft: Draft, budget: Budget, values: Tensor, states: Tensor, weight: Tensor) -> tuple[Draft, Tensor]:
        """Paths of `states` [B, P, L] among `values` [B, L, k] as a tree: a prefix that several have is drafted once."""
        many, levels = states.shape[1:]
        alike = (states[:, :, None] == states[:, None]).cumprod(-1).bool()  # [B, P, P, L] up to there
        first = alike.long().argmax(2)  # [B, P, L] the first path with the same prefix
        path, level = torch.arange(many, device=values.device), torch.arange(levels, device=values.device)
        above = torch.where(level > 0, draft.roots + (level - 1) * many + first.roll(1, -1), draft.roots - 1)
        real = (first == path[:, None]) & (weight > -torch.inf)[..., None] & (level < budget.draft_tokens[:, None, None])
        parents = torch.where(real & draft.valid[:, draft.roots - 1, None, None], above, PAD)
        tokens = values.gather(2, states.transpose(1, 2)).flatten(1)  # level by level
        return draft.extend(tokens, parents.transpose(1, 2).flatten(1), width=many, levels=levels), torch.full_like(tokens, UNRUN)


def grouped(net: Any, bigrams: Bigrams, *, k: int = 10, omega: float = 1.0, draw: bool = False, paths: int = 1) -> GuidedDrafter:
    """Return a drafter that decodes the heads of `net` jointly. Use with `AlwaysAccept` and n - 1 draft tokens a round for n values a call.

    Args:
        net: heads that do not read draft tokens, such as Medusa, Latent or Amphista.
        bigrams: transition probabilities between values.
        k: candidates per head.
        omega: weight of the transitions.
        draw: sample the path instead of taking the most probable one.
        paths: number of most probable paths, drafted as a tree.

    Raises:
        ValueError: for heads that read the draft tokens before theirs.
    """
    if not getattr(net, "blind", False):
        raise ValueError(
            f"{type(net).__name__} reads its own draft tokens: a path needs heads that do not, such as medusa, latent or amphista"
        )
    return GuidedDrafter(net, JointPath(bigrams.to(next(net.parameters()).device), k, omega, draw, paths))
