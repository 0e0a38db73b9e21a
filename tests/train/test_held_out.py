"""Examples held out are of none that a training draws: told by what they are, whatever comes twice."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from mmspec.loading.picture_requests import folder_requests, scene_requests
from mmspec.minis import corpus, speech_data
from mmspec.minis.picture_sets.sets import labelled_pictures
from mmspec.minis.shop import examples
from mmspec.recsys import Catalogue
from mmspec.recsys.histories import Data
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart, array_keys, file_keys, hold_out
from mmspec.train.on_policy_text import Writing, held_windows
from mmspec.train.recommender.split import last_items, of_other_users


@pytest.mark.parametrize("seed", range(20))
def test_what_is_the_same_is_on_one_side(seed):
    pick = random.Random(seed)
    keys = [pick.randrange(pick.choice((2, 5, 40))) for _ in range(pick.randint(8, 60))]
    if len(set(keys)) < 2:
        keys.append(99)
    count = pick.randint(1, 2 * len(keys))
    split = hold_out(keys, count, "prompts")
    train, held = ({keys[number] for number in part} for part in (split.train, split.held))
    assert train
    assert held
    assert not train & held
    assert sorted(split.order) == list(range(len(keys)))
    assert split.order[: len(split.held)] == list(split.held)
    assert [keys[number] for number in split.train] == [keys[number] for number in split.outside(keys)]
    other = apart(keys, [*keys[:3], "new", "new"], "prompts")
    assert other.held == (3, 4)


def test_one_example_cannot_be_held_out():
    with pytest.raises(ValueError, match="3 prompts, 1 of them different: some are held out, so give two different ones"):
        hold_out(["a"] * 3, 1, "prompts")
    with pytest.raises(ValueError, match="all of them also trained on"):
        apart(["a", "b"], ["b"], "pictures")


def test_a_training_that_validates_says_what_is_held_out(tmp_path):
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="validate is given without held"):
        fit(model, lambda m, turn: m(torch.ones(1)).sum(), Fit(steps=1, lr=1.0), tmp_path / "a.pt", validate=lambda m, step: None)
    assert not list(tmp_path.iterdir())


def test_files_and_arrays_are_told_by_their_contents(tmp_path):
    for name, text in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "longer")):
        (tmp_path / name).write_text(text)
    first, second, third, fourth = file_keys([tmp_path / name for name in "abcd"])
    assert first == second
    assert len({first, third, fourth}) == 3
    keys = array_keys([torch.zeros(2), np.zeros(2, np.float32), torch.ones(2), torch.zeros(1, 2)])
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


# --- the sets of recipes -------------------------------------------------------------------------------------------------


def test_windows_of_few_prompts_are_held_out_by_prompt():
    prompts = [[1, 2, number % 3] for number in range(60)]
    split = held_windows(prompts, Writing(opening=3), 8)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    train, held = ({tuple(prompts[order[number]]) for number in part} for part in (split.train, split.held))
    assert (len(train), len(held)) == (2, 1)
    with pytest.raises(ValueError, match="60 prompts, 1 of them different"):
        held_windows(prompts, Writing(opening=2), 8)  # which cuts them to the same two values


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    for number, name in enumerate("abcdd"):
        Image.new("RGB", (8, 8), (40 * "abcd".index(name), 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "questions.txt").write_text("what is it?\nwhere is it?\n")
    return tmp_path


def test_pictures_of_a_folder_are_held_out_with_their_copies(photos):
    found = folder_requests(None, photos, photos / "questions.txt", 3, 4)  # pyright: ignore[reportArgumentType]
    keys = dict(zip([f"{n}.png" for n in range(5)], file_keys([photos / f"{n}.png" for n in range(5)]), strict=True))
    train, held = ({keys[pictures[0].name] for pictures, _ in part} for part in (found.asked[:8], found.asked[8:]))
    assert len(found) == 12
    assert not train & held
    for number in range(1, 5):
        (photos / f"{number}.png").unlink()
    alone = folder_requests(None, photos, photos / "questions.txt", 3, 4)  # pyright: ignore[reportArgumentType]
    assert not {text for _, text in alone.asked[:8]} & {text for _, text in alone.asked[8:]}
    (photos / "questions.txt").write_text("what is it?\n")
    with pytest.raises(ValueError, match="1 prompts, 1 of them different"):
        folder_requests(None, photos, photos / "questions.txt", 3, 4)  # pyright: ignore[reportArgumentType]


def test_no_scene_of_the_last_batch_is_asked_about_before():
    found = scene_requests(None, 9, 32)  # pyright: ignore[reportArgumentType]
    assert len(found) == 9 * 32
    train, held = ({scene for scenes, _ in part for scene in scenes} for part in (found.asked[: 8 * 32], found.asked[8 * 32 :]))
    assert not train & held


def test_pictures_that_occur_twice_are_not_held_out(tmp_path):
    from PIL import Image

    for kind in ("a", "b"):
        (tmp_path / "mine" / kind).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (6, 6), (number // 2, 50 * (kind == "b"), 0)).save(tmp_path / "mine" / kind / f"{number:02}.png")
    Image.new("RGB", (6, 6), (200, 0, 0)).save(tmp_path / "mine" / "a" / "00.png")
    data = labelled_pictures(tmp_path / "mine", size=6, work=tmp_path / "work")
    assert len(data.held) == 1  # of the three that stand at every tenth place
    assert not set(array_keys(data.train[:])) & set(array_keys(data.held[:]))
    assert data.split.held == (0,)


def test_documents_that_begin_alike_are_not_held_out():
    texts = [f"Story: {number % 30}" for number in range(60)]
    with pytest.raises(ValueError, match="all of them also trained on"):
        corpus.split(texts)
    texts[20] = "Story: another"
    assert corpus.split(texts).held == (20,)


def test_spoken_sentences_of_two_splits_differ():
    pick = random.Random(0)
    found = {split: {speech_data.sentence(pick, split) for _ in range(600)} for split in ("train", "test")}
    assert not found["train"] & found["test"]
    assert min(map(len, found.values())) > 200


def test_a_drafter_of_recommendations_is_measured_on_other_users():
    """Of leave-one-out data a user's training history is the prompt of the user's validation."""
    full = [[user % 7, user % 5, user % 11, user % 3, user] for user in range(100)]
    past = [items[:-2] for items in full]
    catalogue = Catalogue.of({number: (number % 10, number // 10) for number in range(100)})
    whole = Data(catalogue, lambda first, end: [past[n % 100] for n in range(first, end)], past, [items[:-1] for items in full], full)
    data = of_other_users(whole, 20, 10)
    prompts = {tuple(items[:-1]) for items in (*data.held, *data.test)}
    asked = [tuple(items) for items in data.users(0, 300)]
    assert len(asked) == 300
    assert not set(asked) & (prompts | {prompt[:-1] for prompt in prompts})
    assert set(last_items(whole).keys) == {tuple(items[:-1]) for items in full}
    assert not {tuple(items) for items in past} & set(last_items(whole).keys)


def test_customers_of_the_simulated_shop_are_not_measured_on():
    data = examples(None, 2000)
    past = {tuple(items) for items in data.past}
    assert not past & {tuple(items) for items in (*data.held, *data.test)}
