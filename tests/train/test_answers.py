"""A target's answers as lessons: the same distributions behind any prompt, whatever is padded where."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.minis import vlm_model as sights
from mmspec.models.families.multimodal import placeholders_of
from mmspec.text import generate, view
from mmspec.train.on_policy_data import Answered, Course, distributions, divergence, with_answers, with_eyes_of


@pytest.fixture(scope="module")
def processor():
    return sights.new_processor()


@pytest.fixture(scope="module")
def target(processor):
    torch.manual_seed(0)
    model = sights.new_llava(processor, width=32, layers=2, heads=1, feed=64)
    with torch.no_grad():
        model.lm_head.weight.mul_(40)  # distributions worth telling apart
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def reader(processor):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**sights.llama_options(processor.tokenizer, 32, 1, 1, 64))).eval()


@pytest.fixture(scope="module")
def inputs(processor):
    return sights.inputs_of(processor, [*sights.asked(0, 2, "pairs"), *sights.asked(0, 2, "describe")])


@pytest.fixture(scope="module")
def said(target, inputs):
    out = generate(target, inputs, max_new_tokens=7)
    return [row[: size - turn] for turn, (row, size) in enumerate(zip(out.sequences, out.lengths.tolist(), strict=True))]


def test_the_distribution_of_a_greedy_answer_likes_it_best(target, inputs, said):
    """Wrong by one position, or reading a padded prompt, and this fails."""
    example = with_answers(inputs, said, 0)
    assert torch.equal(example.said, torch.cat(said))
    found = distributions(target, example)
    found[:, list(placeholders_of(target))] = -torch.inf
    assert torch.equal(found.argmax(-1), example.said)


def test_a_row_alone_has_the_same_distributions(target, processor, said):
    asked = sights.asked(0, 2, "describe")
    both = distributions(target, with_answers(sights.inputs_of(processor, asked), said[2:], 0))
    alone = [
        distributions(target, with_answers(sights.inputs_of(processor, [each]), [new], 0))
        for each, new in zip(asked, said[2:], strict=True)
    ]
    assert (both - torch.cat(alone)).abs().max() < 1e-4


def test_what_goes_with_every_token_is_padded_along(inputs, said):
    kinds = (inputs["input_ids"] == 3).long()
    example = with_answers({**inputs, "mm_token_type_ids": kinds}, said, 0)
    assert example.inputs["mm_token_type_ids"].shape == example.inputs["input_ids"].shape
    assert torch.equal(example.inputs["mm_token_type_ids"] == 1, example.inputs["input_ids"] == 3)
    assert example.inputs["pixel_values"] is inputs["pixel_values"]


def test_divergence_is_zero_of_equals_and_ignores_padding_of_the_vocabulary(target, inputs, said):
    p = distributions(target, with_answers(inputs, said, 0))
    assert divergence(p, p).abs() < 1e-6
    assert (divergence(p, torch.cat([p, torch.full_like(p[:, :5], 50.0)], 1))).abs() < 1e-6
    assert divergence(p, p.roll(1, 1)) > 0.1


def test_eyes_are_the_targets_and_frozen_words_are_the_readers(target, reader, processor):
    small = with_eyes_of(target, reader).eval()
    own, theirs = small.model.vision_tower.state_dict(), target.model.vision_tower.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in theirs)
    learning = {name for name, parameter in small.named_parameters() if parameter.requires_grad}
    assert learning
    assert not any("vision_tower" in name for name in learning)
    ids = processor.tokenizer("the picture shows", return_tensors="pt")["input_ids"]
    assert torch.equal(small(input_ids=ids).logits, reader(input_ids=ids).logits)


def test_a_model_of_other_parts_is_refused(reader):
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no vision_tower .* train --kind text"):
        with_eyes_of(reader, reader)


def course(target, processor, said, **options):
    batches = [sights.asked(turn, 4, "describe") for turn in range(3)]
    words = [view("newline", processor), view("drop", processor)]
    return Course(target, 0, words, lambda turn: sights.inputs_of(processor, batches[turn]), [said] * 3, **options)


def test_examples_read_what_they_should(target, reader, processor, said):
    seen = []

    class EncodedImages(torch.nn.Module):
        def forward(self, input_ids, **more):
            seen.append(("pixel_values" in more, int((input_ids == 4).sum(1).min()), bool((input_ids == 3).any())))
            return reader(input_ids=input_ids)

    text = course(target, processor, said)
    values = [text.loss(EncodedImages(), step) for step in range(4)]
    assert seen == [(False, 3, False), (False, 2, False)] * 2  # line breaks: the prompt's two, and a picture's where it is a newline
    assert torch.equal(values[0], course(target, processor, said).loss(EncodedImages(), 0))
    seen.clear()
    with_vision = course(target, processor, said, sees=True)
    for step in range(8):
        with_vision.loss(EncodedImages(), step)
    assert [pixels for pixels, *_ in seen] == [True, True, True, False] * 2
    seen.clear()
    with_vision.words = ()
    for step in range(4):
        with_vision.loss(EncodedImages(), step)
    assert all(pixels for pixels, *_ in seen)  # a projector that learns alone gets nothing from text


def test_the_target_learns_nothing_from_itself_and_hard_examples_are_its_answers(target, processor, said):
    assert course(target, processor, said, sees=True).loss(target, 0).abs() < 1e-6
    hard = course(target, processor, said, sees=True, hard=True)
    example = with_answers(hard.read(0), said, 0)
    assert isinstance(example, Answered)
    wanted = torch.nn.functional.cross_entropy(distributions(target, example), example.said)
    assert torch.allclose(hard.loss(copy.deepcopy(target), 0), wanted)
