"""What a cold ``parallelsim plan`` loads, and that the catalogue needs none of what it skips."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from parallelsim import catalog
from parallelsim.errors import SpecError
from parallelsim.schemas_build import (
    build_accelerator,
    build_cluster,
    build_framework,
    build_model,
)
from parallelsim.schemas_cluster import checked_accelerator, checked_cluster
from parallelsim.schemas_framework import checked_framework
from parallelsim.schemas_model import checked_model
from parallelsim.yaml_io import dump_yaml, parse_yaml

THIRD_PARTY = {"numpy", "click", "yaml", "parallelsim"}
"""The only distributions that planning from the catalogue loads, as long as nobody watches."""
SLOW_STANDARD_LIBRARY = (
    *(
        "asyncio",
        "difflib",
        "email",
        "importlib.metadata",
        "importlib.resources",
        "multiprocessing",
    ),
    *("socket", "ssl", "subprocess", "tempfile", "unittest", "zipfile"),
)
"""Each takes milliseconds; those that NumPy loads itself are not counted."""
OTHER_COMMANDS = (
    *("exporters", "timeline.gantt", "timeline.chrome", "timeline.analysis"),
    *("cli_sweep", "cli_tune", "cli_validate", "fit", "frames", "doctor", "report.schemas"),
    *("huggingface", "huggingface_config", "schemas_model"),
    *("schemas_cluster", "schemas_framework", "measurements", "validation", "report.single"),
    *("robustness", "report.robustness", "report.page", "report.documents"),
)
"""Modules of parallelsim that planning from the catalogue does not need."""

PROGRAM = """
import sys
import numpy
before = set(sys.modules)
sys.argv = ["parallelsim", "plan", "--model", "llama3-70b", "--gpus", "256"]
from parallelsim.__main__ import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """Modules that the plan command loads beyond NumPy's, with stdout in a pipe."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "llama3-70b" in done.stdout
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_planning_loads_no_other_distribution(loaded: list[str]) -> None:
    roots = {name.split(".")[0] for name in loaded} - sys.stdlib_module_names
    compiled = {root for root in roots if "cython" in root.lower()}  # what Cython adds for PyYAML
    assert roots - compiled <= THIRD_PARTY


def test_planning_loads_no_slow_module(loaded: list[str]) -> None:
    assert not set(SLOW_STANDARD_LIBRARY) & set(loaded)


def test_planning_loads_no_module_of_other_commands(loaded: list[str]) -> None:
    assert not {f"parallelsim.{name}" for name in OTHER_COMMANDS} & set(loaded)


def _cluster(data: dict[str, Any]) -> Any:
    return build_cluster(data, load_accelerator=catalog.load_accelerator, nic_gbit_per_s=None)


Check = Callable[[dict[str, Any], str], dict[str, Any]]
KINDS: dict[str, tuple[str, tuple[str, ...], Check, Callable[[dict[str, Any]], Any]]] = {
    "model": ("models", catalog.model_names(), checked_model, lambda data: build_model(data, "f")),
    "cluster": ("clusters", catalog.cluster_names(), checked_cluster, _cluster),
    "accelerator": (
        "clusters/accelerators",
        catalog.accelerator_names(),
        checked_accelerator,
        build_accelerator,
    ),
    "framework": (
        "frameworks",
        catalog.framework_names(),
        checked_framework,
        build_framework,
    ),
}
FILES = [(kind, name) for kind, (_, names, _, _) in KINDS.items() for name in names]


def document(kind: str, name: str) -> dict[str, Any]:
    package, *folders = KINDS[kind][0].split("/")
    file = files(f"parallelsim.{package}").joinpath(*folders, f"{name}.yaml")
    return parse_yaml(file.read_text(encoding="utf-8"), name)


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_catalogue_file_passes_the_check_that_reading_it_skips(kind: str, name: str) -> None:
    _, _, check, build = KINDS[kind]
    data = document(kind, name)
    checked = check(copy.deepcopy(data), name)
    assert checked == data
    assert repr(build(checked)) == repr(build(data))
    assert build(data) == getattr(catalog, f"load_{kind}")(name)


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_built_values_have_the_types_of_their_fields(kind: str, name: str) -> None:
    assert_typed(KINDS[kind][3](document(kind, name)))


def assert_typed(spec: Any) -> None:
    """YAML writes 10 for 10.0, and both have to become what the dataclass says."""
    hints = get_type_hints(type(spec))
    for field in fields(spec):
        value, hint = getattr(spec, field.name), str(hints[field.name])
        assert not isinstance(value, list), field.name
        leaves = value.values() if isinstance(value, dict) else (value,)
        for leaf in leaves if not isinstance(value, tuple) else value:
            if is_dataclass(leaf):
                assert_typed(leaf)
            elif leaf is not None:
                assert type(leaf).__name__ in hint, (field.name, leaf, hint)


@pytest.mark.parametrize("kind", ["model", "cluster", "framework"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_file_at_a_path_is_checked(kind: str, inner: bool, tmp_path: Path) -> None:
    load = getattr(catalog, f"load_{kind}")
    data = document(kind, KINDS[kind][1][0])
    path = tmp_path / "mine.yaml"
    path.write_text(dump_yaml(data), encoding="utf-8")
    assert load(path) == load(KINDS[kind][1][0])
    lists = (value if isinstance(value, list) else [value] for value in data.values())
    target = next(item for items in lists for item in items if isinstance(item, dict))
    (target if inner else data)["colour"] = "red"
    path.write_text(dump_yaml(data), encoding="utf-8")
    with pytest.raises(SpecError, match="colour: unknown key"):
        load(path)
