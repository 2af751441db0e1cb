"""Calibration against synthetic realities: the simulator itself with scaled efficiencies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from test_measurements import write_table

from parallelsim.calibration import Calibration, calibrate
from parallelsim.calibration_overlay import Factors, apply_factors, overlay_document
from parallelsim.calibration_predictor import MeasuredRun, Predictor
from parallelsim.catalog import load_cluster, load_framework, load_model
from parallelsim.cli import main
from parallelsim.errors import SpecError
from parallelsim.plan import Plan
from parallelsim.simulate import simulate
from parallelsim.yaml_io import dump_yaml

MODEL = load_model("llama3-8b").with_seq_length(8192)
CLUSTER = load_cluster("hgx-h100", num_gpus=64)
FRAMEWORK = load_framework("megatron-core")
DEGREES = ((1, 1, 1), (2, 1, 1), (4, 1, 2), (8, 1, 1), (2, 2, 1), (1, 4, 2), (2, 4, 1), (4, 2, 1))
"""(tp, pp, micro-batch) of the plans."""
DEFAULT = Factors()


def plan(tp: int, pp: int, micro: int, batch: int = 128) -> Plan:
    return Plan(
        tp=tp,
        pp=pp,
        dp=64 // (tp * pp),
        micro_batch_size=micro,
        global_batch_size=batch,
        schedule="1f1b" if pp > 1 else "none",
        sequence_parallel=tp > 1,
        zero=1,
        recompute="full",
    )


def runs_in(
    reality: Factors, degrees: Sequence[tuple[int, int, int]] = DEGREES, noise: float = 0.0
) -> list[MeasuredRun]:
    """What would be measured if the factors were true."""
    cluster, framework = apply_factors(CLUSTER, FRAMEWORK, reality)
    plans = [plan(*one) for one in degrees]
    truth = simulate(MODEL, cluster, framework, plans)
    wobble = np.exp(noise * np.random.default_rng(0).standard_normal(len(plans)))
    return [
        MeasuredRun(
            f"run {i}",
            MODEL,
            CLUSTER,
            FRAMEWORK,
            one,
            float(truth.step_time_s[i] * wobble[i]),
            float(truth.peak_memory_bytes[i]),
        )
        for i, one in enumerate(plans)
    ]


def time_error(factors: Factors, runs: Sequence[MeasuredRun]) -> float:
    measured = np.array([run.step_time_s for run in runs], np.float64)
    return float(np.abs(Predictor(runs)(factors)[0] / measured - 1).mean())


def test_default_factors_change_nothing() -> None:
    assert apply_factors(CLUSTER, FRAMEWORK, DEFAULT) == (CLUSTER, FRAMEWORK)


@pytest.mark.parametrize("name", ["compute", "memory_bound", "intra_node", "inter_node"])
def test_a_faster_part_never_makes_a_step_slower(name: str) -> None:
    runs = runs_in(DEFAULT)
    slower, faster = (Predictor(runs)(replace(DEFAULT, **{name: x}))[0] for x in (0.8, 1.25))
    assert (faster <= slower).all()
    assert (faster < slower).any()


def test_host_factor_scales_cpu_seconds_and_leaves_memory() -> None:
    runs = runs_in(DEFAULT)
    seconds, peak = Predictor(runs)(replace(DEFAULT, host=2.0))
    assert (seconds > Predictor(runs)(DEFAULT)[0]).all()
    assert (peak == Predictor(runs)(DEFAULT)[1]).all()


def test_memory_factors_scale_activations_and_add_a_constant() -> None:
    runs = runs_in(DEFAULT)
    before = simulate(MODEL, CLUSTER, FRAMEWORK, [run.plan for run in runs])
    memory = before.memory
    dynamic = memory.activations_bytes + memory.loss_bytes + memory.working_bytes
    dynamic = dynamic + memory.fragmentation_bytes
    _, peak = Predictor(runs)(replace(DEFAULT, memory_scale=1.1, memory_constant_bytes=1e9))
    expected = before.peak_memory_bytes + 0.1 * dynamic + 1e9
    np.testing.assert_allclose(peak, expected, rtol=0.01)


def test_runs_that_agree_with_the_default_leave_it_alone() -> None:
    result = calibrate(runs_in(DEFAULT, noise=0.01))
    for name in ("compute", "memory_bound", "intra_node", "inter_node", "host"):
        assert getattr(result.factors, name) == pytest.approx(1, abs=0.03), name


@pytest.mark.parametrize(
    "reality",
    [
        Factors(compute=0.85),
        Factors(compute=1.1, inter_node=0.7),
        Factors(compute=0.9, memory_bound=0.9, host=1.3),
    ],
)
def test_a_scaled_reality_is_predicted_better_on_runs_that_were_not_fitted(
    reality: Factors,
) -> None:
    runs = runs_in(reality, noise=0.02)
    fitted, others = runs[:5], runs[5:]
    result = calibrate(fitted)
    assert time_error(result.factors, others) < 0.6 * time_error(DEFAULT, others)
    assert result.time.mape_left_out < result.time.mape_before


def test_the_factor_that_is_off_moves_towards_the_truth() -> None:
    factors = calibrate(runs_in(Factors(compute=0.85))).factors
    assert 0.83 < factors.speed * factors.compute < 0.95


def test_one_run_helps() -> None:
    runs = runs_in(Factors(compute=0.85))
    result = calibrate(runs[:1])
    assert time_error(result.factors, runs[1:]) < time_error(DEFAULT, runs[1:])
    assert np.isnan(result.time.mape_left_out)


@pytest.mark.parametrize("slower", [0.7, 1.1, 1.3, 1.6, 2.5])
def test_runs_that_agree_are_believed_however_slow_all_are(slower: float) -> None:
    runs = runs_in(Factors(speed=1 / slower), noise=0.02)
    result = calibrate(runs[:4])
    bias = np.array([np.log(Predictor([r])(result.factors)[0] / r.step_time_s) for r in runs[4:]])
    assert abs(bias.mean()) < abs(np.log(slower)) / 3
    assert result.time.mape_left_out < result.time.mape_before / 2


@pytest.mark.parametrize("slower", [0.7, 1.1, 1.3, 1.6])
@pytest.mark.parametrize("number", [3, 5])
def test_three_runs_are_enough_to_believe(slower: float, number: int) -> None:
    runs = [
        replace(run, step_time_s=float(slower * wobble * (run.step_time_s or 0)))
        for run, wobble in zip(runs_in(DEFAULT), (1, 1.01, 0.99, 1.005, 0.995), strict=False)
    ][:number]
    result = calibrate(runs)
    left = np.array([np.log(Predictor([r])(result.factors)[0] / r.step_time_s) for r in runs])
    assert abs(left.mean()) < abs(np.log(slower)) / 4
    assert "step time" not in result.kept


@pytest.mark.parametrize("slower", [0.7, 1.3, 1.6])
def test_one_slow_run_is_believed_in_part_and_never_beyond(slower: float) -> None:
    runs = runs_in(Factors(speed=1 / slower))
    result = calibrate(runs[:1])
    moved = np.log(Predictor(runs[:1])(result.factors)[0] / Predictor(runs[:1])(DEFAULT)[0])
    share = float(moved[0] / np.log(slower))
    assert 0.15 < share < 1
    assert result.fits[0].name == "speed"
    assert result.fits[0].is_identified


def test_speed_divides_a_step_that_waits_for_no_latency() -> None:
    runs = runs_in(DEFAULT)
    usual, fast = (Predictor(runs)(replace(DEFAULT, speed=x))[0] for x in (1.0, 1.25))
    assert (fast < usual).all()
    assert (fast >= usual / 1.25 * (1 - 1e-9)).all()
    np.testing.assert_allclose(fast, usual / 1.25, rtol=0.02)


@pytest.mark.parametrize("ratio", [0.4, 2.5])
def test_one_wild_run_never_explodes(ratio: float) -> None:
    (run,) = runs_in(DEFAULT)[:1]
    assert run.step_time_s is not None
    result = calibrate([replace(run, step_time_s=ratio * run.step_time_s)])
    for name in ("compute", "memory_bound", "intra_node", "inter_node", "host"):
        assert 0.55 < getattr(result.factors, name) < 1.8, name
    assert min(1, 1 / ratio) < result.factors.speed < max(1, 1 / ratio)


def test_an_outlier_among_good_runs_does_little() -> None:
    runs = runs_in(DEFAULT)
    assert runs[0].step_time_s is not None
    runs[0] = replace(runs[0], step_time_s=2 * runs[0].step_time_s)
    assert time_error(calibrate(runs).factors, runs[1:]) < 0.06


def test_what_the_runs_cannot_show_is_left_alone() -> None:
    """A run inside one node says nothing about the network between nodes."""
    cluster = load_cluster("hgx-h100", num_gpus=8)
    one = replace(plan(2, 1, 2), dp=4, global_batch_size=64)
    seconds = float(simulate(MODEL, cluster, FRAMEWORK, one).step_time_s[0])
    result = calibrate([MeasuredRun("a", MODEL, cluster, FRAMEWORK, one, 1.1 * seconds, None)])
    fits = {fit.name: fit for fit in result.fits}
    assert not fits["inter_node"].is_identified
    assert not fits["memory_scale"].is_identified
    assert result.factors.inter_node == 1
    assert fits["compute"].is_identified
    assert fits["compute"].posterior_sd < fits["compute"].prior_sd


def test_memory_is_fitted_from_peaks_alone() -> None:
    runs = [replace(r, step_time_s=None) for r in runs_in(Factors(memory_constant_bytes=1e9))]
    result = calibrate(runs)
    assert result.factors.memory_constant_bytes > 2e8
    assert result.memory.mape_after < result.memory.mape_before
    assert result.factors.compute == 1
    assert result.time.n == 0


def test_nothing_measured_is_an_error() -> None:
    run = replace(runs_in(DEFAULT)[0], step_time_s=None, peak_memory_bytes=None)
    with pytest.raises(SpecError, match="nothing to fit"):
        calibrate([run])


def test_runs_of_another_plan_are_refused() -> None:
    run = runs_in(DEFAULT)[0]
    with pytest.raises(SpecError, match="check the plan"):
        calibrate([replace(run, step_time_s=100 * (run.step_time_s or 0))])


def test_many_runs_are_fitted_quickly_and_reproducibly() -> None:
    runs = runs_in(Factors(compute=0.9), DEGREES * 4, noise=0.02)
    first: Calibration = calibrate(runs)
    assert first.factors == calibrate(runs).factors
    assert first.factors.speed * first.factors.compute == pytest.approx(0.9, abs=0.04)


# The overlay file


def write_overlay(path: Path, **changes: object) -> Path:
    data = overlay_document(
        "mine", "hgx-h100", "megatron-core", Factors(compute=0.9, host=1.5), "own", str(path)
    )
    path.write_text(dump_yaml({**data, **changes}))
    return path


def test_cluster_and_framework_read_the_same_overlay(tmp_path: Path) -> None:
    path = write_overlay(tmp_path / "mine.yaml")
    cluster = load_cluster(path, num_gpus=64)
    factors = Factors(compute=0.9, host=1.5)
    expected = apply_factors(CLUSTER, FRAMEWORK, factors)
    assert (replace(cluster, name=CLUSTER.name), load_framework(path)) == expected
    assert cluster.name == "mine"


def test_a_base_file_is_found_from_the_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    source = Path(__file__).parent.parent / "clusters" / "hgx-h100.yaml"
    (tmp_path / "base.yaml").write_text(source.read_text())
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sub" / "mine.yaml"
    data = overlay_document("m", "./base.yaml", "megatron-core", Factors(), "own", "sub/mine.yaml")
    path.write_text(dump_yaml({**data, "factors": {"compute": 0.9}}))
    base = load_cluster("hgx-h100").accelerator.sustained_efficiency
    found = load_cluster("sub/mine.yaml").accelerator.sustained_efficiency
    assert found == pytest.approx(0.9 * base)
    monkeypatch.chdir(tmp_path / "sub")
    assert load_cluster("./mine.yaml").accelerator.sustained_efficiency == found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": ""}, "source"),
        ({"base": 3}, "base"),
        ({"extra": 1}, "unknown key"),
        ({"factors": [1]}, "expected a mapping"),
        ({"factors": {"warp": 2}}, "unknown factor"),
        ({"factors": {"compute": "fast"}}, "expected a number"),
        ({"factors": {"compute": 0}}, "expected 0.05 to 20"),
        ({"factors": {"host": True}}, "expected a number"),
        ({"base": "nowhere"}, "unknown cluster"),
    ],
)
def test_a_bad_overlay_is_one_line(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    path = write_overlay(tmp_path / "mine.yaml", **changes)
    with pytest.raises(SpecError, match=expected) as error:
        load_cluster(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["base", "factors"])
def test_an_overlay_without_a_part_says_which(tmp_path: Path, key: str) -> None:
    path = write_overlay(tmp_path / "mine.yaml")
    path.write_text(
        "\n".join(x for x in path.read_text().splitlines() if not x.startswith((key, " ")))
    )
    with pytest.raises(SpecError, match=key):
        load_cluster(path)


def test_an_overlay_on_an_overlay_is_refused(tmp_path: Path) -> None:
    write_overlay(tmp_path / "one.yaml")
    path = write_overlay(tmp_path / "two.yaml", base="./one.yaml")
    with pytest.raises(SpecError, match="is an overlay itself"):
        load_cluster(path)


# The command


def invoke(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


ROWS = [
    {"id": f"tp{tp}", "tp": str(tp), "dp": str(16 // tp), "step_time_s": seconds}
    for tp, seconds in ((2, "11.2"), (4, "10.4"), (8, "11.6"))
]
"""A few per cent slower than predicted."""


def test_calibrate_writes_what_plan_takes(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", *ROWS)
    output = tmp_path / "mine.yaml"
    args = ("calibrate", table, "--cluster", "hgx-h100", "--output", output)
    result = invoke(*args)
    assert result.exit_code == 0, result.output
    assert "left out" in result.output
    assert "left alone" in result.output
    planned = invoke("plan", "-m", "llama3-8b", "-n", "64", "-c", output, "--json")
    assert planned.exit_code == 0, planned.output
    again = invoke(*args)
    assert again.exit_code == 1
    assert "--force" in again.output
    assert invoke(*args, "--force").exit_code == 0


def test_defaults_that_stand_are_written_with_their_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallelsim.calibration.WORST_LEFT_OUT", 0.0)
    table, output = write_table(tmp_path / "runs.csv", *ROWS), tmp_path / "mine.yaml"
    result = invoke("calibrate", table, "--cluster", "hgx-h100", "--output", output)
    assert result.exit_code == 0, result.output
    assert "the defaults, and how far the runs are from them" in result.output
    cluster = load_cluster(output, num_gpus=64)
    assert cluster.accelerator == CLUSTER.accelerator
    assert cluster.unexplained is not None
    assert cluster.unexplained.num_runs == 3


def test_calibrate_never_overwrites_its_runs(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", *ROWS)
    before = Path(table).read_bytes()
    args = ("calibrate", table, "--cluster", "hgx-h100", "--output", table, "--force")
    refused = invoke(*args)
    assert refused.exit_code == 1
    assert "is an input of this command" in refused.output
    assert Path(table).read_bytes() == before


def test_json_has_factors_and_errors(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", *ROWS)
    document = json.loads(invoke("calibrate", table, "-c", "hgx-h100", "--json").stdout)
    assert document["num_runs"] == 3
    assert document["step_time"]["n"] == 3
    assert set(document["factors"]["compute"]) == {
        "value",
        "prior_sd",
        "posterior_sd",
        "is_identified",
    }
    assert document["peak_memory"]["mape_before"] is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"step_time_s": "10400"}, "milliseconds"),
        ({"step_time_s": "nan"}, "step_time_s is no number"),
        ({"gpu": "a100-80gb-sxm"}, "gpu is a100-80gb-sxm, the cluster has h100-80gb-sxm"),
        ({"framework": ""}, "names no framework"),
        ({"step_time_s": "100"}, "check the plan"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, change: dict[str, str], expected: str) -> None:
    table = write_table(tmp_path / "runs.csv", {**ROWS[1], **change})
    result = invoke("calibrate", table, "--cluster", "hgx-h100")
    assert result.exit_code == 1
    assert expected in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_missing_columns_are_named(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", ROWS[0], header=["id", "gpu", "step_time_ms"])
    result = invoke("calibrate", table, "--cluster", "hgx-h100")
    assert result.exit_code == 1
    assert "missing columns" in result.output


def test_unusable_rows_are_counted(tmp_path: Path) -> None:
    table = write_table(tmp_path / "runs.csv", *ROWS, {"id": "bad", "dp": "5"})
    result = invoke("calibrate", table, "--cluster", "hgx-h100")
    assert result.exit_code == 0, result.output
    assert "1 skipped: tp=4 x cp=1 x pp=4 x dp=5 is not num_gpus=64" in result.output


def test_several_frameworks_are_refused(tmp_path: Path) -> None:
    other = {"id": "b", "framework": "megatron-lm-2022", "vpp": "1", "schedule": "1f1b"}
    table = write_table(tmp_path / "runs.csv", ROWS[0], {**other, "sequence_parallel": "True"})
    result = invoke("calibrate", table, "--cluster", "hgx-h100")
    assert result.exit_code == 1
    assert "several frameworks" in result.output


def test_a_log_with_its_plan(tmp_path: Path) -> None:
    plans = tmp_path / "plans.yaml"
    made = invoke("plan", "-m", "llama3-8b", "-n", "16", "-b", "64", "--output", plans)
    assert made.exit_code == 0, made.output
    predicted = json.loads(invoke("simulate", "--plan", plans, "--json").stdout)
    milliseconds = 1.08e3 * predicted["step_time_s"]
    log = tmp_path / "train.log"
    lines = [
        f" iteration {i:8d}/     100 | elapsed time per iteration (ms): {milliseconds:.1f} |"
        " global batch size:    64 |"
        for i in range(1, 20)
    ]
    log.write_text("\n".join(lines))
    output = tmp_path / "mine.yaml"
    args = ("calibrate", log, "-c", "hgx-h100", "--plan", plans, "-o", output)
    result = invoke(*args)
    assert result.exit_code == 0, result.output
    assert load_cluster(output).accelerator.sustained_efficiency < (
        load_cluster("hgx-h100").accelerator.sustained_efficiency
    )
    log.write_text(log.read_text().replace("size:    64", "size:    32"))
    assert "global batch size 32" in invoke(*args, "--force").output


def test_a_log_without_plan_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step: 1 tps: 10")
    result = invoke("calibrate", log, "--cluster", "hgx-h100")
    assert result.exit_code == 1
    assert "--plan" in result.output


def test_a_log_of_other_software_needs_its_name(tmp_path: Path) -> None:
    plans, log = tmp_path / "plans.yaml", tmp_path / "train.log"
    made = invoke("plan", "-m", "llama3-8b", "-n", "8", "-b", "8", "--fix", "tp=8", "-o", plans)
    assert made.exit_code == 0, made.output
    seconds = json.loads(invoke("simulate", "--plan", plans, "--json").stdout)["step_time_s"]
    lines = [f"iteration: {i} / 9 | time_per_iteration_ms: {1e3 * seconds}" for i in range(1, 9)]
    log.write_text("\n".join(lines))
    args = ("calibrate", log, "-c", "hgx-h100", "--plan", plans)
    refused = invoke(*args)
    assert refused.exit_code == 1
    assert "a log of nanotron, but" in refused.stderr
    assert "is a plan for megatron-core" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    named = invoke(*args, "--framework", "megatron-core")
    assert named.exit_code == 0, named.output
    assert "fitted as megatron-core as --framework says" in named.stderr


def test_one_run_has_nothing_left_out(tmp_path: Path) -> None:
    one = invoke("calibrate", write_table(tmp_path / "a.csv", ROWS[0]), "-c", "hgx-h100")
    assert "Left out:" not in one.output
    three = invoke("calibrate", write_table(tmp_path / "b.csv", *ROWS), "-c", "hgx-h100")
    assert "Left out:" in three.output


# What the interval holds


def half_widths(overlay: Path, *more: str) -> tuple[float, float]:
    """ln(high / predicted) of the same plan on the catalogue's cluster and on the overlay."""
    result = []
    for name in ("hgx-h100", str(overlay)):
        args = ("-m", "llama3-8b", "-n", "16", "-b", "64", "--tp", "4", "-c", name, "--json")
        found = json.loads(invoke("simulate", *args, "-f", "megatron-core").stdout)
        result.append(float(np.log(found["step_time_high_s"] / found["step_time_s"])))
    return result[0], result[1]


@pytest.mark.parametrize(
    ("runs", "error", "least"), [(1, 0.3, 0.28), (3, 0.2, 0.2), (12, 0.2, 0.25)]
)
def test_an_interval_holds_what_the_runs_leave(
    tmp_path: Path, runs: int, error: float, least: float
) -> None:
    spread = {"num_runs": runs, "log_error": error}
    default, own = half_widths(write_overlay(tmp_path / "mine.yaml", unexplained=spread))
    assert default < 0.12
    assert least < own < 2.2 * error


def test_runs_that_agree_make_no_interval_narrower(tmp_path: Path) -> None:
    spread = {"num_runs": 9, "log_error": 0.001}
    _, without = half_widths(write_overlay(tmp_path / "a.yaml"))
    _, own = half_widths(write_overlay(tmp_path / "b.yaml", unexplained=spread))
    assert own == without


def test_calibrate_says_what_is_left_and_plans_say_it_again(tmp_path: Path) -> None:
    output, table = (
        tmp_path / "mine.yaml",
        write_table(
            tmp_path / "runs.csv",
            *({**row, "step_time_s": t} for row, t in zip(ROWS, ("8", "14", "20"), strict=True)),
        ),
    )
    assert invoke("calibrate", table, "-c", "hgx-h100", "-o", output).exit_code == 0
    cluster = load_cluster(output)
    assert cluster.unexplained is not None
    assert cluster.unexplained.num_runs == 3
    assert cluster.unexplained.log_error > 0.15
    args = ("-m", "llama3-8b", "-n", "16", "-c", output)
    for command in (("plan", "--top", "1"), ("simulate", "--tp", "4")):
        result = invoke(*command, *args)
        assert f"80 % intervals hold what {output} leaves: 3 own runs off by" in result.stderr
    assert "3 own runs off by" in " ".join(invoke("simulate", *args).stdout.split())


def test_one_run_leaves_what_its_own_correction_did_not_take() -> None:
    run = runs_in(DEFAULT)[0]
    assert run.step_time_s is not None
    result = calibrate([replace(run, step_time_s=1.6 * run.step_time_s)])
    left = abs(np.log(Predictor([run])(result.factors)[0][0] / (1.6 * run.step_time_s)))
    assert result.unexplained is not None
    assert result.unexplained.num_runs == 1
    assert result.unexplained.log_error == pytest.approx(left, rel=1e-6)
    assert calibrate([replace(run, step_time_s=None)]).unexplained is None


@pytest.mark.parametrize(
    "spread",
    [3, {"num_runs": 3}, {"num_runs": 0, "log_error": 0.1}, {"num_runs": 2, "log_error": -1}],
)
def test_a_bad_spread_is_one_line(tmp_path: Path, spread: object) -> None:
    with pytest.raises(SpecError, match="unexplained"):
        load_cluster(write_overlay(tmp_path / "mine.yaml", unexplained=spread))


# Runs and files that are not what they seem


def test_a_calibrated_cluster_is_no_base(tmp_path: Path) -> None:
    overlay = write_overlay(tmp_path / "mine.yaml")
    table = write_table(tmp_path / "runs.csv", *ROWS)
    for args in (("-c", overlay), ("-c", "hgx-h100", "-f", overlay)):
        result = invoke("calibrate", table, *args, "-o", tmp_path / "x5.yaml")
        assert result.exit_code == 1
        assert "is calibrated already" in result.output
        assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "x5.yaml").exists()


def test_an_overlay_brings_the_software_of_its_runs(tmp_path: Path) -> None:
    overlay = write_overlay(tmp_path / "mine.yaml", framework="nanotron")
    args = ("plan", "-m", "llama3-8b", "-n", "8", "-b", "64", "-c", overlay, "--top", "1")
    own = invoke(*args)
    assert f"note: nanotron, which the runs of {overlay} used (--framework)" in own.stderr
    assert "parameters, nanotron" in own.stdout
    other = invoke(*args, "--framework", "megatron-core")
    assert f"{overlay} is from runs of nanotron" in other.stderr
    bare = invoke(*args, "--framework", "nanotron")
    assert f"without the software's factors of {overlay}" in bare.stderr
    assert "without" not in invoke(*args, "--framework", overlay).stderr
    factors = load_framework(overlay).host.step_s / load_framework("nanotron").host.step_s
    assert factors == pytest.approx(1.5)


def test_rows_of_another_network_are_named(tmp_path: Path) -> None:
    rows = [{**row, "inter_node_gb_per_s_per_gpu": "12.5"} for row in ROWS]
    named = invoke("calibrate", write_table(tmp_path / "a.csv", *rows), "-c", "hgx-h100")
    assert "note: 3 rows state another network between nodes than hgx-h100" in named.stderr
    rows = [{**row, "inter_node_gb_per_s_per_gpu": "50"} for row in ROWS]
    same = invoke("calibrate", write_table(tmp_path / "b.csv", *rows), "-c", "hgx-h100")
    assert same.exit_code == 0, same.output
    assert "another network" not in same.stderr


def test_rows_and_tables_given_twice_count_once(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.csv", *ROWS)
    copy = tmp_path / "b.csv"
    copy.write_bytes(Path(table).read_bytes())
    result = invoke("calibrate", table, copy, table, "-c", "hgx-h100")
    assert "3 runs of" in result.stdout
    assert f"{copy}: the same as {table}, counted once" in result.stderr
    other = write_table(tmp_path / "c.csv", *ROWS, {**ROWS[0], "id": "new"})
    result = invoke("calibrate", table, other, "-c", "hgx-h100")
    assert "4 runs of" in result.stdout
    assert "3 skipped: duplicate id" in result.stdout


def log_of(folder: Path, head: str = "") -> tuple[Path, Path]:
    """(plan, log) of a run on 8 H100 that took what is predicted."""
    plans, log = folder / "plans.yaml", folder / "train.log"
    made = invoke("plan", "-m", "llama3-8b", "-n", "8", "-b", "8", "--fix", "tp=8", "-o", plans)
    assert made.exit_code == 0, made.output
    seconds = json.loads(invoke("simulate", "--plan", plans, "--json").stdout)["step_time_s"]
    line = " iteration {} / 9 | elapsed time per iteration (ms): {} | global batch size: 8 |"
    log.write_text("\n".join([head, *(line.format(i, 1e3 * seconds) for i in range(1, 9))]))
    return plans, log


def test_a_log_given_twice_counts_once(tmp_path: Path) -> None:
    plans, log = log_of(tmp_path)
    result = invoke("calibrate", log, log, "-c", "hgx-h100", "--plan", plans)
    assert "1 runs of" in result.stdout
    assert f"{log}: the same as {log}, counted once" in result.stderr


def test_a_log_of_another_gpu_is_refused_and_a_plan_for_one_named(tmp_path: Path) -> None:
    plans, log = log_of(tmp_path, "[rank0] device: NVIDIA H100 80GB HBM3")
    assert invoke("calibrate", log, "-c", "hgx-h100", "--plan", plans).exit_code == 0
    refused = invoke("calibrate", log, "-c", "hgx-b200", "--plan", plans)
    assert refused.exit_code == 1
    assert "the log names NVIDIA H100, the cluster has b200-180gb-sxm" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    log.write_text(log.read_text().replace("NVIDIA H100", "NVIDIA driver"))
    taken = invoke("calibrate", log, "-c", "hgx-b200", "--plan", plans)
    assert f"{plans} is a plan for hgx-h100 (h100-80gb-sxm)" in taken.stderr
