"""Settings of every test: floating-point errors raise, Hypothesis has no deadline."""

import os
from collections.abc import Generator

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """An overflow, an underflow, a division by zero or a NaN in NumPy is an error in every test."""
    with np.errstate(all="raise"):
        return (yield)
