"""Every config is strict YAML, builds, and runs."""

from pathlib import Path

import pytest

from mmspec.loading.text import load_pair
from mmspec.run.config import load_config

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_config_builds_and_runs(path):
    pair = load_pair(load_config(path, ["run.max_new_tokens=6"]))
    out = pair.generate(pair.inputs([pair.examples[0]]))
    assert 1 <= out.lengths[0] <= 6
    assert out.stats.drafted > 0
    assert out.stats.exactness == pair.exactness


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_config_says_how_to_run_it(path):
    assert f"--config {path.relative_to(ROOT)}" in path.read_text(encoding="utf-8").split("target:")[0]


def test_there_are_configs():
    assert CONFIGS
