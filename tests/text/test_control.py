"""Draft lengths and stops as requests and configs name them."""

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.draft_length.thompson import Thompson
from mmspec.core.draft_length.throughput import Throughput
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, RunSection
from mmspec.run.draft_length import control_of
from mmspec.run.shapes import stopping_below
from mmspec.text import generate, speculate
from tests.drafters.runs import greedy, random_prompt

INPUTS = random_prompt(5, 9, 7, seed=1)


def test_every_name_of_a_draft_length():
    own, model = Throughput(lengths=(0, 2)), ModelDrafter(None)
    assert control_of("thompson", model) == Thompson()
    assert control_of(own, model) is own
    assert control_of(3, model) == Fixed(3)
    assert control_of("auto", model) == BreakEven(Throughput())
    assert control_of("thompson", NoDraft()) == Fixed(0)
    for wrong in ("fast", True, None, 1.5):
        with pytest.raises(ValueError, match="give a number of draft tokens, 'auto', 'thompson' or a Control object"):
            control_of(wrong, model)


@pytest.mark.parametrize("length", ["thompson", Thompson(most=3), 4])
def test_the_length_never_shows(big, small, length):
    out = generate(big, INPUTS, small, max_new_tokens=12, draft_length=length, stop_below=0.3)
    assert out.sequences.tolist() == greedy(big, INPUTS, 12)
    whole = big.generate(**INPUTS, do_sample=False, max_new_tokens=12, pad_token_id=0, eos_token_id=None)
    assert torch.equal(big.generate(**INPUTS, max_new_tokens=12, custom_generate=speculate(small, draft_length=length)), whole)


def test_stop_below_ends_chains(big, small):
    drafted = [generate(big, INPUTS, small, max_new_tokens=12, draft_length=4, stop_below=p).stats.drafted for p in (None, 0.0, 0.9, 1.0)]
    assert drafted[0] == drafted[1] > drafted[2] >= drafted[3]


@pytest.mark.parametrize("drafter", [ModelDrafter(None, shape=object()), Lookup()])
def test_only_a_models_chains_have_a_confidence(drafter):
    assert stopping_below(drafter, None) is drafter
    with pytest.raises(ValueError, match="stop_below ends a model's chains of draft tokens"):
        stopping_below(drafter, 0.5)


def pair(**section):
    return load_pair(Config(drafter=DrafterSection(kind="model", **section), run=RunSection(max_new_tokens=12)))


def test_configs_name_both():
    plain, cautious = pair(length=6), pair(length=6, options={"stop_below": 0.9})
    inputs = plain.inputs(list(plain.examples[:2]))
    outs = [made.generate(inputs) for made in (plain, cautious, pair(length="thompson"))]
    assert outs[0].sequences.tolist() == outs[1].sequences.tolist() == outs[2].sequences.tolist()
    assert outs[1].stats.drafted < outs[0].stats.drafted
    assert cautious.generate(inputs, drafter=None).sequences.tolist() == outs[0].sequences.tolist()


def test_wrong_options_are_said_in_one_line():
    with pytest.raises(ValueError, match="unknown key 'stop' for drafter 'model'; valid: stop_below"):
        pair(options={"stop": 0.4})
    cautious = pair(options={"stop_below": "often"})
    with pytest.raises(ValueError, match="stop_below is 'often': give a probability, 0 to 1, or 'adaptive'"):
        cautious.generate(cautious.inputs(list(cautious.examples[:1])))


def test_the_command_line_and_python_end_chains_alike(tmp_path):
    """--stop-below of a probability, of "adaptive" and of a head's folder; entries of a config without a file."""
    import torch

    import mmspec
    from mmspec.commands.common import config_of
    from mmspec.drafters.stops import AcceptanceHead, Learned
    from mmspec.loading.text import load_pair

    mini = mmspec.load("text")
    head = AcceptanceHead(mini.drafters["model"].config.hidden_size)
    head.save(tmp_path / "head")
    inputs = {key: value[:2] for key, value in mini.examples.items()}
    for word, value in (("0.6", 0.6), ("adaptive", "adaptive"), (str(tmp_path / "head"), Learned(head))):
        pair = load_pair(config_of({"stop_below": word, "device": "cpu", "changes": ["drafter.length=4", "run.max_new_tokens=12"]}))
        theirs = pair.generate(inputs)
        given = {"draft_length": 4, "max_new_tokens": 12}
        ours = mmspec.text.generate(mini.target, inputs, mini.drafters["model"], stop_below=value, **given)
        assert theirs.stats.drafted == ours.stats.drafted
        assert torch.equal(theirs.tokens, ours.tokens)
    for word in ("2", "nan", "nowhere/at/all"):
        with pytest.raises(ValueError, match="--stop-below is"):
            config_of({"stop_below": word})


def test_references_of_a_file_are_quoted(tmp_path):
    from mmspec.commands.common import config_of
    from mmspec.loading.text import load_pair

    def drafted(**given):
        pair = load_pair(config_of({"drafter": "lookup", "device": "cpu", "max_new_tokens": 24, **given}))
        out = pair.generate(pair.inputs(["Story: The bird"]))
        return pair.decode(out.tokens[0].tolist()), out.stats.accepted

    text, alone = drafted()
    (tmp_path / "quoted.txt").write_text("Story: The bird" + text)
    assert drafted(references=str(tmp_path / "quoted.txt")) > (text, alone)
    with pytest.raises(ValueError, match="only lookup quotes texts"):
        load_pair(config_of({"drafter": "suffix", "device": "cpu", "references": str(tmp_path / "quoted.txt")}))
