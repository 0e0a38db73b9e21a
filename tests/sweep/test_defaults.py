"""Small copies of default configs have every kind of layer that these have, and pass the self-test across their windows.

`python -m tests.sweep --defaults` does so for every class of docs/families.md; here is one class for every set of fields that say what
differs from layer to layer.
"""

import pytest
import transformers as hf

from mmspec.models.proof.cases import check_twin
from mmspec.models.proof.twin import WINDOW, twin_config
from tests.sweep.defaults import default_config, differing, exact_classes, lost_kinds, text_config, without_weights

COVERING = {fields: kind for kind in exact_classes() if (fields := differing(default_config(kind)))}


DERIVED = [  # from fields that a small copy makes smaller
    hf.HrmTextForCausalLM,  # layers of the cache
    hf.LongcatFlashForCausalLM,  # the width of a query
    hf.Mistral4ForCausalLM,  # the width of a head, and its rotated part
    hf.KimiLinearForCausalLM,  # experts, by other names
    hf.RobertaForCausalLM,  # `generate` counts positions from 0, the forward from behind the padding id
    hf.T5ForConditionalGeneration,  # the first decoder id may stand in the generation config alone
    hf.Speech2TextForConditionalGeneration,  # positions follow the padding id, which the first decoder id is not
]


@pytest.mark.parametrize("kind", COVERING.values(), ids=lambda kind: kind.__name__)
def test_a_small_copy_has_every_kind_of_layer(kind):
    model = without_weights(kind)
    small = twin_config(kind, model.config)
    assert lost_kinds(model.config, small) == []
    assert text_config(small).num_hidden_layers <= 12


@pytest.mark.parametrize("kind", [hf.Gemma4ForCausalLM, hf.Gemma3nForCausalLM], ids=lambda kind: kind.__name__)
def test_layers_with_fields_of_their_own_pass_the_self_test(kind):
    """Gemma 4's full layers have other heads, by number; Gemma 3n's last layers read the keys of earlier ones."""
    model = without_weights(kind)
    small = text_config(twin_config(kind, model.config))
    assert small.sliding_window == WINDOW < text_config(model.config).sliding_window
    assert check_twin(model) is None


@pytest.mark.parametrize("kind", DERIVED, ids=lambda kind: kind.__name__)
def test_small_copies_keep_what_a_config_derives(kind):
    assert check_twin(without_weights(kind)) is None


def test_fields_by_number_follow_their_layers():
    small = twin_config(hf.Gemma4ForCausalLM, hf.Gemma4TextConfig(num_kv_shared_layers=18, sliding_window=1024))
    full = [number for number, kind in enumerate(small.layer_types) if kind == "full_attention"]
    assert sorted(map(int, small.to_dict()["per_layer_config"])) == full
    assert {part["head_dim"] for part in small.to_dict()["per_layer_config"].values()} == {2 * small.to_dict()["head_dim"]}
    assert 0 < small.num_kv_shared_layers < small.num_hidden_layers
    assert twin_config(hf.MllamaForCausalLM, hf.MllamaForCausalLM.config_class()).cross_attention_layers == [3]
