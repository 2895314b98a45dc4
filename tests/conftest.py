"""Tests compare the numbers of one thread on a CPU: the same on every machine."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from harness.schemes import all_schemes

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("shared", deadline=None, derandomize=True)  # the machine is shared
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def catalogue_as_it_was() -> Iterator[None]:
    """Schemes that a test declares are gone when it is over."""
    registered = all_schemes()
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)
