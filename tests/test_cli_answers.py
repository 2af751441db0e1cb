"""What the commands say where the question is awkward: contradictions, misfits, odd files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.compare import compare
from parallelsim.plan import Plan
from parallelsim.plan_batch import PlanBatch
from parallelsim.simulate import simulate

LLAMA = ("-m", "llama3-70b")


def run(*args: str, columns: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, list(args))


def error_of(result: Result) -> str:
    assert isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.stderr.splitlines() if line.startswith("parallelsim: error: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def plans_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the search that ``planned`` shows."""
    return tmp_path_factory.mktemp("answers") / "plans.yaml"


@pytest.fixture(scope="module", autouse=True)
def planned(plans_file: Path) -> str:
    result = run("plan", *LLAMA, "-n", "256", "--output", str(plans_file))
    assert result.exit_code == 0
    return result.stdout


EVEN_OR_COUNTED = "tp=8,cp=1,layout=even|embedding|loss|embedding-loss|first-last"
"""Layers cut anywhere fit where these layouts do not."""


@pytest.mark.parametrize(
    "arguments",
    [
        (*LLAMA, "-n", "24", "--fix", "tp=8,pp=3,dp=1", "-b", "5", "--memory-limit", "0.3"),
        (*LLAMA, "-n", "24", "--fix", "pp=3", "--memory-limit", "0.2"),
        ("-m", "llama3.1-405b", "-n", "92160", "-c", "gb200-nvl72", "--limit", EVEN_OR_COUNTED),
    ],
)
def test_the_rescue_search_never_replaces_the_answer(arguments: tuple[str, ...]) -> None:
    started = time.perf_counter()
    result = run("plan", *arguments)
    assert result.exit_code == 3
    assert "no feasible plan" in error_of(result)
    assert time.perf_counter() - started < 30


def test_what_the_rescue_has_no_time_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallelsim.cli_misfit.RESCUE_S", 0.0)
    result = run("plan", *LLAMA, "-n", "8")
    assert result.exit_code == 3
    assert "not tried, to answer in seconds: more GPUs; 16-bit gradients" in result.stderr


def test_a_rescue_without_help_lists_what_was_tried() -> None:
    result = run("plan", *LLAMA, "-n", "8", "-c", "rtx-4090")
    assert result.exit_code == 3
    assert "no single change helps; tried: more GPUs; 16-bit gradients" in result.stderr
    assert "the optimizer on the host" not in result.stderr  # of which nothing is known


def test_a_framework_that_cannot_run_the_model_names_those_that_can() -> None:
    result = run("plan", "--model", "t5-11b", "--gpus", "16", "--framework", "megatron-deepspeed")
    assert "megatron-deepspeed does not run cross-attention" in error_of(result)
    assert "--framework megatron-core or megatron-lm-2021" in error_of(result)


@pytest.mark.parametrize(
    ("fixed", "guilty", "why"),
    [
        ("pp=1,vpp=4", "pp=1, vpp=4 leave no candidate", "vpp=4 needs pipeline stages"),
        ("pp=1,schedule=1f1b", "pp=1, schedule=1f1b leave", "does not go with pp=1"),
        ("tp=8,recompute=full:1000", ": recompute=full:1000 leaves", "more than a virtual stage"),
    ],
)
def test_contradicting_fixed_values_are_named(fixed: str, guilty: str, why: str) -> None:
    result = run("plan", *LLAMA, "-n", "64", "--fix", fixed)
    assert result.exit_code == 3
    assert guilty in error_of(result)
    assert why in error_of(result)


def test_fit_reports_the_sizes_tried_and_the_missing_network() -> None:
    result = run("fit", *LLAMA, "-c", "l40s")
    assert result.exit_code == 3
    assert "tried 1, 8 GPUs" in result.stderr
    assert "nearest miss, 8 GPUs" in result.stderr
    assert "--nic-gbit-per-s" in result.stderr
    assert "no single change helps; tried: " in result.stderr


def test_fit_has_a_header_and_explains_with_the_next_smaller_size() -> None:
    result = run("fit", "-m", "llama3-8b", "-c", "rtx-4090")
    assert result.stdout.startswith("llama3-8b, 8.03 B parameters, megatron-core")
    assert "With 4 GPUs the nearest plan" in result.stdout
    assert "batch 512 x 8192" in result.stdout
    assert "tried: 16-bit gradients" in result.stdout.replace("\n", " ")
    assert "batch of 512 sequences" in result.stderr
    assert "1 GPUs" not in run("fit", "-m", "gpt2-xl").output


def test_simulate_takes_what_plan_would_search_and_says_so() -> None:
    result = run("simulate", "-m", "llama3-8b", "-n", "8", "--tp", "2", "--dp", "4")
    assert "memory: fits" in result.stdout
    assert "sequence_parallel on, zero 1, overlap_grad_reduce on" in result.stderr
    stated = ("--no-sequence-parallel", "--zero", "0", "--no-overlap-grad-reduce")
    result = run("simulate", "-m", "llama3-8b", "-n", "8", "--tp", "2", *stated, "--json")
    data = json.loads(result.stdout)
    assert data["assumed"] == {"cross_entropy_fusion": True}
    assert data["reasons"] == []


def test_compare_flags_plans_that_cannot_run(plans_file: Path, tmp_path: Path) -> None:
    text = plans_file.read_text()
    broken = tmp_path / "broken.yaml"
    dp = next(line.strip() for line in text.splitlines() if line.strip().startswith("dp:"))
    tp = next(line.strip() for line in text.splitlines() if line.strip().startswith("tp:"))
    twice = f"dp: {2 * int(dp.split()[1])}"
    for old, change, words in (
        (dp, twice, "512 GPUs, the cluster has 256"),
        (tp, "tp: 3", "tp=3"),
    ):
        broken.write_text(text.replace(old, change, 1))
        result = run("compare", str(broken))
        assert result.exit_code == 0
        assert "plan 1 cannot run: " in result.stdout
        assert words in result.stdout.replace("\n", " ")
        verdict = next(line for line in result.stdout.splitlines() if line.startswith("verdict"))
        assert verdict.split() == ["verdict", "cannot", "run", "fits"]
        assert "faster" not in result.stdout
        assert json.loads(run("compare", str(broken), "--json").stdout)["plans"][0]["cannot_run"]


def test_compare_wraps_plans_into_blocks_instead_of_dropping_them(plans_file: Path) -> None:
    text = run("compare", str(plans_file), "--top", "4", columns=50).stdout
    headers = [line for line in text.splitlines() if line.startswith(" ") and "plan " in line]
    assert [word for line in headers for word in line.split() if word.isdigit()][:4] == [*"1234"]
    assert len(headers) > 1


def test_steps_within_a_thousandth_are_called_as_fast() -> None:
    inputs = (load_model("gpt2-xl"), load_cluster("hgx-h100", 8), load_framework("megatron-core"))
    plan = Plan(dp=8, global_batch_size=4096)
    other, slower = replace(plan, overlap_grad_reduce=True), replace(plan, dp=4, tp=2)
    found = compare(simulate(*inputs, PlanBatch.from_plans([plan, other, slower])))
    assert found.step_time_s[0] != found.step_time_s[1]
    assert "is as fast as (within 0.1 %) plan 2" in found.why[0]
    assert "as fast as" not in found.why[1]


def test_each_row_deals_the_work_otherwise_and_all_variants_are_reachable(planned: str) -> None:
    text = planned.replace("\n", " ")
    assert "the fastest variant of its degrees, micro-batch and sharding" in text
    shared = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch_size", "zero", "dp_replicate")
    num_ways = []
    for options in ((), ("--all-variants",)):
        document = json.loads(run("plan", *LLAMA, "-n", "256", "--json", *options).stdout)
        plans = [row["plan"] for row in document["plans"]]
        num_ways.append(len({tuple(plan[name] for name in shared) for plan in plans}))
        assert len(plans) == 10
        assert document["all_variants"] == bool(options)
    assert num_ways[0] == 10 > num_ways[1]


def test_a_narrow_table_names_the_columns_left_out() -> None:
    text = run("plan", "-m", "gpt2-xl", "-n", "8", columns=40).stdout.replace("\n", " ")
    assert "left out for width: VP, SP, Z" in text
    assert "TP CP PP DP MB" in text  # what tells plans apart stays


def test_tight_plans_are_called_what_they_are(planned: str) -> None:
    text = planned.replace("\n", " ")
    assert "they may run out of memory. P(fits) says how likely each is to fit" in text


def test_plans_that_surely_fit_are_not_called_tight() -> None:
    small = ("simulate", "-m", "gpt2-xl", "-n", "8", "--dp", "8", "-b", "8")
    assert "memory: fits, above the memory limit" in run(*small, "--memory-limit", "0.01").stdout
    assert "memory: fits, P(fits)" in run(*small).stdout


def test_the_export_is_proposed_only_where_the_framework_is_launched_so() -> None:
    small = ("plan", "-m", "gpt2-xl", "-n", "8")
    assert "--to megatron" in run(*small).stderr
    result = run(*small, "-f", "torchtitan")
    assert result.exit_code == 0, result.stderr
    assert "--to megatron" not in result.stderr


def test_where_plan_1_cannot_be_exported_one_that_can_is_named(tmp_path: Path) -> None:
    plans = tmp_path / "plans.yaml"
    deepspeed = ("plan", "-m", "llama3-8b", "-n", "64", "-f", "deepspeed")
    assert run(*deepspeed, "-o", str(plans)).exit_code == 0
    refused = error_of(run("export", str(plans), "--to", "deepspeed"))
    assert "it has no sequence_parallel" in refused
    assert refused == error_of(run(*deepspeed, "--export", "deepspeed"))
    rank = refused.partition("--rank ")[2].partition(" --to deepspeed")[0]
    written = run("export", str(plans), "--rank", rank, "--to", "deepspeed").stdout
    assert json.loads(written)["train_batch_size"] == 512


def test_a_closed_pipe_does_not_lose_the_files(tmp_path: Path) -> None:
    plans, script = tmp_path / "plans.yaml", tmp_path / "run.sh"
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "parallelsim", "plan", *LLAMA, "-n", "64", "-o", str(plans)]
    os.close(reader)
    process = subprocess.Popen(
        [*command, "--export", f"megatron:{script}"],
        text=True,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    errors = process.communicate(timeout=60)[1]
    assert "Traceback" not in errors
    assert "plans:" in plans.read_text()
    assert "torchrun" in script.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize("words", ["models", "plan -m gpt2-xl -n 8"])
def test_a_closed_stdout_ends_quietly(words: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m parallelsim {words} >&-"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_modules_load_is_one_line() -> None:
    code = (
        "import sys\n"
        "from parallelsim.__main__ import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'parallelsim.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 130
    assert done.stderr == "parallelsim: error: interrupted\n"


def test_an_unknown_accelerator_in_a_cluster_file_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    text = (
        "name: mine\nsource: own\naccelerator: h100\ngpus_per_node: 8\ntiers:\n"
        "- {name: nvlink, size: 8, link_gb_per_s: 400, latency_us: 1, efficiency: 0.8}\n"
    )
    path.write_text(text)
    message = error_of(run("plan", "-m", "gpt2-xl", "-n", "8", "-c", str(path)))
    assert "accelerator: unknown accelerator 'h100': did you mean h100-80gb-sxm" in message
    assert "parallelsim accelerators" not in message
    path.write_text(text.replace("400", "1.0e-300"))
    message = error_of(run("plan", "-m", "gpt2-xl", "-n", "8", "-c", str(path)))
    assert "tiers[0].link_gb_per_s" in message
    path.write_text(text.replace("size: 8", "size: .nan"))
    message = error_of(run("plan", "-m", "gpt2-xl", "-n", "8", "-c", str(path)))
    assert "tiers[0].size" in message


def test_a_misspelt_key_gets_the_missing_one_as_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nsource: own\naccelerator: h100-80gb-sxm\ngpus_per_nod: 8\ntiers:\n"
        "- {name: nvlink, size: 8, link_gb_per_s: 400, latency_us: 1, efficiency: 0.8}\n"
    )
    message = error_of(run("clusters", str(path)))
    assert "gpus_per_nod: unknown key, did you mean gpus_per_node?" in message


def test_a_bad_size_in_a_plan_file_names_its_key(plans_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(plans_file.read_text().replace("num_gpus: 256", "num_gpus: 13"))
    for command in (("compare", str(path)), ("simulate", "--plan", str(path))):
        assert "num_gpus: hgx-h100 has 8 GPUs a node" in error_of(run(*command))


def test_one_file_for_two_outputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    result = run(
        "plan", "-m", "gpt2-xl", "-n", "8", "-o", str(path), "--export", f"megatron:{path}"
    )
    assert result.exit_code == 2
    assert "same file" in error_of(result)
    assert not path.exists()
    assert "file name" in error_of(run("plan", "-m", "gpt2-xl", "-n", "8", "-o", ""))


def test_a_rate_next_to_nothing_is_refused() -> None:
    result = run("plan", "-m", "gpt2-xl", "-n", "8", "--nic-gbit-per-s", "1e-300")
    assert result.exit_code == 2
    assert "from 0.001" in error_of(result)


def test_a_default_batch_beyond_the_bound_is_capped_with_a_line() -> None:
    result = run("simulate", "-m", "llama3-8b", "-n", "8", "-s", "1")
    assert result.exit_code == 0
    assert "batch of 1048576 sequences, the most there may be" in result.stderr


def test_a_hugging_face_model_says_what_is_not_stated(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = run("models", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "default_global_batch_tokens: not stated" in result.stdout
    assert "seq_length: not stated" in result.stdout


def test_clusters_say_whether_their_gpu_is_measured() -> None:
    lines = {line.split()[0]: line for line in run("clusters").stdout.splitlines() if line}
    assert lines["cluster"].endswith("measured")
    assert lines["hgx-h100"].endswith(" yes")
    assert lines["rtx-4090"].endswith("family's values")
