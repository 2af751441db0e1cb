"""``parallelsim doctor`` finds what is broken, and says what to do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from parallelsim import catalog, doctor
from parallelsim.cli import main
from parallelsim.errors import SpecError

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def run(**environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", **environment}).invoke(main, ["doctor"])


def line_of(result: Result, name: str) -> str:
    (line,) = [line for line in result.stdout.splitlines() if f" {name}: " in line]
    return line


def test_a_good_installation_has_nothing_broken() -> None:
    result = run()
    assert result.exit_code == 0, result.stdout
    assert result.stdout.endswith("\n\nnothing broken\n")
    assert line_of(result, "a plan").startswith("ok     a plan: llama3-8b on 8 H100: ")


def test_it_knows_every_package_of_the_project() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    needed = {doctor._DISTRIBUTIONS.get(module, module) for module in doctor.NEEDED}
    assert {text.partition(">")[0] for text in project["dependencies"]} == needed
    extras = {module: extra for module, (_, extra) in doctor.OPTIONAL.items()}
    for name in ("frames", "gp", "postgresql"):  # the others are for work on parallelsim itself
        texts = project["optional-dependencies"][name]
        modules = {module for module, extra in extras.items() if extra == name}
        assert {re.match(r"\w+", text)[0] for text in texts} == modules


def test_what_is_missing_or_damaged_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damaged(name: str) -> Any:
        raise SpecError("no YAML", file=name)

    (tmp_path / "damaged_module.py").write_text("raise SystemError('other\\nversion')")
    (tmp_path / "pandas").mkdir()  # a folder of the user's is no package
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(doctor.NEEDED, "damaged_module", "tests")
    monkeypatch.setitem(doctor.NEEDED, "no_such_module", "tests")
    monkeypatch.setattr(catalog, "load_framework", damaged)
    monkeypatch.setattr(catalog, "framework_names", lambda: ("one", "two"))
    broken = [check for check in doctor.checks() if check.status == "broken"]
    assert [check.name for check in broken[:3]] == [
        "damaged_module",
        "no_such_module",
        "frameworks",
    ]
    assert broken[0].found == "other version, for tests"
    assert broken[1].advice == "pip install --upgrade no_such_module"
    assert "one: no YAML; two: no YAML" in broken[2].found


def test_a_wrong_result_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = catalog.load_model("llama3-8b", {"num_layers": 256})
    monkeypatch.setattr(catalog, "load_model", lambda name: slower)
    check = list(doctor.checks())[-1]
    assert (check.name, check.status) == ("a plan", "broken")


def test_terminals_and_folders_that_cost_comfort_are_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "gone"))
    result = run(COLUMNS="40")
    assert result.exit_code == 0
    assert line_of(result, "width").startswith("note   width: 40 columns; tables drop columns")
    assert line_of(result, "temporary files").startswith("note ")
    assert "set TMPDIR" in line_of(result, "temporary files")
