"""A fixture for modules that fork: import it as `one_thread`."""

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Children that are forked can use no threads of their parent's, and numbers must not depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
