"""The Python functions give the program's numbers, and show them in notebooks and data frames."""

import ast
import doctest
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import parallelsim as ps
from parallelsim.cli import main

ROOT = Path(__file__).resolve().parent.parent


def examples() -> Iterator[doctest.DocTest]:
    """Of every docstring; doctest's own finder passes over cached properties."""
    for tree in ("parallelsim", "search"):
        for file in sorted((ROOT / tree).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    name = f"{file.stem}.{getattr(node, 'name', '')}"
                    text = ast.get_docstring(node) or ""
                    test = doctest.DocTestParser().get_doctest(text, {}, name, str(file), 0)
                    if test.examples:
                        yield test


@pytest.fixture(scope="module")
def result() -> ps.SearchResult:
    return ps.plan("llama3-8b", 16, fix={"micro_batch_size": 1}, limit={"pp": (1, 2)}, top=4)


def printed(*args: str) -> Any:
    done = CliRunner().invoke(main, [*args, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_plan_is_the_programs_plan(result: ps.SearchResult) -> None:
    options = ("--fix", "micro_batch_size=1", "--limit", "pp=1..2", "--top", "4")
    document = printed("plan", "--model", "llama3-8b", "--gpus", "16", *options)
    assert document["num_candidates"] == result.num_candidates
    assert document["reasons"] == dict(result.reasons)
    for shown, found in (
        (document["plans"], result.plans),
        (document["faster_but_tight"], result.faster_but_tight),
    ):
        assert len(shown) == len(found) > 0
        for i, row in enumerate(shown):
            mine = json.loads(json.dumps(found.row(i)))
            assert {name: row[name] for name in mine} == mine


def test_replayed_simulation_is_the_programs(result: ps.SearchResult, tmp_path: Path) -> None:
    best, file = result.best, tmp_path / "plans.yaml"
    options = ("--fix", "micro_batch_size=1", "--limit", "pp=1..2", "--output", str(file))
    done = CliRunner().invoke(main, ["plan", "--model", "llama3-8b", "--gpus", "16", *options])
    assert done.exit_code == 0, done.output
    document = printed("simulate", "--plan", str(file))
    plans = result.plans
    again = ps.replayed(ps.simulate(plans.model, plans.cluster, plans.framework, best))
    assert {name: document[name] for name in again.row(0)} == json.loads(json.dumps(again.row(0)))


def test_frame_has_the_numbers_of_the_rows(result: ps.SearchResult) -> None:
    pytest.importorskip("pandas", reason="needs pandas (extra 'frames')")
    frame = result.to_frame()
    assert list(frame["rank"]) == list(range(1, len(frame) + 1))
    assert len(frame) == len(result.plans) + len(result.faster_but_tight)
    row = result.plans.row(1)
    known = row["plan"] | row | {"rank": 2, "reasons": "; ".join(row["reasons"])}
    for part in ("time", "memory"):
        known |= {f"{part}.{term}": value for term, value in row[part].items()}
    assert frame.iloc[1].to_dict() == {name: known[name] for name in frame.columns}


def test_without_pandas_the_error_says_what_to_install(
    result: ps.SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"^to_frame\(\) needs pandas: pip install pandas$"):
        result.plans.to_frame()


def test_notebook_tables_escape_names(result: ps.SearchResult) -> None:
    model = replace(result.plans.model, name="<script>alert(1)</script>")
    inputs = (model, result.plans.cluster, result.plans.framework)
    text = ps.simulate(*inputs, result.best)._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("<table>") == text.count("</table>") == 2


def test_consoles_show_a_table(result: ps.SearchResult) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == "llama3-8b on 16 x h100-80gb-sxm"
    assert len(lines) == 3 + len(result.plans) + len(result.faster_but_tight)
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert lines[2].split()[:3] == ["1", str(result.best.tp), str(result.best.cp)]
    assert lines[-1].startswith(f"{result.num_candidates:,} candidates: ")


def test_nothing_safe_is_an_answer_and_best_says_why() -> None:
    result = ps.plan("llama3-8b", 1)
    assert len(result.plans) == 0
    assert "out of memory" in result._repr_html_()
    with pytest.raises(ps.NoFeasiblePlanError, match="231 out of memory"):
        _ = result.best


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"gpus": 0}, "gpus must be a whole number"),
        ({"gpus": 2.5}, "gpus must be a whole number"),
        ({"top": 0}, "top must be"),
        ({"global_batch_size": -1}, "global_batch_size must be at least 1"),
        ({"memory_limit": 80}, "memory_limit must be above 0"),
        ({"precision": "int3"}, "does not train in int3"),
        ({"model": "llama3-9b"}, "llama3-8b"),
        ({"fix": {"tp": 3}}, "fix: tp=3 does not divide 16 GPUs"),
        ({"fix": {"tp": "2"}}, "tp must be a whole number"),
        ({"fix": {"tensor": 2}}, "unknown plan field 'tensor'"),
        ({"fix": {"recompute": "some"}}, "recompute"),
        ({"fix": {"recompute": "full", "recompute_num_layers": 2}}, "leave that out"),
        ({"cluster": ps.load_cluster("hgx-h100"), "nic_gbit_per_s": 400}, "is loaded"),
        ({"limit": {"tp": 2}}, "limit: tp needs several values"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_line(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ps.ParallelSimError) as raised:
        ps.plan(**{"model": "llama3-8b", "gpus": 16} | arguments)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("example", list(examples()), ids=lambda test: test.name)
def test_examples_of_docstrings_run(example: doctest.DocTest) -> None:
    assert doctest.DocTestRunner().run(example).failed == 0
