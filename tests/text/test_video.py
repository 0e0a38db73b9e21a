"""Clips: positions behind them are those of transformers' `generate`, for each row of a batch as for that row alone."""

from functools import cache

import pytest
import torch

import mmspec
from mmspec.models.families.multimodal import never_generated_ids_of
from mmspec.models.families.registry import family_of
from mmspec.models.rows.merged import Merged
from tests.films import NAMES, batch, row
from tests.seeing import SIGHTS
from tests.sizes import Case, build

TOKENS = 12
ROWS = {  # words, pictures and clips: from one grid to thirty, several a prompt, at the end of the prompt, and none
    "one grid": (2, ("clip", 1, 4, 4, 1.0), 3),
    "two grids, slowly": (3, ("clip", 2, 4, 8, 2.0), 2),
    "twelve grids": (1, ("clip", 12, 4, 4, 0.5), 4),
    "thirty grids": (2, ("clip", 30, 4, 4, 1.0), 3),
    "two clips": (2, ("clip", 5, 4, 4, 2.0), 1, ("clip", 9, 4, 4, 0.25), 3),
    "a clip behind a picture": (2, ("picture", 4, 8), 2, ("clip", 20, 4, 4, 1.0), 3),
    "pictures behind a clip": (1, ("clip", 16, 4, 4, 1.0), 2, ("picture", 6, 4), 1, ("picture", 4, 4), 2),
    "a clip ends the prompt": (3, ("clip", 8, 4, 4, 1.0)),
    "a picture": (4, ("picture", 8, 4), 3),
    "words": (9,),
}
MIXED = ("a clip behind a picture", "pictures behind a clip")  # transformers' GLM-4V takes one placeholder for both, and never both at once
CASES = [(name, kind) for name in NAMES for kind in ROWS if not (name == "GLM-4V" and kind in MIXED)]
CLIPS_ALONE = (("thirty grids", "words", "one grid"), ("two clips", "a clip ends the prompt"))
BATCHES = (
    ("thirty grids", "words", "a picture"),
    ("pictures behind a clip", "one grid", "two clips"),
    ("a clip behind a picture", "a clip ends the prompt", "twelve grids", "two grids, slowly"),
)

BATCH_CASES = [(name, kinds) for name in NAMES for kinds in (CLIPS_ALONE if name == "GLM-4V" else BATCHES)]


@cache
def model_of(name):
    def make():
        model = SIGHTS[name].case.make()
        model.config.get_text_config().max_position_embeddings = 1024
        return model

    return build(Case(make, ""))


def row_of(name, kind):
    torch.manual_seed(7 + list(ROWS).index(kind))
    return row(name, *ROWS[kind])


@cache
def alone(name, kind):
    """What `generate` says to one row by itself."""
    model, inputs = model_of(name), batch(name, [row_of(name, kind)])
    new = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, suppress_tokens=list(never_generated_ids_of(model)))
    return new[0, inputs["input_ids"].shape[1] :].tolist()


def cut(out):
    return [out.sequences[row, : out.lengths[row]].tolist() for row in range(len(out.lengths))]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_one_row_gives_the_tokens_of_generate(name, kind):
    out = mmspec.text.generate(model_of(name), batch(name, [row_of(name, kind)]), max_new_tokens=TOKENS, draft_length=0)
    assert cut(out) == [alone(name, kind)]


@pytest.mark.parametrize(("name", "kinds"), BATCH_CASES)
def test_ragged_rows_give_the_tokens_of_generate_on_each_row_alone(name, kinds):
    model, rows = model_of(name), [row_of(name, kind) for kind in kinds]
    expected = [alone(name, kind) for kind in kinds]
    for side in ("left", "right"):
        for options in ({"drafter": "lookup"}, {"drafter": model}, {"drafter": model, "tree": (2, 2)}):
            out = mmspec.text.generate(model, batch(name, rows, side), max_new_tokens=TOKENS, draft_length=4, **options)
            assert cut(out) == expected, (side, options)


@pytest.mark.parametrize("name", NAMES)
def test_sampling_coupled_gives_the_tokens_of_plain_sampling(name):
    model, settings = model_of(name), {"max_new_tokens": TOKENS, "temperature": 1.0}
    rows = [row_of(name, kind) for kind in (CLIPS_ALONE[1] if name == "GLM-4V" else BATCHES[1])]
    plain = [cut(mmspec.text.generate(model, batch(name, [one]), seed=3 + place, **settings))[0] for place, one in enumerate(rows)]
    for options in ({"drafter": "lookup"}, {"drafter": model, "tree": (2, 2)}):
        out = mmspec.text.generate(model, batch(name, rows), seed=3, draft_length=3, **settings, **options)
        assert cut(out) == plain


def on_from_the_greatest(self, positions):
    real = torch.arange(self.axes.shape[-1]) < self.lengths[:, None]
    delta = torch.where(real, self.axes, -1).amax((0, 2)) + 1 - self.lengths
    inside = self.axes.gather(2, self._place(positions).expand(len(self.axes), -1, -1))
    return torch.where(self._within(positions), inside, positions + delta[:, None])


def test_positions_that_go_on_from_the_greatest_one_show(monkeypatch):
    monkeypatch.setattr(Merged, "along", on_from_the_greatest)
    for name in ("Qwen2-VL", "Qwen2.5-VL"):
        out = mmspec.text.generate(model_of(name), batch(name, [row_of(name, "thirty grids")]), max_new_tokens=TOKENS, draft_length=0)
        assert cut(out) != [alone(name, "thirty grids")], name


def test_pictures_and_clips_in_one_request_of_glm_4v_are_refused_as_transformers_does():
    with pytest.raises(ValueError, match="prompt and pictures do not fit together") as caught:
        mmspec.text.generate(model_of("GLM-4V"), batch("GLM-4V", [row_of("GLM-4V", MIXED[0])]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_goes_on_from_its_own_last_position(name):
    model = model_of(name)
    for kind in (kind for other, kind in CASES if other == name):
        inputs = batch(name, [row_of(name, kind)])
        own = model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))[-3:]  # what `generate` begins with
        model.model.rope_deltas = None
        _, state = family_of(model).begin(model, inputs, 256)
        length = inputs["input_ids"].shape[1]
        found = state.along(torch.arange(length + 3)[None])
        assert torch.equal(found.expand_as(own.new_empty(3, 1, length + 3))[..., :length], own), kind
        behind = own[..., -1:] + torch.arange(1, 4)  # and how it goes on
        assert torch.equal(found.expand(3, 1, -1)[..., length:], behind), kind
