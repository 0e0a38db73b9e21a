"""Every public name has a docstring, and those of the public API name every parameter, what they return and what they raise."""

import pytest

from tests import docstrings

ROOMS = docstrings.rooms()


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_have_docstrings(room):
    assert not docstrings.undocumented(room)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_of_the_public_api_are_complete(room):
    assert not docstrings.incomplete(room)


def test_the_public_api_is_found():
    found = docstrings.public_api()
    assert ("mmspec.text.generation", "generate") in found
    assert ("mmspec.core.rules.token", "Token") in found
    assert ("mmspec.core.distributions.gaussian", "Gaussian") in found
    assert {module for module, _ in found} <= set(docstrings.trees())


def test_what_a_docstring_leaves_out_is_named():
    tree = docstrings.ast.parse(
        'def f(a, b):\n    """Do.\n\n    Args:\n        a: one.\n    """\n    if a:\n        raise ValueError\n    return b\n'
        'def g(a, *rest) -> int:\n    """Do.\n\n    Args:\n        a, rest: numbers.\n\n    Returns:\n        One.\n    """\n'
    )
    f, g = (docstrings.Name("mmspec", node.name, node) for node in tree.body)
    assert docstrings._of_function(f) == ["argument b", "Raises ValueError"]
    assert docstrings._of_function(g) == []
