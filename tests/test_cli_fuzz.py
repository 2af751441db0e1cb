"""Hundreds of broken command lines and files: a stated exit code, one error line, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parallelsim.cli import main
from parallelsim.plan import PLAN_FIELDS

FAST = ("--model", "gpt2-xl", "--set", "num_layers=2")

numbers = st.one_of(
    st.integers(-3, 20).map(str),
    st.sampled_from(
        ["", "0", "-1", "nan", "inf", "-inf", "1e400", "1.5", "0x10", "1_000", "9" * 25, "1e9", "٣"]
    ),
    st.integers(-(2**70), 2**70).map(str),
)
words = st.one_of(
    numbers,
    st.text(max_size=12),
    st.sampled_from(
        ["full", "full:0", "full:99", "selective", "none", "true", "a2a", "{}", "\x1b[31m"]
    ),
)
names = st.one_of(st.sampled_from([*PLAN_FIELDS, "num_layers", "hidden_size", "window", ""]), words)
assignments = st.one_of(
    st.builds("{}={}".format, names, words),
    st.builds("{}={}..{}".format, names, numbers, numbers),
    st.builds("{}={}|{}".format, names, words, words),
    st.sampled_from(
        ["==", ",", "tp=,", "tp=1,tp=1", "tp=1..", "=..", "tp=1..9999999999", "a" * 500]
    ),
    st.text(max_size=20),
)
specs = st.sampled_from(
    [
        "gpt2-xl",
        "hgx-h100",
        "megatron-core",
        "l40s",
        "",
        ".",
        "/",
        "/dev/null",
        "/etc/passwd",
        "nö",
        "🦙",
    ]
)
options = st.one_of(
    st.tuples(st.sampled_from(["--gpus", "--global-batch-size", "--seq-length", "--top"]), numbers),
    st.tuples(st.sampled_from(["--memory-limit", "--nic-gbit-per-s", "--rank"]), numbers),
    st.tuples(st.sampled_from(["--fix", "--limit", "--set"]), assignments),
    st.tuples(st.sampled_from(["--tp", "--pp", "--cp", "--vpp", "--dp", "--zero"]), numbers),
    st.tuples(st.sampled_from(["--micro-batch-size", "--first-stage-layers"]), numbers),
    st.tuples(st.sampled_from(["--recompute", "--layout", "--schedule", "--precision"]), words),
    st.tuples(st.sampled_from(["--cluster", "--framework", "--plan", "--output", "--to"]), specs),
    st.tuples(st.sampled_from(["--model", "--export", "--searcher"]), st.one_of(specs, words)),
    st.tuples(st.sampled_from(["--json", "--sequence-parallel", "--no-cuda-graphs"])),
    st.tuples(words),
)
commands = st.sampled_from(
    ["plan", "simulate", "compare", "export", "models", "clusters", "frameworks"]
)


def checked(arguments: list[str]) -> Result:
    """Run a command line; whatever it is, it must end in a known way."""
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1, 2, 3), result.output
    assert "Traceback" not in result.output
    errors = [line for line in result.stderr.splitlines() if "parallelsim: error:" in line]
    if arguments and result.exit_code:
        assert len(errors) == 1, result.stderr
        assert errors[0].isprintable()
        assert len(errors[0]) < 1500
    if result.exit_code == 0 and "--json" in arguments and "-h" not in arguments:
        json.loads(result.stdout, parse_constant=lambda text: pytest.fail(text))
    return result


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=commands, extra=st.lists(options, max_size=4))
def test_any_options_end_in_a_known_way(
    command: str, extra: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # --output may write
    checked([command, *(word for option in extra for word in option)])


@settings(max_examples=200)
@given(option=st.sampled_from(["--fix", "--limit", "--set"]), text=assignments)
@example(option="--limit", text="micro_batch_size=1..2147483648")
@example(option="--set", text="num_layers=1000000000")
def test_plan_survives_any_assignment(option: str, text: str) -> None:
    checked(["plan", *FAST, "--gpus", "8", "--top", "2", option, text])


@settings(max_examples=100)
@given(
    fields=st.dictionaries(
        st.sampled_from(["tp", "cp", "pp", "vpp", "dp", "micro-batch-size", "zero", "seq-length"]),
        st.integers(0, 33).map(str),
        max_size=5,
    ),
    recompute=st.sampled_from(["none", "selective", "full", "full:1", "full:7"]),
    batch=st.integers(1, 100).map(str),
    gpus=st.sampled_from([None, "1", "2", "8", "16", "24"]),
)
def test_simulate_answers_any_degrees(
    fields: dict[str, str], recompute: str, batch: str, gpus: str | None
) -> None:
    given_fields = [word for name, value in fields.items() for word in (f"--{name}", value)]
    size = ["--gpus", gpus] if gpus else []
    result = checked(
        ["simulate", *FAST, *size, "--global-batch-size", batch, "--recompute", recompute]
        + [*given_fields, "--json"]
    )
    if result.exit_code == 0:
        assert json.loads(result.stdout)["step_time_s"] > 0


@settings(max_examples=20)
@given(
    gpus=st.sampled_from([1, 2, 4, 8, 16, 40]),
    batch=st.integers(1, 300),
    limit=st.floats(0.001, 1.05),
    top=st.integers(1, 20),
)
@example(gpus=40, batch=300, limit=1.05, top=20)
@example(gpus=8, batch=1, limit=0.001, top=1)
def test_plan_answers_any_size_and_batch(gpus: int, batch: int, limit: float, top: int) -> None:
    size = ["--gpus", str(gpus), "--global-batch-size", str(batch), "--top", str(top)]
    result = checked(["plan", *FAST, *size, "--memory-limit", str(limit), "--json"])
    assert result.exit_code in (0, 3)
    data = json.loads(result.stdout)
    assert bool(data["plans"]) == (result.exit_code == 0)
    assert all(plan["memory_use_frac"] <= limit for plan in data["plans"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.builds("{}: {}\n".format, names, words).map(lambda text: text.encode()),
        st.builds("tp: {}\npp: {}\ndp: 1\n".format, words, numbers).map(lambda text: text.encode()),
        st.builds("plans: {}\n".format, words).map(lambda text: text.encode()),
    ),
    command=st.sampled_from(["simulate", "compare", "export"]),
)
def test_any_plan_file_ends_in_a_known_way(content: bytes, command: str, tmp_path: Path) -> None:
    path = tmp_path / "plans.yaml"
    path.write_bytes(content)
    arguments = {
        "simulate": ["simulate", *FAST, "--plan", str(path)],
        "compare": ["compare", str(path)],
        "export": ["export", str(path), "--to", "megatron"],
    }
    checked(arguments[command])
