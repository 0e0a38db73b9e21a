"""Modules and names of 0.1 still work, with a DeprecationWarning that names the new place."""

import importlib
import sys
import warnings

import pytest

import mmspec
from mmspec.utils import renamed

MODULES = sorted(renamed._modules())


@pytest.fixture(scope="module", autouse=True)
def the_function_of_a_name_again():
    """An import of mmspec.text.speculate puts a module, which can be called, in the place of the function: other tests get the function."""
    function = mmspec.text.speculate
    yield
    mmspec.text.speculate = function
    sys.modules.pop("mmspec.text.speculate")


@pytest.mark.parametrize("module", MODULES)
def test_every_module_of_0_1_can_be_imported(module):
    importlib.import_module(module)
    importlib.import_module(renamed._modules()[module])


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("mmspec.core.accept", "Token", "mmspec.core.rules.token:Token"),
        ("mmspec.core.laws", "Law", "mmspec.core.distributions.protocol:Distribution"),
        ("mmspec.core.hf", "HFTarget", "mmspec.models.target:HFTarget"),
        ("mmspec.core.limits", "Limits", "mmspec.core.stopping:DefaultStopping"),
        ("mmspec.core.processors", "tally", "mmspec.core.processors.history:tally"),
        ("mmspec.core.processors", "Suppress", "mmspec.core.processors.pipeline:Suppress"),
        ("mmspec.drafters.trees", "Template", "mmspec.drafters.trees.static:Template"),
        ("mmspec.drafters.cascade", "Cascade", "mmspec.drafters.model.vertical_cascade:VerticalCascade"),
        ("mmspec.text.pairs", "load_pair", "mmspec.loading.text:load_pair"),
        ("mmspec.vision.continuous", "ContinuousPictures", "mmspec.vision.continuous.methods:ContinuousPictures"),
    ],
)
def test_names_of_0_1_warn_and_are_the_new_ones(old, name, new):
    module, _, attribute = new.partition(":")
    with pytest.warns(DeprecationWarning, match=f"{module}.{attribute}"):
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("old", "new"), renamed._lines("old_names.txt"))
def test_names_that_changed_are_found_under_both(old, new):
    (module, name), (place, today) = old.split(":"), new.split(":")
    with pytest.warns(DeprecationWarning, match=f"{place}.{today}"):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(place), today)


def test_a_module_of_0_1_does_not_hide_the_function_of_its_name():
    importlib.import_module("mmspec.text.speculate")
    assert callable(mmspec.text.speculate)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        assert type(mmspec.text.speculate("lookup")).__name__ == "Speculation"


def test_public_names_of_0_1_warn():
    for package, old, new in (("vision", "WAYS", "CONTINUOUS_METHODS"), ("recsys", "MODES", "METHODS"), ("recsys", "NGram", "ItemNGram")):
        with pytest.warns(DeprecationWarning, match=new):
            assert getattr(getattr(mmspec, package), old) is getattr(getattr(mmspec, package), new)


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"mmspec\.core\.rules\.base"):
        importlib.import_module("mmspec.core.accept").Nonsense  # noqa: B018


def test_importing_the_package_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        importlib.reload(mmspec)
