"""Every field of transformers' GenerationConfig in a search for items: as its constrained beam search, refused by name, or not read."""

import pytest

import mmspec
from mmspec import recsys
from mmspec.run.settings import generation_config as model_settings
from tests.beam_world import OFFSET, VOCAB, make, perturbed, shop, transformers_beams, users
from tests.recsys.test_equality import compare
from tests.text import test_model_settings as text

K = 5
IN_PATHS = {  # values that change lists of items
    "sequence_bias": [[[OFFSET + 1], 3.0], [[OFFSET + 1, OFFSET + 13], 5.0], [[VOCAB - 1], -4.0]],
    "repetition_penalty": 1.7,
    "encoder_repetition_penalty": 2.5,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "bad_words_ids": [*([OFFSET + code] for code in range(7)), [OFFSET + 8, OFFSET + 14]],
    "suppress_tokens": [OFFSET, OFFSET + 5],
    "begin_suppress_tokens": [OFFSET + 4],
    "min_length": 30,
    "min_new_tokens": 3,
    "exponential_decay_length_penalty": (1, 1.6),
    "remove_invalid_values": True,
}
NOT_READ = {"num_beams", "num_return_sequences", "eos_token_id"} | text.NOT_READ
REFUSED = {name: value for name, value in text.REFUSED.items() if name not in NOT_READ}
REFUSED |= {"forced_bos_token_id": OFFSET, "forced_eos_token_id": 1, "renormalize_logits": True}


def changed(family, **settings):
    model = make(family)
    model.generation_config.eos_token_id = VOCAB - 2
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def test_every_field_of_a_generation_config_is_in_one_of_the_lists():
    fields = {name for name in vars(text.hf.GenerationConfig()) if not name.startswith("_")}
    assert fields - IN_PATHS.keys() - REFUSED.keys() - NOT_READ == set()


@pytest.mark.parametrize("family", ["qwen2", "t5"])
@pytest.mark.parametrize("setting", IN_PATHS)
def test_lists_are_those_of_transformers(setting, family):
    """Histories of one length: transformers counts padding of a batch, and a prompt is a row of its own here."""
    model, catalogue = changed(family, **{setting: IN_PATHS[setting]}), shop()
    histories = [(history * 4)[:4] for history in users(catalogue, 4)]
    inputs = catalogue.inputs(histories)
    beams = transformers_beams(model, inputs, catalogue, K)
    drafters = {"plain": None, "itself": model, "good": perturbed(model, 0.05), "counts": recsys.Retriever.of(catalogue, histories)}
    for name, drafter in drafters.items():
        out = recsys.recommend(model, histories, drafter, k=K, catalogue=catalogue)
        compare(out, catalogue, beams, K, range(len(histories)), f"{setting}, {name}")
        assert name != "itself" or family != "qwen2" or out.stats.target_calls == 1


def test_settings_do_change_lists():
    """Or the tests above would show nothing."""
    catalogue, same = shop(), set(IN_PATHS)
    histories = users(catalogue, 8)
    for family in ("qwen2", "t5"):
        plain = recsys.recommend(changed(family), histories, k=K, catalogue=catalogue).items
        for setting in tuple(same):
            if recsys.recommend(changed(family, **{setting: IN_PATHS[setting]}), histories, k=K, catalogue=catalogue).items != plain:
                same.discard(setting)
    assert same <= {"remove_invalid_values", "min_length", "min_new_tokens", "exponential_decay_length_penalty"}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_has_no_form_is_refused_by_name(setting):
    model, catalogue = changed("qwen2", **{setting: REFUSED[setting]}), shop()
    calls = {
        "recommend": lambda: recsys.recommend(model, [["item0"]], k=K, catalogue=catalogue),
        "candidates": lambda: recsys.rank_candidates(model, [["item0"]], [["item1", "item2"]], catalogue=catalogue),
        "engine": lambda: mmspec.Engine(model, catalogue=catalogue),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=rf"generation_config.{setting} is .*not supported: .*model.generation_config") as caught:
            call()
        assert "\n" not in str(caught.value)
    setattr(model.generation_config, setting, model_settings._REFUSED_OF_BEAMS[setting][1])  # what the message says
    calls["recommend"]()


def test_an_engine_and_candidates_read_them_too():
    """Prompts of different lengths in one batch, each with its own history."""
    settings = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 1, "sequence_bias": IN_PATHS["sequence_bias"]}
    model, catalogue = changed("qwen2", **settings), shop()
    histories = users(catalogue, 5)
    alone = [recsys.recommend(model, [history], k=K, catalogue=catalogue) for history in histories]
    together = recsys.recommend(model, histories, perturbed(model, 0.05), k=K, catalogue=catalogue)
    assert together.items == [out.items[0] for out in alone]
    with mmspec.Engine(model, drafter=perturbed(model, 0.05), catalogue=catalogue, beams=K) as engine:
        handles = [engine.submit(history, k=K) for history in histories]
        assert [handle.result().items[0] for handle in handles] == [out.items[0] for out in alone]
    for history, out in zip(histories, alone, strict=True):
        found = recsys.rank_candidates(model, [history], [out.items[0][::-1]], catalogue=catalogue)
        assert found.items[0] == out.items[0]
        assert found.scores[0] == pytest.approx(out.scores[0], abs=1e-4)
