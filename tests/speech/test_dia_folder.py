"""Dia by one call from a folder in the published layout: its processor names the codec's own folder."""

import transformers as hf

from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.dia import Dia
from tests.speech.small_delay import TEXTS, dac, dia, dia_network, say


def test_a_folder_speaks_as_before(tmp_path):
    network = dia_network()
    network.save_pretrained(tmp_path / "model")
    dac(len(network.config.delay_pattern), network.config.decoder_config.eos_token_id).save_pretrained(tmp_path / "codec")
    codec = hf.DacModel.from_pretrained(tmp_path / "codec")
    listens = hf.DiaFeatureExtractor(sampling_rate=codec.config.sampling_rate)
    hf.DiaProcessor(listens, hf.DiaTokenizer(), codec).save_pretrained(tmp_path / "model")
    found = load_checkpoint(str(tmp_path / "model"))
    assert isinstance(found, Dia)
    before, drafter = dia(), dia(layers=1, hidden=16, seed=5)
    expected = say(before, TEXTS, temperature=0, guidance=3.0)
    made = say(found, TEXTS, drafter, temperature=0, guidance=3.0, draft_length=3)
    assert made.tokens.tolist() == expected.tokens.tolist()
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(made.waveforms, expected.waveforms, strict=True))
