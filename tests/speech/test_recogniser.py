"""The recogniser: what it learns it hears, at any length, and errors are counted in words."""

import torch
from torch import nn

from mmspec.speech.sound.recogniser import Recogniser, RecogniserConfig, word_errors

WORDS = ("high", "low")


def tone(word: str) -> torch.Tensor:
    pitch = {"high": 1800, "low": 300}[word]
    return 0.3 * torch.sin(2 * torch.pi * pitch * torch.arange(2400) / 8000)


def said(text: str) -> torch.Tensor:
    parts = [torch.zeros(800)]
    for word in text.split():
        parts += [tone(word), torch.zeros(2000)]
    return torch.cat(parts)


def trained() -> Recogniser:
    """A few seconds of training on tones."""
    torch.manual_seed(0)
    model = Recogniser(RecogniserConfig(WORDS, width=24, layers=3))
    texts = ["high", "low", "high low", "low high", "low low", "high high low", "low high high"]
    features = nn.utils.rnn.pad_sequence([model.features(said(text)).T for text in texts], batch_first=True).transpose(1, 2)
    goal = torch.tensor([WORDS.index(word) for text in texts for word in text.split()])
    counts, loss = torch.tensor([len(text.split()) for text in texts]), nn.CTCLoss(blank=len(WORDS))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        scores = model(features).log_softmax(-1).transpose(0, 1)
        value = loss(scores, goal, torch.full((len(texts),), len(scores)), counts)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return model.eval()


def test_it_hears_what_it_learned_and_comes_back_from_a_file(tmp_path):
    model = trained()
    for text in ("low high low", "high", "low"):
        assert model.hear(said(text)) == text
    model.save(tmp_path)
    again = Recogniser.load(tmp_path)
    assert again.config == model.config
    assert again.hear(said("high low")) == "high low"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recogniser.json", "recogniser.safetensors"]


def test_silence_and_nothing_are_no_words():
    model = Recogniser(RecogniserConfig(WORDS, width=8, layers=1)).eval()
    assert model.hear(torch.zeros(0)) == model.hear(torch.zeros(100)) == ""


def test_errors_are_words_put_in_left_out_or_changed():
    assert word_errors(["one two three", "one", "one two", ""], ["one three", "one", "two one", "nine"]) == [1, 0, 2, 1]
