"""What the tests with real processes share."""

from __future__ import annotations

import pytest
from ranks import running_ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Functions called on real ranks: `ranks.run(function, world_size, *arguments)`."""
    with running_ranks(tmp_path_factory.mktemp("ranks")) as running:
        yield running
