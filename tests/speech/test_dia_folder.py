"""Dia by one call from a folder in the published layout: its processor names the codec's own folder."""

from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.dia import Dia
from tests.speech.small_delay import TEXTS, dia_drafter, dia_folder, dia_target, say


def test_a_folder_speaks_as_before(tmp_path):
    found = load_checkpoint(dia_folder(tmp_path))
    assert isinstance(found, Dia)
    expected = say(dia_target(), TEXTS, temperature=0, guidance=3.0)
    made = say(found, TEXTS, dia_drafter(), temperature=0, guidance=3.0, draft_length=3)
    assert made.tokens.tolist() == expected.tokens.tolist()
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(made.waveforms, expected.waveforms, strict=True))
