"""Causes of low acceptance whose effect can be told apart, most of them by a run without the cause."""

from mmspec.bench.explain import probes
from mmspec.bench.explain.cause import LEAST_GAIN, Cause, FindCause, cause_of_acceptance, percent
from mmspec.bench.explain.facts import GOOD, PairFacts

_LOST = 0.12  # acceptance; the coupled rule loses up to 0.11 to its shared noise


def _tokenizer(facts: PairFacts) -> Cause | None:
    """The drafter's ids stand for other tokens than the target's."""
    match = facts.tokenizers
    if match is None or match.same or match.translated or facts.acceptance.rate >= GOOD:
        return None
    evidence = [f"{match.equal} of the target's {match.ours} tokens have the same id in the drafter's vocabulary of {match.theirs}"]
    evidence.append(f"{match.shared} tokens are in both")
    found = facts.probe(probes.TRANSLATED)
    remedy = "choose a drafter with the target's tokenizer"
    if found is not None:
        evidence.append(f"with ids translated, {percent(found[1].rate)} instead of {percent(facts.acceptance.rate)} are accepted")
        remedy += ", or translate: mmspec.text.aligned_drafter(model, tokenizer, drafter, drafter_tokenizer)"
    text = "the drafter has another tokenizer: its ids stand for other tokens than the target's"
    return cause_of_acceptance("tokenizer", text, evidence, remedy, facts, found)


def _chat_template(facts: PairFacts) -> Cause | None:
    """The prompts are in no chat template, or in a wrong one."""
    found, rate = facts.probe(probes.IN_TEMPLATE, probes.BARE), facts.acceptance.rate
    if found is not None:
        text, remedy = "the prompts are not in the target's chat template, for which the drafter was trained", "give --chat (chat=True)"
        if found[0] == probes.BARE:
            text, remedy = "the prompts are in a chat template that the drafter was not trained for", "leave --chat out (chat=False)"
        evidence = [f"{found[0]} {percent(found[1].rate)} are accepted, instead of {percent(rate)}"]
        return cause_of_acceptance("chat template", text, evidence, remedy, facts, found)
    if not facts.markers or rate >= GOOD:
        return None
    text = f"the prompts are in the chat template of another model: {', '.join(facts.markers)} is no token of this target"
    evidence = [f"{percent(rate)} of judged draft tokens are accepted"]
    return cause_of_acceptance("chat template", text, evidence, "use the target's own template: give plain prompts and --chat", facts, None)


def _layers(facts: PairFacts) -> Cause | None:
    """The drafter reads other hidden states than it was trained on."""
    found = facts.probe(probes.BELOW, probes.ABOVE)
    if found is None:
        return None
    shift = -1 if found[0] == probes.BELOW else 1
    wanted = tuple(state + shift for state in facts.reads)
    text = f"the drafter reads hidden states one layer off: {facts.reads}, but it was trained on {wanted}"
    evidence = [f"reading {wanted}, {percent(found[1].rate)} are accepted, instead of {percent(facts.acceptance.rate)}"]
    remedy = f"load it with states={wanted}, or with the other layer_ids ('inputs' or 'outputs')"
    return cause_of_acceptance("layers", text, evidence, remedy, facts, found)


def _quantised(facts: PairFacts) -> Cause | None:
    """The target's weights are quantised, and the drafter was trained for full precision."""
    found, drafts = facts.probe(probes.REFERENCE), facts.probes.get(probes.REFERENCE_DRAFTS)
    if found is None:
        return None
    evidence = [f"with the target in full precision {percent(found[1].rate)} are accepted, instead of {percent(facts.acceptance.rate)}"]
    if drafts is not None and drafts.best is not None:
        evidence.append(
            f"the full-precision target itself, as the drafter, could be accepted at {percent(drafts.best)}: "
            f"its distribution and the quantised one are {1 - drafts.best:.2f} apart"
        )
    text = f"the target is quantised ({facts.quantised or 'its weights differ from full precision'}), the drafter knows full precision"
    return cause_of_acceptance("quantised target", text, evidence, "train the drafter on the quantised target's own output", facts, found)


def _positions(facts: PairFacts) -> Cause | None:
    """Prompts and outputs are longer than the drafter's positions."""
    if facts.limit is None or facts.longest <= facts.limit:
        return None
    found, rate = facts.probe(probes.SHORT), facts.acceptance.rate
    if found is None and (probes.SHORT in facts.probes or rate >= GOOD):
        return None  # it was tried, and changes nothing
    evidence = [f"the longest prompt and its output take {facts.longest} tokens, the drafter has {facts.limit} positions"]
    if found is not None:
        evidence.append(f"on the ends of the prompts, which fit, {percent(found[1].rate)} are accepted, instead of {percent(rate)}")
    text = "the prompts are too long for the drafter"
    remedy = "choose a drafter with more positions, or draft from a part of the context (drafter 'windowed', 'lookup')"
    return cause_of_acceptance("positions", text, evidence, remedy, facts, found)


def _vocabulary(facts: PairFacts) -> Cause | None:
    """The drafter's vocabulary lacks tokens that the target writes."""
    measured = facts.probes.get(probes.GREEDY, facts.acceptance)  # truncation takes tokens away when sampling
    missing = measured.missing or 0.0
    if missing < 0.1:
        return None
    rates = [min(1.0, rate / (1 - missing)) if missing < 1 else GOOD for rate in facts.acceptance.rates()]
    text = "the drafter's vocabulary lacks tokens that the target writes"
    evidence = (f"at {percent(missing)} of the positions the target's most likely token cannot be drafted",)
    remedy = "train the drafter with the tokens of your texts in its vocabulary, or choose one that shares more of the target's tokens"
    return Cause("vocabulary", text, evidence, remedy, facts.gain(rates))


def _rule(facts: PairFacts) -> Cause | None:
    """The accept rule, or how tokens are drawn for it, loses what the distributions allow."""
    acceptance = facts.acceptance
    best = acceptance.best
    if best is None or best - acceptance.rate < max(_LOST, 3 * (best * (1 - best) / max(1, acceptance.judged)) ** 0.5):
        return None
    text = f"the rule {facts.rule} loses draft tokens that the distributions of target and drafter allow to accept"
    evidence = [f"{percent(acceptance.rate)} are accepted; the best possible for these distributions is {percent(best)}"]
    if facts.temperature:
        remedy = (
            "use accept='exact' with draft tokens drawn from the drafter's distribution at the request's temperature, or accept='block'"
        )
    else:
        evidence.append("the drafter does not draft its most likely tokens")
        remedy = "draft the most likely tokens: pass the drafter's model itself, and leave its own sampling out"
    return Cause("rule", text, tuple(evidence), remedy, facts.gain(acceptance.rates(best=True)))


def _sampling(facts: PairFacts) -> Cause | None:
    """Temperature and truncation make the target hard to predict; its most likely tokens are not."""
    acceptance, greedy = facts.acceptance, facts.probes.get(probes.GREEDY)
    if greedy is None or not greedy.clearly_better(acceptance, 0.15):
        return None
    possible = acceptance.rate if acceptance.best is None else acceptance.best
    gain = facts.gain(greedy.rates()) / facts.gain(acceptance.rates(best=True))
    if greedy.rate - possible < 0.1 or gain < LEAST_GAIN:
        return None
    text = f"the sampling settings: at temperature {facts.temperature:g} the target's draws are hard to predict"
    evidence = (
        f"{percent(greedy.rate)} are accepted at temperature 0, {percent(acceptance.rate)} as requested",
        f"the entropy of the target's distribution is {acceptance.entropy:.1f} nats, untempered on greedy text {greedy.entropy:.1f}",
    )
    remedy = "lower the temperature, or truncate (--top-p, --top-k): both make the target's distribution narrower"
    return Cause("sampling settings", text, evidence, remedy, gain)


SPECIFIC: tuple[FindCause, ...] = (*(_tokenizer, _chat_template, _layers, _quantised, _positions, _vocabulary, _rule, _sampling),)
"""All of them; each returns None where its cause does not apply."""
