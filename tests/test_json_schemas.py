"""What commands print as JSON, and plan files, hold exactly what the published schemas say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from parallelsim.cli import main
from parallelsim.planfile import read_document
from parallelsim.report.schemas import NAMES, schema
from parallelsim.yaml_io import dump_yaml, read_yaml

PUBLISHED = Path(__file__).resolve().parent / "published"
TASK = "-m llama3-8b -n 8 --fix tp=4,layout=even"
INPUTS = f"{TASK} --limit cp=1..2,micro_batch_size=1..2"


def closed(value: Any) -> Any:
    """The schema without the permission for further keys: nothing printed goes undescribed."""
    if isinstance(value, list):
        return [closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    shut = {"additionalProperties": False} if "properties" in value else {}
    return shut | {key: closed(each) for key, each in value.items()}


def check(name: str, document: Any) -> None:
    whole = closed(schema(name))
    Draft202012Validator.check_schema(whole)
    errors = [f"{error.json_path}: {error.message}"[:300] for error in each_error(whole, document)]
    assert not errors


def each_error(whole: Any, document: Any) -> Any:
    return Draft202012Validator(whole).iter_errors(document)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json")
    table = (PUBLISHED / "korthikanti_2022.csv").read_text().splitlines()
    (path / "runs.csv").write_text("\n".join(table[:4]) + "\n")
    for line in (f"plan {INPUTS} -o plans.yaml", f"tune init study {INPUTS}", "tune next study"):
        run(path, line)
    (path / "run.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
        "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 4 --bf16 "
        "--vocab-size 32000 --mystery 3\n"
    )
    return path


def run(folder: Path, line: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in ("sweep", "elastic"):  # starting processes takes longer than the searches
            patch.setattr(f"parallelsim.cli_{command}.num_cores", lambda: 1)
        result = CliRunner(env={"COLUMNS": "80"}).invoke(main, line.split())
    assert result.exit_code in (0, 3), result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plan", f"plan {INPUTS} --tokens 1T --why-not tp=8 --robustness"),
        ("plan", f"plan {TASK} --limit cp=1 --objective cost --tokens 1T --price-per-gpu-hour 2"),
        ("plan", "plan -m llama3-70b -n 8 --fix tp=8,pp=1 --searcher bayesian --budget 4"),
        ("plan", "plan --compare-with run.sh --fix tp=4 --top 1"),
        ("simulate", "simulate -m mixtral-8x7b -n 64 -b 256 --tp 4 --pp 8 --tokens 1T"),
        ("simulate", "simulate -m llama3-8b -n 64 --tp 64"),
        ("explain", "explain run.sh --why-not tp=64"),
        ("compare", "compare plans.yaml"),
        ("fit", "fit -m llama2-13b --fix tp=4,layout=even"),
        ("sweep", f"sweep {INPUTS.replace('-n 8', '-n 1,8')} --tokens 1T"),
        ("elastic", f"elastic {INPUTS.replace('-n 8', '-n 16')}"),
        ("tune", "tune record study --seconds 50 --rank 1"),
        ("tune", "tune next study"),
        ("validate", "validate runs.csv"),
        ("calibrate", "calibrate runs.csv --cluster dgx-a100-80gb"),
        ("doctor", "doctor"),
        ("model", "models mixtral-8x7b"),
        ("models", "models"),
        ("cluster", "clusters hgx-h100"),
        ("clusters", "clusters"),
        ("framework", "frameworks megatron-core"),
        ("frameworks", "frameworks"),
    ],
)
def test_a_command_prints_what_its_schema_says(name: str, line: str, folder: Path) -> None:
    document = json.loads(run(folder, f"{line} --json"))
    check(name, document)
    assert list(document)[:2] == ["schema_version", "document"]


def test_a_plan_file_holds_what_its_schema_says(folder: Path) -> None:
    check("plan-file", read_yaml(folder / "plans.yaml"))


def test_plan_files_without_a_version_are_read_and_newer_ones_refused(folder: Path) -> None:
    data = read_yaml(folder / "plans.yaml")
    assert data.pop("schema_version") == 1
    old = folder / "old.yaml"
    old.write_text(dump_yaml(data))
    assert read_document(old).plans == read_document(folder / "plans.yaml").plans
    old.write_text(dump_yaml({"schema_version": 2, **data}))
    result = CliRunner().invoke(main, ["compare", str(old)])
    assert result.exit_code == 1
    assert "schema_version: this parallelsim reads version 1" in result.stderr


def test_schemas_are_printed_and_every_command_has_one(folder: Path) -> None:
    assert tuple(run(folder, "schema").split()) == NAMES
    for name in NAMES:
        assert json.loads(run(folder, f"schema {name}")) == schema(name)
    wrong = CliRunner().invoke(main, ["schema", "plans"])
    assert wrong.exit_code == 2
    assert "no document 'plans'; there are plan, simulate" in wrong.stderr
