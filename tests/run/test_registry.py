"""What the registry says of a name is what the object does: needs, refusals, exactness."""

import pytest

import mmspec
from mmspec.run.registry import ACCEPT, DRAFTERS, RENAMED, RULES, SELF_DRAFTING, SOURCES, build
from mmspec.run.request import Request
from tests.drafters.sources import IN_CHECKPOINTS


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


def made(name):
    return build(name, ACCEPT, "accept rule")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_needs_and_refuses_what_the_registry_says(name):
    rule, entry = made(name), RULES[name]
    assert ("trees" in entry.refuses.split(", ")) == (not rule.trees)
    siblings = getattr(rule, "siblings", None)
    assert entry.needs.startswith("siblings") == (siblings is not None)
    assert entry.needs.startswith("draft tokens drawn from q") == (siblings is None and rule.uses_q)


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in IN_CHECKPOINTS])  # those: tests.drafters.test_shipped_mtp
@pytest.mark.parametrize(("argument", "value"), [("tree", (2, 1)), ("view", "own")])
def test_a_drafter_refuses_what_the_registry_says(mini, name, argument, value):
    refused = argument in SOURCES[name].refuses.split(", ")
    given = dict(drafter=name, max_new_tokens=4, draft_length=2, **{argument: value})
    inputs = mini.processor(["the sea"], return_tensors="pt")
    if refused:
        with pytest.raises(ValueError, match=argument):
            mmspec.text.generate(mini.target, inputs, **given)
    else:
        mmspec.text.generate(mini.target, inputs, **given)


def test_every_name_makes_a_valid_request():
    for name in SOURCES:
        assert Request.of(drafter=name).drafter == name
    for name in RULES:
        assert Request.of(accept=name).accept == name


def test_names_of_the_release_before_still_stand_for_rules():
    assert all(new in RULES and old not in RULES for old, new in RENAMED.items())
    assert type(build("unchecked", ACCEPT, "accept rule")) is type(build("always-accept", ACCEPT, "accept rule"))


def test_self_drafting_names_are_sources():
    assert set(SELF_DRAFTING) <= set(DRAFTERS)
