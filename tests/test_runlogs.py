"""Training logs of three kinds of software, and the damage that logs take."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallelsim import runlogs
from parallelsim.catalog import framework_names
from parallelsim.errors import OutputError, SpecError
from parallelsim.runlogs import MAX_LINE_BYTES, contradicts, read_log
from parallelsim.units import GIB, MIB

MEGATRON = """\
 > building GPT2BPETokenizer tokenizer ...
 [2026-03-01 10:00:00.000001] iteration        1/     100 | consumed samples:          128 | \
elapsed time per iteration (ms): 31234.5 | throughput per GPU (TFLOP/s/GPU): 120.1 | \
learning rate: 1.5E-06 | global batch size:   128 | lm loss: 1.1E+01 |
[Rank 0] (after 1 iterations) memory (MB) | allocated: 30000.5 | max allocated: 55000.25 | \
reserved: 60000.0 | max reserved: 61000.0
[Rank 8] (after 1 iterations) memory (MB) | allocated: 30000.5 | max allocated: 56000.25 | \
reserved: 60000.0 | max reserved: 62000.0
 [2026-03-01 10:00:10.000001] iteration        2/     100 | consumed samples:          256 | \
elapsed time per iteration (ms): 10100.0 | global batch size:   128 | lm loss: 1.0E+01 |
 [2026-03-01 10:00:20.000001] iteration        3/     100 | consumed samples:          384 | \
elapsed time per iteration (ms): 10200.0 | global batch size:   128 | lm loss: 9.0E+00 |
 [2026-03-01 10:00:30.000001] iteration        4/     100 | consumed samples:          512 | \
elapsed time per iteration (ms): 10300.0 | global batch size:   128 | lm loss: 9.0E+00 |
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_megatron(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, MEGATRON))
    assert log.software == "megatron"
    assert log.step_time_s == pytest.approx(10.2)
    assert log.num_steps == 3
    assert log.peak_memory_bytes == 62000 * MIB
    assert log.global_batch_size == 128
    assert not log.skipped


def test_torchtitan_with_colours_and_launcher_prefix(tmp_path: Path) -> None:
    lines = [
        f"[rank0]:[titan] 2026-03-01 10:00:0{i} - root - INFO - \x1b[31mstep: {i:2}  "
        f"\x1b[32mloss: 12.2  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[36mmemory: 4{i}.34GiB"
        f"(59.85%)  \x1b[34mtps: 6,2{i}0  \x1b[36mtflops: 300.12  \x1b[35mmfu: 30.34%\x1b[39m"
        for i in range(1, 6)
    ]
    log = read_log(written(tmp_path, "\n".join(lines)))
    assert log.software == "torchtitan"
    assert log.step_time_s is None
    assert log.tokens_per_s_per_gpu == pytest.approx(6235)
    assert log.peak_memory_bytes == pytest.approx(45.34 * GIB)


def test_nanotron_with_rounded_numbers(tmp_path: Path) -> None:
    lines = [
        "[default0]:03/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|ip-26]:  Memory usage: 9000.50MiB. "
        "Peak allocated 12000.25MiB. Peak reserved: 13000.00MiB",
        *(
            "[default0]:03/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|ip-26]: iteration: "
            f"{i} / 100 | consumed_tokens: 1.05M | {name}: 1.2{i}K | tokens_per_sec: 852K | "
            "tokens_per_sec_per_gpu: 106K | global_batch_size: 1.02K | lm_loss: 11.1"
            for i, name in enumerate(
                ["elapsed_time_per_iteration_ms"] * 2 + ["time_per_iteration_ms"] * 2, 1
            )
        ),
    ]
    log = read_log(written(tmp_path, "\n".join(lines)))
    assert log.software == "nanotron"
    assert log.step_time_s == pytest.approx(1.23)
    assert log.peak_memory_bytes == 13000 * MIB
    assert log.global_batch_size is None


def test_ranks_that_all_print_count_once_a_step(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: step: {step} memory: 10.00GiB(10%) tps: {100 * step + rank}"
        for step in (1, 2, 3)
        for rank in range(4)
    ]
    log = read_log(written(tmp_path, "\n".join(lines)))
    assert log.num_steps == 2
    assert log.tokens_per_s_per_gpu == pytest.approx(251.5)


def test_the_first_of_two_steps_is_warm_up(tmp_path: Path) -> None:
    lines = MEGATRON.replace("\\\n", "").splitlines()
    first, second = [line for line in lines if "iteration " in line][:2]
    log = read_log(written(tmp_path, f"{first}\n{second}"))
    assert log.num_steps == 1
    assert log.step_time_s == pytest.approx(10.1)


@pytest.mark.parametrize("value", ["nan", "inf", "-", ""])
def test_steps_without_a_number_are_counted(tmp_path: Path, value: str) -> None:
    broken = MEGATRON.replace(
        "elapsed time per iteration (ms): 10200.0", f"elapsed time per iteration (ms): {value}"
    )
    assert broken != MEGATRON
    log = read_log(written(tmp_path, broken))
    assert sum(log.skipped.values()) == 1


def test_interleaved_and_broken_lines_are_counted(tmp_path: Path) -> None:
    value = "elapsed time per iteration (ms): "
    text = MEGATRON + (
        f"iteration 5/100 | {value}iteration 5/100 | {value}10.0 | {value}11.0 |\n"
        f"iteration 6/100 | {value}nan |\n"
        f"iteration 7/100 | {value}-5 |\n"
        f"iteration 8/100 | {value}inf |\n"
        f" {value}10300.0 |\n"
    )
    log = read_log(written(tmp_path, text))
    assert log.step_time_s == pytest.approx(10.2)
    assert log.skipped == {
        "lines of two ranks run into each other": 1,
        "a time or throughput that is no number above 0": 3,
        "a step time without its step": 1,
    }


def test_carriage_returns_and_endless_lines(tmp_path: Path) -> None:
    text = "\r".join(MEGATRON.splitlines()) + "\n" + "iteration x" * MAX_LINE_BYTES
    assert read_log(written(tmp_path, text)).step_time_s == pytest.approx(10.2)


@pytest.mark.parametrize(
    "text", ["", "hello\n", "iteration 1/10 | elapsed time per iteration (ms): nan |\n"]
)
def test_no_usable_line_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match="no usable line") as error:
        read_log(written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_binary_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\0\1\2")
    with pytest.raises(SpecError, match="not a text file"):
        read_log(path)
    with pytest.raises(OutputError, match="cannot read"):
        read_log(tmp_path)
    with pytest.raises(OutputError, match="cannot read"):
        read_log(tmp_path / "absent.log")


def test_bytes_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\xfe iteration\n" + MEGATRON.encode())
    assert read_log(path).step_time_s == pytest.approx(10.2)


def test_a_long_log_is_streamed(tmp_path: Path) -> None:
    """Memory stays at a fraction of the file's size."""
    import tracemalloc

    path = tmp_path / "train.log"
    noise = b"[rank3]: some chatter that nobody needs, a hundred bytes of it or a little more\n"
    with path.open("wb") as stream:
        stream.write(noise * 4096)
        for _ in range(40):
            stream.write(noise * 4096)
        stream.write(MEGATRON.encode())
    tracemalloc.start()
    try:
        log = read_log(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.step_time_s == pytest.approx(10.2)
    assert peak < path.stat().st_size / 5


def test_the_lines_that_were_read_are_counted(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="100 lines looked at"):
        read_log(written(tmp_path, "loss 1.0\n" * 100))


def test_lines_of_ranks_cut_into_each_other_leave_the_median(tmp_path: Path) -> None:
    value = "elapsed time per iteration (ms): "
    lines = [f"[rank{rank}]: iteration {i}/99 | {value}" for i in range(1, 30) for rank in (0, 7)]
    whole = [line + "10200.0 | global batch size:   128 |" for line in lines]
    cut = [whole[i][:40] + whole[i + 1] + whole[i][40:] for i in range(0, len(whole), 6)]
    log = read_log(written(tmp_path, "\n".join(whole + cut)))
    assert log.step_time_s == pytest.approx(10.2)
    assert sum(log.skipped.values()) == len(cut)


def test_a_log_contradicts_other_software_alone(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, MEGATRON))
    assert not contradicts(log, "megatron-core")
    assert not contradicts(log, "software-of-our-own")
    assert contradicts(log, "nanotron")
    known = {name for form in runlogs._FORMATS for name in form.frameworks}
    assert known <= set(framework_names())
