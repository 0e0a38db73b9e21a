"""`mmspec explain`: planted faults are named first, healthy pairs are called healthy, and its figures are those of the engine."""

import json
from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.bench.explain import probes
from mmspec.bench.explain.acceptance import DraftAcceptance, PositionAcceptance
from mmspec.bench.explain.causes import causes_of
from mmspec.bench.explain.costs import PairCosts
from mmspec.bench.explain.explanation import ExplainPlan, Explanation, explain_pair, stage_count
from mmspec.bench.explain.facts import PairFacts
from mmspec.bench.explain.observed import observe
from mmspec.bench.explain.pairs import pair_for
from mmspec.bench.explain.speed import best_length, break_even_rate, expected_speed, tokens_a_round
from mmspec.bench.explain.target_names import quantisation_of, trained_for
from mmspec.bench.schedules.measured import read_measured
from mmspec.cli import app
from tests.bench import planted
from tests.bench.planted import COSTS
from tests.bench.test_report import Page
from tests.tiny import llama

NEW = 20


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


@pytest.fixture(scope="module")
def whole_prompts(mini):
    return mini.processor.batch_decode(mini.examples["input_ids"][:8], skip_special_tokens=True)


@pytest.fixture(scope="module")
def prompts(whole_prompts):
    """Short ones, enough for most causes. Losses by temperature need more tokens to be told from chance."""
    return [prompt[:90] for prompt in whole_prompts[:6]]


def explained(mini, prompts, drafter, target=None, tokenizer=None, plan=None, **settings):
    pair = pair_for(target or mini.target, drafter, tokenizer or mini.processor, **{"max_new_tokens": NEW, **settings})
    given = {"batch_size": len(prompts), "costs": COSTS, **(plan or {})}
    return explain_pair(pair, ExplainPlan(prompts, **given))


def first(found) -> str:
    assert found.causes, found.verdict
    assert not found.healthy
    assert found.verdict == f"likely cause: {found.causes[0].text}"
    assert found.causes[0].evidence
    assert found.causes[0].remedy
    json.dumps(found.to_dict())
    return found.causes[0].name


# --- healthy pairs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "eagle3"])
def test_a_healthy_pair_is_called_healthy(mini, prompts, name):
    found = explained(mini, prompts, mini.drafters[name])
    assert found.healthy, found.verdict
    assert found.facts.best()[1] > 1.3
    json.dumps(found.to_dict())


# --- causes of low acceptance -----------------------------------------------------------------------------------------


def test_another_tokenizer(mini, prompts):
    drafter, theirs = planted.renumbered(mini.drafters["model"], mini.processor)
    found = explained(mini, prompts, drafter, plan={"drafter_tokenizer": theirs})
    assert first(found) == "tokenizer"
    assert found.causes[0].measured
    assert found.facts.probes[probes.TRANSLATED].rate > 0.5 > 0.2 > found.facts.acceptance.rate


def test_a_tokenizer_that_shares_too_little_to_be_translated(mini, prompts):
    drafter, theirs = planted.renumbered(mini.drafters["model"], mini.processor)
    known = theirs.get_vocab()
    theirs.get_vocab = lambda: {f"x{token}": number for token, number in known.items()}
    found = explained(mini, prompts, drafter, plan={"drafter_tokenizer": theirs})
    assert first(found) == "tokenizer"
    assert not found.causes[0].measured


def test_a_missing_and_a_wrong_chat_template(mini):
    form = "Question: {{ messages[0]['content'] }}\nAnswer:"
    noise = "<|im_start|>user\n{{ messages[0]['content'] }}<|im_end|>\n<|im_start|>assistant\n"
    right, wrong = (planted.templated(mini.processor, template) for template in (form, noise))
    asked = planted.questions()
    found = explained(mini, asked, mini.drafters["model"], tokenizer=wrong, chat=True)
    assert first(found) == "chat template"
    found = explained(mini, asked, mini.drafters["model"], tokenizer=right, chat=True)
    assert found.healthy, found.verdict


def test_a_template_of_another_model_in_the_prompts(mini, prompts):
    marked = [f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n" for prompt in prompts]
    assert first(explained(mini, marked, mini.drafters["model"])) == "chat template"


@pytest.mark.parametrize("name", ["eagle1", "medusa"])
def test_a_drafter_of_another_target(mini, prompts, name):
    found = explained(mini, prompts, mini.drafters[name], target=planted.other_basis(mini.target))
    assert first(found) == "another target"
    assert len(found.causes) == 1


def test_a_drafter_model_that_knows_nothing(mini, prompts):
    found = explained(mini, prompts, llama(max_position_embeddings=2048))
    assert first(found) == "another target"


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_layers_off_by_one(mini, prompts, shift):
    """Neighbouring states of the mini are so alike that a drafter reads one for the other: here they are not."""
    net = mini.drafters["eagle3"]
    found = explained(mini, prompts, planted.shifted(net, shift), target=planted.with_other_neighbours(mini.target, net.reads))
    if shift == 0:
        assert found.healthy, found.verdict
    else:
        assert first(found) == "layers"
        assert f"trained on {net.reads}" in found.causes[0].text


@pytest.fixture(scope="module")
def coarse(mini):
    return planted.rounded(mini.target, bits=2)


def test_a_quantised_target(mini, prompts, coarse):
    found = explained(mini, prompts[:4], mini.drafters["eagle3"], target=coarse, plan={"reference": mini.target})
    assert first(found) == "quantised target"
    assert found.causes[0].measured


def test_a_quantised_target_without_its_full_precision(mini, prompts, coarse, monkeypatch):
    monkeypatch.setattr(coarse.config, "quantization_config", {"quant_method": "bitsandbytes", "bits": 2}, raising=False)
    found = explained(mini, prompts[:4], mini.drafters["model"], target=coarse)
    assert first(found) == "quantised target"
    assert found.facts.quantised == "bitsandbytes, 2 bits"
    assert not found.causes[0].measured


def test_a_high_temperature(mini, whole_prompts):
    assert first(explained(mini, whole_prompts, mini.drafters["eagle3"], temperature=1.3, max_new_tokens=32)) == "sampling settings"


def test_a_temperature_that_a_drafter_too_sure_of_itself_does_not_stand(mini, whole_prompts):
    sharp = planted.scaled(mini.drafters["model"], 3.0)
    assert first(explained(mini, whole_prompts, sharp, temperature=1.0, max_new_tokens=32)) == "sampling settings"
    assert explained(mini, whole_prompts, mini.drafters["model"], temperature=0.7).healthy


def test_a_flat_distribution(mini, prompts, coarse):
    """A target that is unsure of every token. Flat logits alone cost a greedy drafter nothing, and are no cause."""
    found = explained(mini, prompts[:4], mini.drafters["model"], target=coarse)
    assert first(found) == "flat distribution"
    assert found.facts.acceptance.entropy > 4
    flat = explained(mini, prompts, mini.drafters["model"], target=planted.scaled(mini.target, 0.3))
    assert flat.facts.acceptance.entropy > 4
    assert flat.healthy, flat.verdict


def test_a_rule_that_loses_what_the_distributions_allow(mini, prompts):
    found = explained(mini, prompts, planted.by_itself(mini.drafters["eagle3"]), temperature=0.8)
    assert first(found) == "rule"


def test_a_vocabulary_without_the_tokens_that_are_written(mini, prompts):
    found = explained(mini, prompts, planted.with_half_the_vocabulary(mini.drafters["eagle3"]))
    assert first(found) == "vocabulary"


def test_prompts_longer_than_the_drafter(mini, whole_prompts):
    found = explained(mini, whole_prompts, planted.short(mini.drafters["model"], 64), max_new_tokens=32)
    assert first(found) == "positions"
    assert found.causes[0].measured


def test_nothing_to_copy(mini, prompts):
    found = explained(mini, [prompt[:40] for prompt in prompts], "lookup", max_new_tokens=12)
    assert first(found) == "nothing to copy"


# --- causes of seconds ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def healthy(mini, prompts):
    return explained(mini, prompts, mini.drafters["model"], draft_length=4).facts


def named(facts: PairFacts) -> str:
    found = causes_of(facts)
    return found[0].name if found else "healthy"


def test_costs_that_pay_have_no_cause(healthy):
    assert named(healthy) == "healthy"


def test_a_drafter_too_dear(healthy):
    assert named(replace(healthy, costs=replace(COSTS, step=0.008))) == "drafter too dear"


def test_a_drafter_that_starts_late(healthy):
    assert named(replace(healthy, costs=replace(COSTS, draft_prefill=0.2))) == "drafter's prompt"


def test_a_batch_that_fills_the_machine(healthy):
    full = replace(COSTS, columns={1: 0.02, 2: 0.036, 4: 0.068, 8: 0.13, 16: 0.26})
    assert named(replace(healthy, costs=full, alone=COSTS, batch_size=32)) == "batch too large"
    assert named(replace(healthy, costs=COSTS, alone=COSTS, batch_size=2)) == "healthy"


def test_a_machine_that_one_row_fills(healthy):
    full = replace(COSTS, columns={1: 0.01, 2: 0.018, 4: 0.034, 8: 0.065, 16: 0.13})
    seldom = tuple(PositionAcceptance(200, 120, 0.6, 0.6) for _ in range(4))
    facts = replace(healthy, batch_size=1, length=None, costs=full, acceptance=replace(healthy.acceptance, positions=seldom))
    assert named(facts) == "columns too dear"
    assert named(replace(facts, costs=COSTS)) == "healthy"


def test_a_pair_of_no_known_cause_says_what_would_pay(healthy):
    seldom = tuple(PositionAcceptance(200, 60, 0.3, 0.3) for _ in range(4))
    found = Explanation("big", "small", replace(healthy, acceptance=replace(healthy.acceptance, positions=seldom), most=1), ())
    costs = replace(COSTS, columns={1: 0.01, 2: 0.0125, 4: 0.016, 8: 0.025, 16: 0.04}, step=0.0019)
    found = replace(found, facts=replace(found.facts, costs=costs))
    assert found.verdict.startswith("drafting does not pay here: 30 % of judged draft tokens are accepted, drafts pay from ")


def test_drafts_too_long_and_too_short(healthy):
    steep = replace(COSTS, columns={1: 0.010, 2: 0.0105, 4: 0.0115, 8: 0.014, 16: 0.022})
    found = causes_of(replace(healthy, costs=steep, length=16))
    assert (found[0].name, "too many" in found[0].text) == ("draft length", True)
    found = causes_of(replace(healthy, costs=replace(COSTS, step=0.0003), length=1))
    assert (found[0].name, "too few" in found[0].text) == ("draft length", True)


def test_a_drafter_that_is_too_weak(healthy):
    seldom = tuple(PositionAcceptance(200, 60, 0.3, 0.3) for _ in range(4))
    acceptance = replace(healthy.acceptance, positions=seldom, sure_rate=0.5, entropy=1.0)
    facts = replace(healthy, acceptance=acceptance, costs=replace(COSTS, step=0.002, draft_prefill=0.0))
    assert named(facts) == "weak drafter"


# --- the figures ------------------------------------------------------------------------------------------------------


def acceptance_of(*counts: tuple[int, int]) -> DraftAcceptance:
    positions = tuple(PositionAcceptance(judged, accepted, None, None) for judged, accepted in counts)
    return DraftAcceptance(positions, 1, 1, 0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["model", "eagle3"])
def test_observed_rounds_are_those_of_the_engine(mini, prompts, name):
    """Counts are those of `Stats` without an observer; the mean TV is what the token rule reports as expected rejections."""
    settings = {"temperature": 0.8, "seed": 3, "max_new_tokens": 16, "draft_length": 8, "accept": "token"}
    pair = pair_for(mini.target, mini.drafters[name], mini.processor, **settings)
    inputs = pair.inputs(prompts[:3])
    found, times = observe(pair, [inputs], 8)
    stats = pair.generate(inputs).stats
    assert [each.rate for each in found.positions] == pytest.approx(stats.acceptance_by_position)
    assert (found.judged, found.tokens, found.rounds) == (stats.judged, stats.tokens, stats.row_calls)
    assert (1 - found.best) * found.judged == pytest.approx(stats.expected_rejections, rel=1e-4)
    assert len(times.generations) == 1
    assert times.step > 0


def test_the_target_as_its_own_drafter_is_the_best_possible(mini, prompts):
    pair = pair_for(mini.target, mini.target, mini.processor, max_new_tokens=12, temperature=0.7)
    found, _ = observe(pair, [pair.inputs(prompts[:2])], 4)
    assert found.rate == 1
    assert found.agreement == 1
    assert found.best == pytest.approx(1, abs=1e-4)


def test_expected_tokens_and_speeds():
    assert tokens_a_round((0.5,), 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert tokens_a_round((0.5, 0.8), 3) == pytest.approx(1 + 0.5 + 0.4 + 0.32)
    assert tokens_a_round((), 3) == 1
    free = PairCosts({1: 1.0}, step=0.0)
    assert expected_speed((0.5,), free, 3, 100) == pytest.approx(1.875)
    assert expected_speed((0.5,), free, 3, 100, drafted=0.5) == pytest.approx((1 + 1.875) / 2)
    assert expected_speed((0.5,), replace(free, step=0.5), 2, 100, drafted=0.0) == pytest.approx(1)
    assert best_length((0.5,), free, 100)[0] == 16
    assert best_length((0.5,), replace(free, step=0.4), 100)[0] == 1
    assert expected_speed((0.0,), COSTS, 4, 64) < 1 == expected_speed((0.0,), COSTS, 0, 64)


@pytest.mark.parametrize("length", [1, 4, 8])
def test_at_break_even_both_ways_cost_the_same(length):
    needed = break_even_rate(COSTS, length)
    assert expected_speed((needed,), replace(COSTS, prefill=0, draft_prefill=0), length, 1000) == pytest.approx(1)
    assert break_even_rate(replace(COSTS, step=1.0), length) is None


def test_costs_between_and_beyond_what_was_measured():
    assert COSTS.target(3) == pytest.approx(0.0105)
    assert COSTS.target(32) == pytest.approx(0.016 + 16 * 0.0005)
    assert COSTS.round(3) == pytest.approx(0.0108 + 0.003)
    with pytest.raises(ValueError, match="1 column"):
        PairCosts({2: 1.0}, 0.1)


def test_rates_of_few_tokens_follow_the_position_before():
    assert acceptance_of((1000, 800), (1, 0)).rates()[1] == pytest.approx(0.8 * 4 / 5, rel=1e-2)
    assert not acceptance_of((10, 8)).clearly_better(acceptance_of((10, 5)))
    assert acceptance_of((1000, 800)).clearly_better(acceptance_of((1000, 500)))
    assert not acceptance_of((10000, 550)).clearly_better(acceptance_of((10000, 500)))


def test_names_in_the_drafter_s_files(mini, tmp_path):
    pair = pair_for(mini.target, mini.drafters["eagle3"], mini.processor)
    section = replace(pair.config.drafter, path=str(tmp_path))
    pair = replace(pair, name="./models/big-instruct", config=replace(pair.config, drafter=section))
    for config, expected in (
        ({"speculators_config": {"verifier": {"name_or_path": "acme/big-base"}}}, "acme/big-base"),
        ({"speculators_config": {"verifier": {"name_or_path": "acme/Big-Instruct"}}}, ""),
        ({"base_model_name_or_path": "acme/other"}, "acme/other"),
        ({}, ""),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert trained_for(pair) == expected
    assert quantisation_of(pair) == ""
    assert quantisation_of(replace(pair, name="big.Q4_K_M.gguf")) == "GGUF"
    assert quantisation_of(replace(pair, name="big.F16.gguf")) == ""


# --- the calls --------------------------------------------------------------------------------------------------------


def test_the_call_measures_seconds_itself(mini, prompts):
    found = mmspec.explain(
        mini.target, prompts[:2], mini.drafters["model"], tokenizer=mini.processor, batch_size=2, max_new_tokens=8, draft_length=2
    )
    assert set(found.facts.costs.columns) == {1, 2, 4, 8, 16}
    assert found.facts.costs.step > 0
    assert found.facts.alone is not None
    assert found.speed.count == 3
    assert found.to_dict()["measured_speed"]["median"] > 0
    assert torch.is_grad_enabled()


def test_ids_need_no_tokenizer_and_stages_are_counted(mini):
    inputs = {key: value[:2] for key, value in mini.examples.items()}
    pair = pair_for(mini.target, mini.drafters["eagle3"], max_new_tokens=8)
    from mmspec.bench.explain.pairs import prompts_from

    stages = []
    plan = ExplainPlan(prompts_from(inputs, None, pair.target), costs=COSTS, done=stages.append)
    explain_pair(pair, plan)
    assert stages == ["acceptance", probes.BELOW, probes.ABOVE]
    assert stage_count(pair, plan) == len(stages)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drafter": None}, "drafter is None"),
        ({"inputs": "one text"}, "list of texts"),
        ({"inputs": []}, "no prompts"),
        ({"tokenizer": None}, "give tokenizer too"),
        ({"draft_length": -1}, "draft"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_invalid_arguments_are_refused_by_name(mini, change, words):
    given = {"inputs": ["a"], "drafter": "lookup", "tokenizer": mini.processor} | change
    with pytest.raises(ValueError, match=words):
        mmspec.explain(mini.target, given.pop("inputs"), given.pop("drafter"), **given)


# --- the command ------------------------------------------------------------------------------------------------------


def command(capsys, *args):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        app(["explain", *args])
    return stopped.value.code, *capsys.readouterr()


def test_the_command_shows_and_writes_what_was_found(capsys, tmp_path):
    small = ("--limit", "2", "--max-new-tokens", "8", "--repeats", "1")
    code, out, _ = command(capsys, *small, "--json", "--output", str(tmp_path / "why.json"), "--html", str(tmp_path / "why.html"))
    found = json.loads(out)
    assert code == 0
    assert found == json.loads((tmp_path / "why.json").read_text())
    measured = read_measured(tmp_path / "why.json")
    assert measured.rates
    assert measured.machine
    assert measured.machine.score(1) == found["costs"]["columns"]["1"]
    assert measured.latencies
    assert len(measured.latencies.target) == 32
    page = Page((tmp_path / "why.html").read_text(encoding="utf-8"))
    assert (page.problems, page.open, page.fetched) == ([], [], [])
    assert {"verdict", "causes", "acceptance", "costs", "break_even", "expected", "measured_speed", "provenance", "settings"} < set(found)
    code, out, _ = command(capsys, *small, "--drafter", "eagle3", "--temperature", "0.8", "--draft-length", "3")
    assert code == 0
    for part in ("best possible", "same best token", "ms by columns", "greedy", "acceptance that pays", "against plain decoding", "eagle3"):
        assert part in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--drafter", "none"), "leaves nothing to explain"),
        (("--top-p", "0.9"), "--temperature"),
        (("--batch-size", "0"), "--batch-size is 0"),
        (("--repeats", "0"), "--repeats is 0"),
        (("--reference", "./nowhere"), "./nowhere does not exist"),
        (("--chat",), "no chat template"),
        (("--output", "nowhere/at/all.json"), "cannot write"),
        (("--accept", "maybe"), "'maybe'"),
    ],
)
def test_wrong_options_end_in_one_line(capsys, args, words):
    code, out, err = command(capsys, "--limit", "1", "--max-new-tokens", "2", *args)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
