"""Mini vlm: it sees, it answers, and whatever drafts for it changes nothing."""

import random

import pytest
import torch

import mmspec
from mmspec.minis import vlm_model as sights
from mmspec.minis.drawn import scenes
from mmspec.text import generate
from mmspec.text.pieces import Pieces

HELD = 10**9


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("vlm")


@pytest.fixture(scope="module")
def described():
    return sights.asked(HELD + 5, 12, "describe")


@pytest.fixture(scope="module")
def inputs(mini, described):
    return sights.inputs_of(mini.processor, described)


@pytest.fixture(scope="module")
def plain(mini, inputs):
    return generate(mini.target, inputs, max_new_tokens=sights.LONGEST)


def test_a_picture_is_sixteen_places_wide_and_prompts_pad_left(mini):
    found = sights.inputs_of(mini.processor, [*sights.asked(1, 1, "pairs"), *sights.asked(1, 2, "describe")])
    seen = (found["input_ids"] == mini.processor.image_token_id).sum(1)
    assert seen.tolist() == [32, 16, 16]
    assert found["pixel_values"].shape == (4, 3, 64, 64)
    assert found["attention_mask"][:, -1].all()
    assert not found["attention_mask"][1, 0]


def test_every_word_of_every_question_is_known_and_comes_back(mini):
    tokenizer = mini.processor.tokenizer
    for form in sorted(set(sights.FORMS)):
        for each in sights.asked(HELD, 300, form):
            ids = tokenizer(each.question.answer)["input_ids"]
            assert tokenizer.unk_token_id not in tokenizer(each.question.text)["input_ids"]
            assert tokenizer.decode(ids) == each.question.answer
            pieces = Pieces(tokenizer.decode)
            assert "".join(pieces.push([value]) for value in ids) == each.question.answer
    assert tokenizer("What COLOR?")["input_ids"] == tokenizer("what colour?")["input_ids"]


def test_a_chat_is_the_prompt_it_learned(mini):
    content = [{"type": "image"}, {"type": "text", "text": "describe the picture."}]
    said = mini.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    assert said == sights.prompt("describe the picture.")


def test_pictures_of_any_size_and_mode_are_read(mini):
    picture = scenes.draw_scene(next(scenes.scenes(4, 1)))
    large = picture.resize((320, 200))
    found = mini.processor(images=[picture, large], text=[sights.prompt("what do you see?")] * 2, return_tensors="pt")
    assert found["pixel_values"].shape == (2, 3, 64, 64)


def test_it_describes_and_answers(mini):
    asked = [each for form in ("describe", "questions", "pairs") for each in sights.asked(HELD + 1, 40, form)]
    marks = sights.right(mini.target, mini.processor, asked)
    assert marks["describe"] >= 0.9
    assert sum(marks.values()) / len(marks) >= 0.8


def test_another_picture_another_caption(mini, described):
    """Its captions are of the picture, not of the question: the pictures exchanged, so are the answers."""
    turned = [
        sights.PictureQuestion(other.pictures, each.question) for each, other in zip(described, described[1:] + described[:1], strict=True)
    ]
    said = sights.answers(mini.target, mini.processor, turned)
    right = [text == scenes.scene_caption(each.pictures[0]) for text, each in zip(said, turned, strict=True)]
    assert sum(right) >= 0.8 * len(right)


def test_generate_says_what_transformers_says(mini, inputs, plain, described):
    ids = mini.target.generate(**inputs, do_sample=False, max_new_tokens=sights.LONGEST)[:, inputs["input_ids"].shape[1] :]
    for row, (wanted, size) in enumerate(zip(ids, plain.lengths.tolist(), strict=True)):
        assert torch.equal(wanted[:size], plain.sequences[row, :size])
    assert mini.processor.decode(plain.sequences[0], skip_special_tokens=True) in {each.question.answer for each in described}


@pytest.mark.parametrize(("name", "least"), [("text", 4.0), ("vlm", 4.8)])
def test_drafters_change_nothing_and_pay(mini, inputs, plain, name, least):
    view = {"text": {"view": mmspec.text.view("newline", mini.processor)}, "vlm": {}}[name]
    out = generate(mini.target, inputs, mini.drafters[name], max_new_tokens=sights.LONGEST, draft_length=5, **view)
    assert torch.equal(out.sequences, plain.sequences)
    assert out.stats.tokens_per_call >= least


def test_a_drafter_with_eyes_looks(mini, inputs, plain):
    """It shares the target's tower; shown another picture than the target, it drafts worse, and nothing changes."""

    def wrong(prompt, session):
        return {**prompt, "pixel_values": prompt["pixel_values"].roll(1, 0)}

    small = mini.drafters["vlm"]
    assert small.model.vision_tower is mini.target.model.vision_tower
    seeing, misled = (generate(mini.target, inputs, small, max_new_tokens=64, draft_length=5, view=view) for view in ("own", wrong))
    assert torch.equal(misled.sequences, seeing.sequences)
    assert seeing.stats.tokens_per_call > misled.stats.tokens_per_call + 0.5


def test_the_examples_run_as_they_are(mini):
    out = generate(mini.target, mini.examples, mini.drafters["text"], max_new_tokens=8, draft_length=3)
    assert len(out.sequences) == len(sights.examples_of(mmspec.minis.HOME / "vlm"))


def test_steps_of_training_are_of_one_form_and_their_own(mini):
    forms = {"describe": 0, "questions": 0, "pairs": 0}
    for turn in range(8):
        found = sights.batch(turn, 4)
        assert found == sights.batch(turn, 4)
        assert len({len(each.pictures) for each in found}) == 1
        forms["pairs" if len(found[0].pictures) == 2 else "describe" if found[0].question.kind == "describe" else "questions"] += 1
    assert forms == {"describe": 3, "questions": 4, "pairs": 1}


def test_a_example_is_judged_on_its_answer_alone(mini):
    asked = sights.asked(3, 5, random.Random(0).choice(["describe", "questions"]))
    found = sights.example(mini.processor, asked)
    for ids, labels, each in zip(found["input_ids"], found["labels"], asked, strict=True):
        judged = labels[labels >= 0]
        assert mini.processor.decode(judged) == each.question.answer + sights.END
        assert torch.equal(ids[labels >= 0], judged)


def test_the_card_says_where_it_comes_from(mini):
    assert "Apache-2.0" in mini.card
    assert "text/train_vlm.py" in mini.card
    assert "scenes.py" in mini.card
