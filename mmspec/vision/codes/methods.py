"""Published methods of faster image generation by name: each an initialiser, a coupler, an accept rule and a layout.

| name | draft tokens | rule | exactness |
|---|---|---|---|
| plain | none | plain sampling | token-exact |
| jacobi | a window drawn by the target's own noise; its far end copies known cells above or to the left | coupled | token-exact |
| sjd | a window drawn afresh every round (Teng et al. 2025, arXiv 2410.01699) | token | distribution-exact |
| scd, scd-gumbel | a window that keeps what it can: maximal coupling, shared Gumbel numbers (2510.24211) | token | distribution-exact |
| sjd-pac | a coupled window that begins as a tree (2603.18599) | siblings without replacement | distribution-exact |
| sjd++ | a window that keeps draft tokens by a threshold (2512.07503) | token | lossy (unmetered) |
| block | a window drawn afresh | block (2403.10444) | distribution-exact |
| gsd | a window drawn afresh | groups of alike codes (2508.07747) | lossy |
| eagle | a tree by a trained net (2401.15077) | siblings without replacement | distribution-exact |
| assisted | a chain by a smaller image model (2211.17192) | coupled | token-exact |
| assisted-jacobi | a window drawn by the target's own noise, its far end by a smaller image model | coupled | token-exact |
| lantern | the likeliest tree of a trained net (EAGLE-2) | neighbours' mass (2410.03355) | lossy |
| lantern++ | a static tree by a trained net | neighbours' mass, by a factor (2502.06352) | lossy |
| cool-sd | a static tree by a trained net | annealed relaxation (2601.09212) | lossy |
| vvs | a static tree by a trained net behind tokens that are not verified (2511.13587) | neighbours' mass | lossy |
| zipar, zipar-adaptive | none: rows are written side by side (2412.04062) | plain sampling | lossy |
| pjd | a window in every row (2606.05703) | token, row by row | lossy, not metered |

Settings of the relaxed ones that were published: `mmspec.vision.codes.published`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import Accept
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.lossy.cool_sd import cool_tree
from mmspec.core.rules.lossy.grouped import Grouped
from mmspec.core.rules.lossy.lantern import Lantern, Neighbours, lantern_plus_tree, lantern_tree
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import Token
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.guided_pair import GuidedPair
from mmspec.drafters.jacobi import couplers, initialisers
from mmspec.drafters.jacobi.couplers import Coupler, check_pairing
from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.drafters.jacobi.proactive import Proactive
from mmspec.drafters.jacobi.reuse import Reuse, ReusedToken
from mmspec.drafters.jacobi.windows import Window
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Shape
from mmspec.drafters.shapes import draw_without_replacement as drawn_siblings
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.utils.strict import strict
from mmspec.vision.codes.pjd import PJD
from mmspec.vision.codes.usual import known_codes
from mmspec.vision.codes.vvs import Unverified
from mmspec.vision.codes.zipar import ZipAR
from mmspec.vision.families.base import ImageModel

Rule = Accept | Callable[[ImageModel], Accept]
"""A rule, or how to make one that reads the model's codebook."""


@strict
@dataclass(frozen=True, kw_only=True)
class Method:
    """How pictures of codes are generated. At most one of `couple`, `shape` and `rows` is given; without them and `assisted` there
    are no drafts.

    Args:
        accept: accept rule, or a function that makes one for a model.
        couple: Jacobi window over the target's last distributions; see `mmspec.drafters.jacobi.couplers`.
        init: initialiser of the window's far end.
        siblings: width of the tree that the window begins with.
        shape: tree or chain drafted by a trained net.
        rows: rows decoded side by side; `accept` then does not apply.
        assisted: a smaller image model drafts: a chain, or with `couple` the far end of the window.

    Raises:
        ValueError: if more than one is given, or `assisted` with a shape or rows.
    """

    accept: Rule = field(default_factory=Coupled)
    couple: Coupler | None = None
    init: Initialiser = initialisers.uniform
    siblings: int = 1
    shape: Shape | None = None
    rows: ZipAR | PJD | None = None
    assisted: bool = False

    def __post_init__(self):
        if sum(part is not None for part in (self.couple, self.shape, self.rows)) > 1:
            raise ValueError("a method drafts in one way: give couple, shape or rows")
        if self.assisted and (self.shape is not None or self.rows is not None):
            raise ValueError("a smaller image model drafts chains and windows: leave shape and rows out, or assisted")

    @property
    def windowed(self) -> bool:
        """True if the method drafts, and so reads a window."""
        return self.assisted or self.couple is not None or self.shape is not None

    def rule(self, model: ImageModel) -> Accept:
        """Return the accept rule.

        Args:
            model: the image model, whose codebook some rules read.

        Returns:
            The rule.
        """
        return self.accept if hasattr(self.accept, "exactness") else self.accept(model)  # pyright: ignore

    def drafter(self, model: ImageModel, rule: Accept, window: int, net: Any) -> Drafter:
        """Return the drafter.

        Args:
            model: the image model.
            rule: the accept rule.
            window: tokens a forward.
            net: the trained net, if the method needs one.

        Returns:
            The drafter; `NoDraft` for methods without drafts.

        Raises:
            ValueError: if `rule` cannot judge the drafts, or the net is missing.
        """
        if net is not None and not isinstance(net, nn.Module) and not hasattr(net, "guide"):
            raise ValueError(f"drafter is {short(net)}: give the trained net of a method that drafts with one, or leave drafter out")
        if self.shape is not None:
            if net is None:
                raise ValueError("this method drafts with a trained net: pass drafter=..., or choose a method that needs none such as scd")
            source: Any = net
            return GuidedDrafter(GuidedPair(source), self.shape)
        if self.couple is None:
            return NoDraft()
        check_pairing(self.couple, rule)
        init = self.init
        if init.from_pictures:
            init = replace(init, codes=known_codes(model.model, model.raster, model.usual_codes, rule))
        if self.siblings > 1:
            return _proactive(model, replace(self, init=init), window)
        return Window(model.raster, self.couple, init, window)


def short(value: Any) -> str:
    """Show a value in a message: itself, or its type where that would be long."""
    return f"{value!r:.60}" if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _proactive(model: ImageModel, method: Method, window: int) -> Proactive:
    """The widest tree that leaves half of the window to the chain."""
    fits = [(w, d) for w in range(method.siblings, 0, -1) for d in (3, 2) if 2 * sum(w**level for level in range(d)) <= window]
    width, depth = fits[0] if fits else (1, 2)
    couple = couplers.maximal if method.couple is None else method.couple
    return Proactive(raster=model.raster, couple=couple, init=method.init, window=window, width=width, depth=depth)


def neighbours(model: ImageModel, k: int = 100) -> Neighbours:
    """Return the nearest codes of every code of `model`. ValueError without a codebook."""
    if model.codebook is None:
        name = type(model.model).__name__
        raise ValueError(f"{name} states no codebook, which this rule reads: give the adapter codebook=..., or choose cool-sd or scd")
    return Neighbours.of(model.codebook, min(k, len(model.codebook) - 1)).to(model.model.device)


def _grouped(model: ImageModel) -> Accept:
    return Grouped(None if model.codebook is None else model.codebook.to(model.model.device))


def _lantern(model: ImageModel) -> Walk:
    table = neighbours(model)
    return lantern_tree(table, k=table.k)


def _lantern_plus(model: ImageModel) -> Walk:
    table = neighbours(model, 10)
    return lantern_plus_tree(table, k=table.k)


STATIC_TREE = StaticTree(Template.branching((4, 2, 1, 1)), drawn_siblings)
"""The tree of the methods that draft a static one."""

_SKIPPED = 2
_SKIPPING = StaticTree(Template.branching((*[1] * _SKIPPED, 4, 2, 1, 1)), drawn_siblings)


def _unverified(model: ImageModel) -> Walk:
    table = neighbours(model, 1000)
    return relaxed(Unverified(Lantern(table, 0.2, table.k), _SKIPPED))


METHODS: dict[str, Method] = {
    "plain": Method(),
    "jacobi": Method(couple=couplers.target_noise, init=initialisers.usual),
    "sjd": Method(couple=couplers.fresh, accept=Token()),
    "scd": Method(couple=couplers.maximal, accept=Token()),
    "scd-gumbel": Method(couple=couplers.gumbel, accept=Token()),
    "sjd-pac": Method(couple=couplers.maximal, siblings=4, accept=without_replacement_rule()),
    "sjd++": Method(couple=Reuse(), accept=ReusedToken()),
    "block": Method(couple=couplers.fresh, accept=Block()),
    "gsd": Method(couple=couplers.fresh, accept=_grouped),
    "eagle": Method(shape=STATIC_TREE, accept=without_replacement_rule()),
    "assisted": Method(assisted=True),
    "assisted-jacobi": Method(assisted=True, couple=couplers.target_noise),
    "lantern": Method(shape=ExpandRerank(), accept=_lantern),
    "lantern++": Method(shape=STATIC_TREE, accept=_lantern_plus),
    "cool-sd": Method(shape=STATIC_TREE, accept=cool_tree()),
    "vvs": Method(shape=_SKIPPING, accept=_unverified),
    "zipar": Method(rows=ZipAR()),
    "zipar-adaptive": Method(rows=ZipAR(adaptive=True)),
    "pjd": Method(rows=PJD()),
}
