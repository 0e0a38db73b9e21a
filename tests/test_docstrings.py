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


def test_no_public_name_means_two_things():
    found = docstrings.ambiguous()
    assert not {name: modules for name, modules in found.items() if name not in docstrings.SHARED_NAMES}
    assert set(docstrings.SHARED_NAMES) <= set(found), "a reason is left for a name that is defined once"
    classes = {name.name for name in docstrings.names() if isinstance(name.node, docstrings.ast.ClassDef)}
    assert not classes & set(docstrings.SHARED_NAMES)


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


def test_tensors_need_shapes():
    tree = docstrings.ast.parse(
        "def f(x: Tensor, y: Tensor | None, z: Callable[[Tensor], int]) -> Tensor:\n"
        '    """Do.\n\n    Args:\n        x: numbers.\n        y: more\n            numbers [B].\n        z: a function.\n'
        '\n    Returns:\n        Numbers.\n    """\n'
        'def g(x: Tensor) -> Tensor:\n    """Do.\n\n    Args:\n        x: bool.\n\n    Returns:\n        [B] numbers.\n    """\n'
    )
    f, g = (docstrings.Name("mmspec", node.name, node) for node in tree.body)
    assert docstrings._of_function(f) == ["shape of x", "shape of what is returned"]
    assert docstrings._of_function(g) == []


def test_an_entry_is_a_line_of_the_section_with_text():
    doc = "Do.\n\nArgs:\n    a: one of\n        b: or c.\n    c:\n"
    assert docstrings._names_missing(doc, ("a", "b", "c"), "Args") == ["b", "c"]
