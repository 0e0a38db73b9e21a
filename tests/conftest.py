"""Models every part of the suite may use: tiny, random, sharp enough that greedy decoding has no ties."""

import gc
import logging
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers and processes side by side: threads of their own would wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.skips import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks: where CI is set, a skip fails

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What the imports made lives to the end: the garbage collector need not visit it again."""
    gc.collect()
    gc.freeze()


CACHE_WARNING = "`past_key_values`/`cache_params` are deprecated"
"""How transformers 5.24 warns when the cache of an output is read by its old name. By keyword it is a FutureWarning (pyproject.toml)."""


def refuse_old_cache_names(record: logging.LogRecord) -> bool:
    """A filter of transformers' log: that warning is an error."""
    assert not str(record.msg).startswith(CACHE_WARNING), record.msg
    return True


logging.getLogger("transformers.utils.generic").addFilter(refuse_old_cache_names)


def llama(layers: int, seed: int, vocabulary: int = 50) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, max_position_embeddings=256, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    return model


@pytest.fixture(scope="session")
def big() -> LlamaForCausalLM:
    return llama(3, seed=0)


@pytest.fixture(scope="session")
def small() -> LlamaForCausalLM:
    return llama(1, seed=1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Results of self-tests (`mmspec.models.proof.store`) are kept apart from the user's."""
    before = os.environ.get("MMSPEC_CACHE")
    os.environ["MMSPEC_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["MMSPEC_CACHE"]
    else:
        os.environ["MMSPEC_CACHE"] = before
