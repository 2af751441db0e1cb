"""The names that people import, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import parallelsim

HEAVY = ("optuna", "networkx", "pandas", "pydantic", "rich", "click", "yaml")


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names_are_sorted_and_resolve() -> None:
    assert parallelsim.__all__ == sorted(parallelsim.__all__)
    for name in parallelsim.__all__:
        assert getattr(parallelsim, name) is not None
    assert set(parallelsim.__all__) <= set(dir(parallelsim))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(parallelsim, "no_such_name")


def test_import_loads_no_heavy_library() -> None:
    loaded = run_python(
        f"import sys, parallelsim\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_functions_win_over_the_modules_of_their_name() -> None:
    printed = run_python(
        "import parallelsim.simulate, parallelsim.compare, parallelsim.plan\n"
        "import parallelsim.search.grid\n"
        "print([callable(getattr(parallelsim, n)) for n in ('simulate', 'compare', 'plan')])"
    )
    assert printed.strip() == "[True, True, True]"


def test_the_program_starts_without_the_heavy_libraries() -> None:
    loaded = run_python(
        "import sys, parallelsim.cli\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name != 'click'])"
    )
    assert loaded.strip() == "[]"


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert parallelsim.__version__ == version("parallelsim")
