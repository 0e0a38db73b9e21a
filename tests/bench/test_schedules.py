"""Schedules of drafting and verifying: exact rates against simulations and against known bounds, laws, and mutants that must fail."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmspec.bench.schedules import pearl as pearl_module
from mmspec.bench.schedules import pipeinfer as pipeinfer_module
from mmspec.bench.schedules.amusd import AmusdSchedule
from mmspec.bench.schedules.chain import ChainSchedule
from mmspec.bench.schedules.cycles import ExpectedCycle, long_run, tokens_a_round
from mmspec.bench.schedules.early_exit import PpdSchedule, exit_rates, tokens_in_work
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.pearl import PearlSchedule
from mmspec.bench.schedules.pipeinfer import PipeInferSchedule
from mmspec.bench.schedules.simulation import MeasuredLatencies, SimulatedCalls
from mmspec.bench.schedules.speed import SpeedSchedule
from mmspec.bench.schedules.tree import TreeSchedule

EVEN = PlannedMachine(target=1.0, draft=0.1)
DEAR = PlannedMachine(target=1.0, draft=0.13, column=0.04, free=2)
BATCH = PlannedMachine(target=1.0, draft=0.13, column=0.01, free=4, rows=4)
STAGES = PlannedMachine(target=1.0, draft=0.1, column=0.02, stages=4, handover=0.01)
FALLING = (0.9, 0.8, 0.6)
EVERY = (
    (ChainSchedule(4), EVEN),
    (ChainSchedule(4), BATCH),
    (TreeSchedule(12), DEAR),
    (TreeSchedule(6), BATCH),
    (PearlSchedule(4), DEAR),
    (PearlSchedule(3), BATCH),
    (PearlSchedule(), DEAR),
    (AmusdSchedule(), DEAR),
    (AmusdSchedule(2), EVEN),
    (PipeInferSchedule(1), STAGES),
    (PipeInferSchedule(3), STAGES),
    (PpdSchedule(2, 0.7), STAGES),
    (SpeedSchedule(1, 0.6, 2), STAGES),
)
TOKENS = 60_000


def named(case) -> str:
    return f"{case[0].name}-{case[0].setting}-{case[1].rows}"


def rate(schedule, machine=EVEN, rates=(0.8,)) -> float:
    return schedule.expect(machine, rates).tokens_per_second


def simulated(schedule, machine=EVEN, rates=(0.8,), tokens=TOKENS, seed=0, latencies=None):
    return schedule.simulate(SimulatedCalls(machine, rates, seed, latencies), tokens)


# --- exact rates and simulations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(0.0,), (0.7,), FALLING, (1.0,)], ids=str)
@pytest.mark.parametrize("case", EVERY, ids=named)
def test_the_exact_rate_is_the_simulated_one(case, rates):
    schedule, machine = case
    if schedule.name == "tree" and rates[0] == 0:
        with pytest.raises(ValueError, match="0 for every draft token"):
            rate(schedule, machine, rates)
        return
    run, expected = simulated(schedule, machine, rates), schedule.expect(machine, rates)
    assert run.tokens_per_second == pytest.approx(expected.tokens_per_second, rel=0.012)
    assert run.tokens / run.calls / machine.rows == pytest.approx(expected.tokens_per_call, rel=0.012)


def test_the_same_seed_gives_the_same_run():
    assert simulated(PearlSchedule(4), tokens=500) == simulated(PearlSchedule(4), tokens=500)
    assert simulated(PearlSchedule(4), tokens=500) != simulated(PearlSchedule(4), tokens=500, seed=1)


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 8])
def test_a_chain_commits_one_token_at_acceptance_0_and_all_at_1(length):
    seconds = length * 0.1 + 1.0
    assert rate(ChainSchedule(length), rates=(0.0,)) == pytest.approx(1 / seconds)
    assert rate(ChainSchedule(length), rates=(1.0,)) == pytest.approx((length + 1) / seconds)
    assert ChainSchedule(length).expect(EVEN, (1.0,)).tokens_per_call == length + 1
    closed = (1 - 0.8 ** (length + 1)) / (1 - 0.8)  # Leviathan et al. 2023, equation 1
    assert ChainSchedule(length).expect(EVEN, (0.8,)).tokens == pytest.approx(closed)


def test_plain_decoding_is_a_chain_of_nothing():
    assert rate(ChainSchedule(0)) == 1.0
    assert rate(ChainSchedule(0), BATCH) == 4.0
    assert simulated(ChainSchedule(0), rates=(0.0,), tokens=10) == simulated(ChainSchedule(0), rates=(1.0,), tokens=10)


@pytest.mark.parametrize("acceptance", [0.3, 0.8, 0.95])
def test_pearl_has_its_closed_form(acceptance):
    """A run is one round of pre-verify and, if that accepts, rounds that each go on with acceptance ** length."""
    length, a = 10, acceptance
    post, keep = (1 - a**length) / (1 - a), a**length
    tokens, rounds = 1 + a * post / (1 - keep), 1 + a / (1 - keep)
    assert rate(PearlSchedule(length), rates=(a,)) == pytest.approx(tokens / rounds)
    assert rate(PearlSchedule(), rates=(a,)) == pytest.approx(tokens / rounds)  # ten draft tokens last as long as the target


def test_pearl_at_acceptance_0_is_plain_decoding():
    """The drafter on its own device costs nothing where its round is no longer than the target's."""
    assert rate(PearlSchedule(10), rates=(0.0,)) == pytest.approx(1.0)
    assert rate(PipeInferSchedule(1), PlannedMachine(1.0, 0.1, stages=3), (0.0,)) == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", [PearlSchedule(10), AmusdSchedule(), PipeInferSchedule(10), PipeInferSchedule(1)])
def test_asynchronous_pairs_write_at_the_speed_of_the_drafter_at_acceptance_1(schedule):
    machine = PlannedMachine(1.0, 0.1, stages=16) if schedule == PipeInferSchedule(1) else EVEN  # one token enters in 1 / 16
    assert rate(schedule, machine, (1.0,)) == pytest.approx(10.0, rel=1e-3)


@pytest.mark.parametrize("length", [2, 10, 50])
def test_overlap_is_worth_at_most_twice_the_synchronous_loop(length):
    """Where drafting and verifying take the same time, both at once take half of both in turn."""
    machine = PlannedMachine(1.0, 1.0 / length)
    ratio = rate(PearlSchedule(length), machine, (1.0,)) / rate(ChainSchedule(length), machine, (1.0,))
    assert ratio == pytest.approx(2 * length / (length + 1), rel=1e-3)
    for a in (0.2, 0.6, 0.9, 0.99):
        assert rate(PearlSchedule(length), machine, (a,)) < 2 * rate(ChainSchedule(length), machine, (a,))


def test_equal_times_of_one_token_leave_nothing_to_overlap():
    machine = PlannedMachine(1.0, 1.0)
    for schedule in (PearlSchedule(1), PearlSchedule(), AmusdSchedule()):
        assert rate(schedule, machine, (1.0,)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("after", "stages"), [(1, 2), (1, 4), (3, 4)])
@pytest.mark.parametrize("match", [0.0, 0.6, 1.0])
def test_early_exits_have_the_papers_latency(after, stages, match):
    machine = PlannedMachine(2.0, 0.0, stages=stages)
    assert rate(PpdSchedule(after, match), machine) == pytest.approx(1 / (2.0 * (1 - match * (1 - after / stages))))
    assert rate(SpeedSchedule(after, match), machine) == pytest.approx(rate(PpdSchedule(after, match), machine))
    dear = PlannedMachine(2.0, 0.0, column=0.1, stages=stages)
    assert rate(SpeedSchedule(after, match), dear) < rate(PpdSchedule(after, match), dear)  # its tokens share one device


def test_a_tree_of_one_child_a_level_is_a_chain():
    single = TreeSchedule(5, retry=0.0)
    machine = PlannedMachine(1.0, 0.02)
    assert rate(single, machine, FALLING) == pytest.approx(rate(ChainSchedule(5), machine, FALLING))
    assert rate(TreeSchedule(5), machine, FALLING) >= rate(single, machine, FALLING)


def test_amusd_waits_for_its_first_draft_token():
    """At acceptance 0 every run is one draft token, one forward over it, and the rest of the drafter's step."""
    assert rate(AmusdSchedule(), PlannedMachine(1.0, 0.3), (0.0,)) == pytest.approx(1 / (0.3 + 1.0 + 0.2))
    assert rate(AmusdSchedule(1), PlannedMachine(1.0, 0.3), (0.0,)) == pytest.approx(1 / (0.3 + 1.0))  # it paused


def test_pipeinfer_keeps_every_stage_busy():
    """Groups of one token leave a full pipeline a stage's time apart."""
    machine = PlannedMachine(1.0, 0.05, stages=4)
    assert rate(PipeInferSchedule(1), machine, (1.0,)) == pytest.approx(4.0, rel=1e-3)
    assert rate(PipeInferSchedule(1), PlannedMachine(1.0, 3.0, stages=4), (1.0,)) == pytest.approx(1.0)  # too slow a drafter: plain


# --- oracles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("group", [1, 2, 5])
def test_pipeinfer_is_a_sum_over_where_the_first_rejection_falls(group, acceptance):
    """Group k enters when its tokens are drafted and the first stage is free, and leaves a forward later."""
    machine, entered, places = PlannedMachine(1.0, 0.1, stages=4), [0.0], 400
    for number in range(1, places):
        entered.append(max(0.1 * group * number, entered[-1] + 1.0 / 4))
    tokens = seconds = 0.0
    for rejected in range(places):  # draft tokens accepted before the first rejection
        chance = acceptance**rejected * (1 - acceptance)
        through = 0 if rejected == 0 else 1 + (rejected - 1) // group  # the group that verifies the rejected one
        tokens, seconds = tokens + chance * (rejected + 1), seconds + chance * (entered[through] + 1.0)
    assert rate(PipeInferSchedule(group), machine, (acceptance,)) == pytest.approx(tokens / seconds)


def ticks(draft: int, target: int, acceptance: float, tokens: int, seed: int = 0) -> float:
    """AMUSD tick by tick; tokens a tick."""
    random = Random(seed)
    committed = now = waiting = 0  # waiting: draft tokens that the target has not begun to verify
    drafting, verifying, batch, discard = draft, 0, 0, False
    while committed < tokens:
        if verifying == 0 and waiting and not discard:
            batch, waiting, verifying = waiting, 0, target
        now, drafting = now + 1, drafting - 1
        if drafting == 0:
            drafting, waiting, discard = draft, 0 if discard else waiting + 1, False
        if verifying:
            verifying -= 1
            if verifying == 0:
                accepted = next((n for n in range(batch) if random.random() >= acceptance), batch)
                committed += min(accepted + 1, batch)
                if accepted < batch:
                    waiting, discard = 0, drafting < draft  # a step in work ends before the drafter starts again
    return committed / now


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
@pytest.mark.parametrize(("draft", "target"), [(2, 7), (3, 20), (5, 5)])
def test_amusd_is_what_its_clock_shows_tick_by_tick(draft, target, acceptance):
    machine = PlannedMachine(float(target), float(draft))
    assert rate(AmusdSchedule(1000), machine, (acceptance,)) == pytest.approx(ticks(draft, target, acceptance, 40_000), rel=0.02)


# --- laws -------------------------------------------------------------------------------------------------------------

chances = st.floats(0.01, 0.99)
machines = st.builds(
    PlannedMachine,
    target=st.floats(0.1, 10),
    draft=st.floats(0.01, 1.0),
    column=st.floats(0, 0.2),
    free=st.integers(1, 8),
    stages=st.integers(2, 6),
    handover=st.floats(0, 0.1),
)
anything = st.one_of(
    st.builds(ChainSchedule, st.integers(0, 12)),
    st.builds(PearlSchedule, st.integers(1, 12)),
    st.builds(AmusdSchedule, st.integers(1, 32)),
    st.builds(PipeInferSchedule, st.integers(1, 8)),
)
law = settings(max_examples=60, deadline=None, derandomize=True)


def moved(machine: PlannedMachine, **changes) -> PlannedMachine:
    from dataclasses import replace

    return replace(machine, **changes)


@law
@given(machines, st.builds(ChainSchedule, st.integers(0, 12)), chances, chances)
def test_a_chain_gains_by_acceptance_and_loses_by_seconds(machine, schedule, one, other):
    low, high = sorted((one, other))
    assert rate(schedule, machine, (low,)) <= rate(schedule, machine, (high,)) * (1 + 1e-9)
    for change in ({"draft": 2 * machine.draft}, {"column": 2 * machine.column + 0.1}, {"target": 2 * machine.target}):
        assert rate(schedule, moved(machine, **change), (low,)) <= rate(schedule, machine, (low,)) * (1 + 1e-9)


@law
@given(machines, st.builds(PearlSchedule, st.integers(1, 12)), chances, chances)
def test_pearl_gains_by_acceptance_where_columns_are_free(machine, schedule, one, other):
    machine, (low, high) = moved(machine, column=0.0), sorted((one, other))
    assert rate(schedule, machine, (low,)) <= rate(schedule, machine, (high,)) * (1 + 1e-9)


@law
@given(machines, anything, chances)
def test_no_schedule_beats_its_drafter_or_its_tokens(machine, schedule, acceptance):
    """Nothing is committed that was not drafted or written by the target's forward."""
    found = schedule.expect(machine, (acceptance,))
    drafted = inf if machine.draft == 0 else 1 / machine.draft + 1 / machine.score(1)
    pipelined = machine.stages / machine.target if schedule.name == "pipeinfer" else 1 / machine.target
    assert 0 < found.tokens_per_second <= (drafted + pipelined) * (1 + 1e-9)
    assert found.tokens_per_call >= 1 - 1e-9


@law
@given(machines, anything, chances)
def test_seconds_scale(machine, schedule, acceptance):
    """In other units of time the rate is the same."""
    scaled = moved(machine, **{name: 3 * getattr(machine, name) for name in ("target", "draft", "column", "handover")})
    assert 3 * rate(schedule, scaled, (acceptance,)) == pytest.approx(rate(schedule, machine, (acceptance,)), rel=1e-6)


@law
@given(machines, chances)
def test_pipeinfer_in_groups_of_one_is_never_slower_than_plain_where_columns_are_free(machine, acceptance):
    machine = moved(machine, column=0.0, handover=0.0)
    assert rate(PipeInferSchedule(1), machine, (acceptance,)) >= rate(ChainSchedule(0), machine) * (1 - 1e-9)


@law
@given(st.lists(chances, min_size=1, max_size=6), st.integers(0, 12), st.integers(0, 4))
def test_tokens_a_round_are_the_sum_over_outcomes(rates, length, first):
    """The mean of min(accepted, length) + 1 over the number of accepted tokens."""
    chance = [rates[min(first + n, len(rates) - 1)] for n in range(length)]
    reach, total = 1.0, 0.0
    for number, each in enumerate(chance):
        total += reach * (1 - each) * (number + 1)
        reach *= each
    assert tokens_a_round(rates, length, first) == pytest.approx(total + reach * (length + 1))


# --- replayed latencies -----------------------------------------------------------------------------------------------


def test_constant_latencies_replay_as_constants():
    latencies = MeasuredLatencies((1.0,) * 3, (0.1,) * 5)
    for schedule in (ChainSchedule(4), PearlSchedule(), AmusdSchedule(), PipeInferSchedule(2)):
        assert simulated(schedule, tokens=2000, latencies=latencies).tokens_per_second == pytest.approx(
            simulated(schedule, tokens=2000).tokens_per_second, rel=0.05
        )


def test_synchronous_rounds_read_means_and_asynchronous_ones_wait_for_the_slower():
    """A round in turn takes the sum of both; a round at once the larger of both, whose mean is above that of either."""
    jitter = MeasuredLatencies((0.5, 1.5), (0.05, 0.15, 0.1))
    chain = simulated(ChainSchedule(10), latencies=jitter).tokens_per_second
    assert chain == pytest.approx(rate(ChainSchedule(10)), rel=0.012)
    assert simulated(PearlSchedule(10), latencies=jitter).tokens_per_second < 0.85 * rate(PearlSchedule(10))


def test_replayed_calls_over_more_columns_take_as_much_longer():
    calls = SimulatedCalls(DEAR, (0.5,), latencies=MeasuredLatencies((2.0,), (0.1,)))
    assert calls.score(1) == 2.0
    assert calls.score(5) == pytest.approx(2.0 * DEAR.score(5) / DEAR.score(1))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PlannedMachine(0.0, 1.0), "target is 0"),
        (lambda: PlannedMachine(1.0, -1.0), "draft is -1"),
        (lambda: PlannedMachine(1.0, inf), "draft is inf"),
        (lambda: PlannedMachine(1.0, 1.0, rows=0), "rows is 0"),
        (lambda: ChainSchedule(-1), "length is -1"),
        (lambda: PearlSchedule(0), "length is 0"),
        (lambda: AmusdSchedule(0), "most is 0"),
        (lambda: PipeInferSchedule(0), "group is 0"),
        (lambda: PpdSchedule(0, 0.5), "after, match and candidates are 0"),
        (lambda: PpdSchedule(1, 1.5), "1.5"),
        (lambda: TreeSchedule(0), "nodes, depth and retry"),
        (lambda: rate(AmusdSchedule(), BATCH), "amusd is modelled for one row, and there are 4"),
        (lambda: rate(PearlSchedule(), BATCH), "adaptive length is modelled for one row"),
        (lambda: simulated(PipeInferSchedule(), BATCH), "pipeinfer is modelled for one row"),
        (lambda: rate(PpdSchedule(4, 0.5), STAGES), "exits after stage 4 of 4"),
        (lambda: MeasuredLatencies((), (1.0,)), "'target'"),
        (lambda: MeasuredLatencies((1.0,), (0.0,)), "'draft'"),
        (lambda: exit_rates((0.5, 0.6), 4), "2 chances of early exits for 4 stages"),
    ],
)
def test_numbers_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        make()


def test_exits_by_stage():
    assert exit_rates((0.5,), 4) == {2: 0.5}
    assert exit_rates((0.5, 0.6, 0.7), 4) == {1: 0.5, 2: 0.6, 3: 0.7}
    assert exit_rates((0.5,), 1) == exit_rates((), 4) == {}
    assert [tokens_in_work(after, 4) for after in (1, 2, 3)] == [4, 2, 2]


# --- mutants ----------------------------------------------------------------------------------------------------------


def agree(schedule, machine, rates=(0.7,)) -> bool:
    """Whether the exact rate is the simulated one, as the first test asks."""
    expected = schedule.expect(machine, rates).tokens_per_second
    return simulated(schedule, machine, rates).tokens_per_second == pytest.approx(expected, rel=0.012)


def no_bonus(self, machine, rates):
    """A chain that commits the accepted tokens alone."""
    found = ChainSchedule.expect(ChainSchedule(self.length), machine, rates)
    return ExpectedCycle(found.tokens - machine.rows, found.seconds, rows=machine.rows)


def no_rollback(rounds, rates):
    """Draft tokens behind a rejected one are committed all the same."""
    return long_run(rounds, (1.0,))


def no_wait(free, ready, seconds):
    """A pipeline that lets groups pass each other."""
    return ready + seconds


def test_mutants_are_found(monkeypatch):
    class NoBonus(ChainSchedule):
        expect = no_bonus

    assert agree(ChainSchedule(4), EVEN)
    assert not agree(NoBonus(4), EVEN)
    assert agree(PearlSchedule(4), DEAR)
    monkeypatch.setattr(pearl_module, "long_run", no_rollback)
    assert not agree(PearlSchedule(4), DEAR)
    monkeypatch.setattr(pipeinfer_module, "_through", no_wait)
    with pytest.raises(AssertionError):
        test_pipeinfer_keeps_every_stage_busy()


def test_a_pearl_that_always_scores_its_drafts_is_found(monkeypatch):
    """A mutant without pre-verify: the first draft token of a run is not verified while it is drafted."""

    def rounds(self, machine, counted=False):
        found = original(self, machine, counted)
        next(found)
        return found

    original = PearlSchedule._rounds
    monkeypatch.setattr(PearlSchedule, "_rounds", rounds)
    assert not agree(PearlSchedule(4), DEAR)
    with pytest.raises(AssertionError):
        test_pearl_has_its_closed_form(0.8)


def test_a_cycle_that_forgets_the_chance_of_reaching_a_round_is_found():
    def unweighted(rounds, rates):
        first = next(iter(rounds))
        return ExpectedCycle(tokens_a_round(rates, first.verified - 1), first.seconds)

    machine = PlannedMachine(1.0, 0.1)
    found = unweighted(PearlSchedule(4)._rounds(machine), (0.7,)).tokens_per_second
    assert found != pytest.approx(rate(PearlSchedule(4), machine, (0.7,)), rel=0.012)
