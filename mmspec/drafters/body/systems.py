"""Published drafters as settings of one body. `--options` of `text/train_drafter.py` changes any of the settings."""

from mmspec.drafters.body.net import Body, BodySettings


class Clover(Body):
    """Clover (Xiao et al. 2024): a layer over the target's last states, and one attention decoder over the draft so far for any depth."""

    kind = "clover"
    settings = BodySettings(paper="arXiv 2405.00263", reads="last", layers=("state",), step="regressive-attention")


class HydraPlusPlus(Body):
    """Hydra++ (Ankner et al. 2024): a layer over the target's last states (prefix attention), and deeper heads that read the draft so far.

    Its teacher loss is the divergence from the target's distributions, as for every other kind here.
    """

    kind = "hydra++"
    settings = BodySettings(paper="arXiv 2402.05109", reads="last", layers=("state",), step="hydra", step_options={"layers": 4})


class Coral(Body):
    """CORAL (Weng et al. 2025): EAGLE-3's layer, trained so that the states of all draft depths agree."""

    kind = "coral"
    settings = BodySettings(paper="arXiv 2502.16880")


class Falcon(Body):
    """Falcon (Gao et al. 2024): EAGLE's layer and an LSTM behind it that give two draft tokens a forward, trained by glancing.

    Its relaxed mask, by which the first token of a block sees the second, is left out: in a tree a token has several continuations. Its
    share of replaced states follows the drafter's errors; here it is fixed.
    """

    kind = "falcon"
    settings = BodySettings(paper="arXiv 2412.12639", reads="last", block=2, glancing=0.3)


class MixtureOfAttentions(Body):
    """Mixture of Attentions (Zimmer et al. 2024): attention over the target's layers, then over values, then from these to its states.

    Its inference through the target's last layers is left out.
    """

    kind = "mixture-of-attentions"
    settings = BodySettings(paper="arXiv 2410.03804", reads="all", join="attention", layers=("value",))


class AmphistaStaged(Body):
    """Amphista (Li et al. 2024) with its staged adaptation layers: half of the heads read the first layer, half of them the second."""

    kind = "amphista-staged"
    settings = BodySettings(paper="arXiv 2406.13170", reads="last", layers=("state", "pair"), step="staged-amphista")


_ALL = (Clover, Coral, HydraPlusPlus, Falcon, MixtureOfAttentions, AmphistaStaged)
SYSTEMS: dict[str, type[Body]] = {system.kind: system for system in _ALL}
