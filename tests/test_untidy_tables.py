"""Tables as people keep them: words for no, typing errors, huge cells, outputs over inputs."""

from __future__ import annotations

import csv
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_measurements import ROW, case, reason, write_table

from parallelsim.catalog import accelerator_names, load_accelerator
from parallelsim.cli import main
from parallelsim.measured_text import stated_grad_dtype, stated_switches
from parallelsim.measurements import SANE, Facts, read_tables
from parallelsim.report.accuracy import document
from parallelsim.validation import validate

HEADER = [*ROW, "moe_top_k", "mtp_layers", "sliding_window"]
GPUS = (
    *("a100-40gb-sxm", "a100-80gb-sxm", "a100-80gb-pcie", "a800-80gb-sxm", "h100-80gb-sxm"),
    *("h100-96gb-hbm2e-500w", "h800-80gb-sxm", "h200-141gb-sxm", "h200-141gb-nvl"),
    *("b200-180gb-sxm", "b300-288gb-sxm", "gb200-186gb", "gb300-288gb", "v100-16gb-sxm2"),
    *("v100-32gb-sxm3", "l40s-48gb", "mi300x-192gb", "mi325x-256gb", "mi350x-288gb"),
    "mi355x-288gb",
)
"""Accelerators of published measurements."""


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def one_line(result: Result) -> str:
    """The message of a command that refused."""
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


# Outputs


@pytest.mark.parametrize("option", ["--rows", "--plot"])
def test_the_table_is_never_an_output(tmp_path: Path, option: str) -> None:
    table = write_table(tmp_path / "t.html", {})
    before = table.read_bytes()
    (tmp_path / "link.html").symlink_to(table)
    for name in ("t.html", "link.html"):
        line = one_line(invoke("validate", table, option, tmp_path / name, "--force"))
        assert "is an input of this command" in line
    assert table.read_bytes() == before


def test_rows_and_plot_are_two_files(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "t.csv", {}), tmp_path / "out.html"
    result = invoke("validate", table, "--rows", out, "--plot", out)
    assert result.exit_code == 2
    assert "the same file" in result.output


def test_calibrate_never_replaces_what_it_reads(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {})
    base = tmp_path / "base.yaml"
    assert invoke("calibrate", table, "-c", "hgx-h100", "-o", base).exit_code == 0
    for cluster, output in (("hgx-h100", table), (str(base), base)):
        before = output.read_bytes()
        line = one_line(invoke("calibrate", table, "-c", cluster, "-o", output, "--force"))
        assert "is an input" in line
        assert output.read_bytes() == before


def test_plan_export_and_timeline_never_replace_what_they_read(tmp_path: Path) -> None:
    table, cluster = write_table(tmp_path / "t.csv", {}), tmp_path / "mine.yaml"
    assert invoke("calibrate", table, "-c", "hgx-h100", "-o", cluster).exit_code == 0
    plans = tmp_path / "plans.yaml"
    task = ("plan", "-m", "llama3-8b", "-n", "8", "-c", cluster, "--fix", "tp=8", "-o")
    assert invoke(*task, plans).exit_code == 0
    picture = tmp_path / "plans.svg"
    picture.write_bytes(plans.read_bytes())
    for command in (
        (*task, cluster, "--force"),
        ("export", plans, "--to", "megatron", "-o", plans, "--force"),
        ("export", plans, "--to", "megatron", "-o", cluster, "--force"),
        ("timeline", picture, "-o", picture, "--force"),
    ):
        files = {path: path.read_bytes() for path in (cluster, plans, picture)}
        assert "is an input of this command" in one_line(invoke(*command))
        assert files == {path: path.read_bytes() for path in files}


def test_a_read_only_file_stays_even_for_a_superuser(tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "t.csv", {}), tmp_path / "out.csv"
    out.write_text("kept")
    out.chmod(stat.S_IRUSR)
    assert "read-only" in one_line(invoke("validate", table, "--rows", out, "--force"))
    assert out.read_text() == "kept"


# Cells


@pytest.mark.parametrize("no", ["False", "0", "0.0", "none", "No"])
@pytest.mark.parametrize(
    "column",
    ["mla", "num_experts", "moe_top_k", "fsdp", "mtp_layers", "sliding_window", "recompute"],
)
def test_no_is_no(tmp_path: Path, column: str, no: str) -> None:
    table = write_table(tmp_path / "t.csv", {"id": "no", column: no}, {"id": "a"}, header=HEADER)
    one, other = validate([table]).rows
    assert one.is_scored, one.reason
    assert one.step_time_s == other.step_time_s


@pytest.mark.parametrize("column", ["precision", "gpu", "framework", "schedule", "task"])
def test_letters_may_be_capital(tmp_path: Path, column: str) -> None:
    assert case(tmp_path, **{column: ROW[column].upper()}).plan == case(tmp_path).plan


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"grad_dtype": "int7"}, "grad_dtype='int7'"),
        ({"flash_attention": "sometimes"}, "flash_attention='sometimes'"),
        ({"layer_split": "zigzag"}, "layer_split='zigzag'"),
        ({"pp": "1", "dp": "16", "vpp": "1000", "schedule": "none"}, "vpp=1000 needs pipeline"),
        ({"vpp": "1000"}, "pp=4 x vpp=1000 are more stages than 80 layers"),
        ({"inter_node_gb_per_s_per_gpu": "1e-30"}, "inter_node_gb_per_s_per_gpu=1e-30"),
        ({"zero_stage": "0.5"}, "zero_stage=0.5: expected 0, 1, 2 or 3"),
        ({"zero_stage": "7"}, "zero_stage=7"),
        ({"recompute": "True"}, "expected none, selective, full"),
        ({"gpus_per_node": "1000000007"}, "gpus_per_node=1000000007"),
        ({"global_batch_size": "1e9"}, "global_batch_size=1000000000 is above 1048576"),
        ({"gpu": "h100-80bg-sxm"}, "is 'h100-80gb-sxm' meant?"),
        ({"step_time_s": "1e-320"}, "step_time_s=1e-320 is not within"),
        ({"step_time_s": "1e300"}, "step_time_s=1e300 is not within"),
        ({"peak_memory_gb": "6e10"}, "peak_memory_gb=6e10 is not within"),
        ({"tokens_per_s_per_gpu": "1e-30"}, "tokens_per_s_per_gpu=1e-30 is not within"),
        ({"step_time_s": "", "tokens_per_s_per_gpu": "0.001"}, "gives a step of"),
    ],
)
def test_what_no_run_can_have_is_named(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    assert why in reason(tmp_path, **changes)


def test_a_plot_survives_the_ends_of_what_is_sane(tmp_path: Path) -> None:
    ends = [*SANE["step_time_s"], 1e-320, 1e300]
    rows = [{"id": f"{i}", "step_time_s": repr(seconds)} for i, seconds in enumerate(ends)]
    table = write_table(tmp_path / "t.csv", *rows, {"id": "a"}, {"id": "b"}, {"id": "c"})
    result = invoke("validate", table, "--plot", tmp_path / "odd.html")
    assert result.exit_code == 0, result.output
    assert "5 scored" in result.output
    assert "2 skipped" in result.output


def test_a_cell_of_any_length_does_not_cost_the_table(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    table = write_table(tmp_path / "t.csv", {"id": "a", "notes": "x" * 200_000}, {"id": "b"})
    assert [row.id for row in validate([table]).scored] == ["a", "b"]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(("delimiter", "shown"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_delimiter_is_named(tmp_path: Path, delimiter: str, shown: str) -> None:
    table = write_table(tmp_path / "t.csv", {})
    table.write_text(table.read_text().replace(",", delimiter))
    line = one_line(invoke("validate", table))
    assert f"separated by {shown}" in line
    assert "missing" not in line


# Flags


def test_flags_in_any_case_and_unknown_ones(tmp_path: Path) -> None:
    flags = ("", "Drop: x", "DROP", "Apart: y", "ignore", "no")
    rows = [{"id": str(i), "flag": flag} for i, flag in enumerate(flags)]
    table = write_table(tmp_path / "t.csv", *rows)
    validation = validate([table])
    assert [row.id for row in validation.scored] == ["0", "5"]
    assert [row.id for row in validation.apart] == ["3", "4"]
    assert "unknown flag 'ignore'" in validation.rows[4].reason
    assert "unknown flag ('ignore')" in invoke("validate", table).output


# Free text


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("fused cross-entropy", True),
        ("no overlap of TP, PP; fused cross-entropy; x", True),
        ("no overlap but fused cross-entropy", True),
        ("no fused cross-entropy", False),
        ("ran without the fused cross-entropy", False),
        ("un-fused cross-entropy", False),
        ("fused cross-entropy is off", False),
        ("fused cross-entropy: no", False),
        ("didn't use fused cross-entropy", False),
        ("nothing of it", None),
    ],
)
def test_a_denied_kernel_is_off(notes: str, expected: bool | None) -> None:
    assert stated_switches(Facts({"notes": notes})).get("cross_entropy_fusion") is expected


def test_denied_gradients_are_not_stated() -> None:
    assert stated_grad_dtype(Facts({"notes": "fp32 gradients"})) == "fp32"
    assert stated_grad_dtype(Facts({"notes": "bf16 instead of fp32 gradients"})) == ""


@pytest.mark.parametrize("overlap", ["none", "False", "no", "off"])
def test_no_overlap_in_any_word(tmp_path: Path, overlap: str) -> None:
    assert not case(tmp_path, overlap=overlap).plan.overlap_grad_reduce


# Accelerators


@pytest.mark.parametrize("name", GPUS)
def test_every_measured_accelerator_has_a_file_that_says_if_it_was_measured(
    tmp_path: Path, name: str
) -> None:
    assert name in accelerator_names()
    changes = {"gpu": name, "framework": "megatron-lm-2022", "vpp": "1", "schedule": "1f1b"}
    fp16 = {"precision": "fp16", "flash_attention": "False"}
    (row,) = validate([write_table(tmp_path / "t.csv", changes | fp16)]).rows
    assert row.is_scored, row.reason
    assert ("was not measured" in row.reason) == (not load_accelerator(name).measured)


def test_four_bridged_cards_are_one_domain(tmp_path: Path) -> None:
    cluster = case(tmp_path, gpu="h200-141gb-nvl", inter_node_gb_per_s_per_gpu="12.5").cluster
    assert [tier.size for tier in cluster.tiers] == [4, 8, None]
    assert cluster.tiers[1].bandwidth_bytes_per_s == 64e9
    assert cluster.tiers[2].bandwidth_bytes_per_s == 12.5e9


def test_a_gpu_that_the_software_does_not_run_is_explained(tmp_path: Path) -> None:
    (why,) = validate([write_table(tmp_path / "t.csv", {"gpu": "v100-32gb-sxm3"})]).skipped
    assert "does not run bf16; it has fp32, fp16" in why
    assert "megatron-core needs compute capability 8" in why
    assert "on this GPU run" in why
    assert "megatron-lm-2021" in why


# What was measured decides nothing

FREE: Mapping[str, str] = {
    "framework": "megatron-lm-2022",
    "gpu": "a100-80gb-sxm",
    "recompute": "",
    "flash_attention": "",
    "step_time_s": "",
}


def test_a_prediction_does_not_read_the_outcome(tmp_path: Path) -> None:
    rows = [{**FREE, "id": f"oom={oom}", "oom": oom, "step_time_s": "10"} for oom in ("True", "")]
    failed, unknown = validate([write_table(tmp_path / "t.csv", *rows)]).rows
    assert failed.reason == unknown.reason
    assert failed.memory_use_frac == unknown.memory_use_frac
    assert failed.step_time_s == unknown.step_time_s


def test_no_verdict_where_the_recompute_was_chosen_to_fit(tmp_path: Path) -> None:
    failed = {**FREE, "oom": "True"}
    table = write_table(tmp_path / "t.csv", failed, {**failed, "id": "b", "recompute": "none"})
    verdicts = document(validate([table]))["overall"]["oom_verdicts"]
    assert verdicts["n"] == 1
    assert verdicts["refused_and_failed"] == 1


def test_one_source_has_no_mean_over_sources(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {})
    assert "Mean over" not in invoke("validate", table).output
    two = write_table(tmp_path / "u.csv", {}, {"id": "b", "group": "other"})
    assert "Mean over 2 groups" in invoke("validate", two).output


def test_a_source_stays_on_one_line(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", {"group": "a\nb"})
    (run,) = read_tables([table])
    assert run.group == "a b"


def test_reasons_are_counted_by_what_they_say(tmp_path: Path) -> None:
    rows = [{"id": f"v{i}", "gpu": "v100-32gb-sxm3"} for i in range(2)]
    rows += [{"id": f"d{dp}", "dp": str(dp)} for dp in (3, 5)]
    shown = invoke("validate", write_table(tmp_path / "t.csv", *rows)).output
    assert "     2  cannot run: v100-32gb-sxm3 does not run bf16" in shown
    assert "     2  tp=# x cp=# x pp=# x dp=# is not num_gpus=#" in shown


def test_control_characters_never_reach_the_terminal(tmp_path: Path) -> None:
    escape = "\x1b[31m"
    rows = [{"id": column, column: escape} for column in ("recompute", "schedule", "group", "flag")]
    result = invoke("validate", write_table(tmp_path / "t.csv", *rows))
    assert result.exit_code == 0
    assert "\x1b" not in result.output


def test_a_plot_survives_the_names_of_sources(tmp_path: Path) -> None:
    names = ["x" * 5000, "$x^{", "_hidden", *(f"source {i}" for i in range(80))]
    rows = [{"id": str(i), "group": name} for i, name in enumerate(names)]
    table = write_table(tmp_path / "t.csv", *rows)
    for kind in ("html", "png"):
        result = invoke("validate", table, "--plot", tmp_path / f"out.{kind}")
        assert result.exit_code == 0, result.output
