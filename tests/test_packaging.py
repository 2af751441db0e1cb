"""What is installed is what is in the repository, from a wheel and in editable mode."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
INSTALLED_TREES = ("parallelsim", "search", "models", "clusters")


def test_package_list_equals_the_tree() -> None:
    found = set()
    for tree in INSTALLED_TREES:
        for init in (ROOT / tree).rglob("__init__.py"):
            folder = ".".join(init.parent.relative_to(ROOT).parts)
            found.add(folder if tree == "parallelsim" else f"parallelsim.{folder}")
    assert sorted(SETUPTOOLS["packages"]) == sorted(found)


def test_every_folder_with_python_is_a_package() -> None:
    for tree in INSTALLED_TREES:
        for module in (ROOT / tree).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that building leaves nothing in the repository."""
    target = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for tree in INSTALLED_TREES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / tree, target / tree, ignore=ignored)
    return target


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    _run([sys.executable, "-c", code], cwd=source)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    expected = set()
    for tree in INSTALLED_TREES:
        for file in (ROOT / tree).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(ROOT).as_posix()
                expected.add(name if tree == "parallelsim" else f"parallelsim/{name}")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    assert held == expected


def test_installed_wheel_imports_and_plans(wheel: Path, tmp_path: Path) -> None:
    python = _environment(tmp_path / "env")
    _pip_install(python, "--no-index", str(wheel))
    _check_installation(python, tmp_path, inside=tmp_path / "env")


def test_editable_install_imports_and_plans(source: Path, tmp_path: Path) -> None:
    python = _environment(tmp_path / "env")
    _pip_install(python, "--no-index", "--no-build-isolation", "--editable", str(source))
    _check_installation(python, tmp_path, inside=source)


def _environment(folder: Path) -> Path:
    """A fresh environment without pip that borrows the dependencies of this one.

    A path line in a .pth file adds the folder but does not run the .pth files in it, so an editable
    install of parallelsim in this environment stays invisible there.
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], cwd=folder.parent)
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _pip_install(python: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    # Without the option, pip takes the parallelsim of the borrowed folder for an older version of
    # this one and tries to remove it.
    install = ["install", "--quiet", "--no-deps", "--ignore-installed", *arguments]
    _run([*pip, *install], cwd=python.parent)


def _check_installation(python: Path, elsewhere: Path, inside: Path) -> None:
    code = """if True:
        import importlib.resources as resources, sys
        import parallelsim, parallelsim.search.grid, parallelsim.models, parallelsim.clusters
        for name in ("frameworks", "models", "clusters"):
            files = resources.files(f"parallelsim.{name}").iterdir()
            assert any(f.name.endswith(".yaml") for f in files), name
        print(parallelsim.search.__file__)
    """
    where = Path(_run([str(python), "-c", code], cwd=elsewhere).strip())
    assert where.resolve().is_relative_to(inside.resolve()), where
    program = str(python.parent / "parallelsim")
    options = ["plan", "--model", "llama3-8b", "--gpus", "8", "--json"]
    assert json.loads(_run([program, *options], cwd=elsewhere))["plans"]


def _run(command: list[str], cwd: Path) -> str:
    """Standard output of a command that must succeed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
