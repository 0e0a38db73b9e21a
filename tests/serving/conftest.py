"""What tests of the server share: a server of the text mini, for modules that have none of their own, and OpenAI's client for it."""

import pytest

from tests.serving.web import LIMITS, running, text_models


@pytest.fixture(scope="module")
def site():
    with running(text_models(LIMITS), LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def client(site):
    return site.client()
