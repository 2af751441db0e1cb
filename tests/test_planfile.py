"""Plan files: round trip, refusals, and writing whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallelsim.errors import OutputError, ParallelSimError, PlanError, SpecError
from parallelsim.output_files import check_writable, write_text
from parallelsim.plan import CHOICES, Plan
from parallelsim.planfile import PlanDocument, RankedPlan, read_document, write_document

PLAN = Plan(tp=4, pp=2, dp=2, micro_batch_size=2, global_batch_size=64, schedule="1f1b", zero=1)
DOCUMENT = PlanDocument(
    plans=(
        RankedPlan(1, PLAN, "safe", {"step_time_s": 1.25}),
        RankedPlan(2, Plan(dp=16, global_batch_size=64), "tight"),
    ),
    model="llama3-8b",
    overrides={"num_layers": 12, "tied_embeddings": True},
    cluster="hgx-h100",
    num_gpus=16,
    nic_gbit_per_s=400.0,
    framework="megatron-core",
    global_batch_size=64,
    seq_length=8192,
    precision="bf16",
)

degrees = st.integers(1, 64)
plans = st.builds(
    Plan,
    tp=degrees,
    pp=degrees,
    dp=degrees,
    global_batch_size=degrees,
    schedule=st.sampled_from(CHOICES["schedule"]),
    sequence_parallel=st.booleans(),
    zero=st.integers(0, 3),
    recompute=st.just("full"),
    recompute_num_layers=st.integers(0, 100),
)


def test_a_document_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "plans.yaml"
    write_document(DOCUMENT, path)
    read = read_document(path)
    assert [entry.plan for entry in read.plans] == [entry.plan for entry in DOCUMENT.plans]
    assert [(e.rank, e.zone) for e in read.plans] == [(1, "safe"), (2, "tight")]
    assert read.plans[0].results == {"step_time_s": 1.25}
    for name in ("model", "overrides", "cluster", "num_gpus", "nic_gbit_per_s", "precision"):
        assert getattr(read, name) == getattr(DOCUMENT, name)


@settings(max_examples=50, deadline=None)
@given(plan=plans)
def test_every_plan_survives_the_file(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("plans") / "plans.yaml"
    write_document(PlanDocument(**{**DOCUMENT.__dict__, "plans": (RankedPlan(1, plan),)}), path)
    assert read_document(path).plans[0].plan == plan


@pytest.mark.parametrize("text", ["tp: 8\npp: 2\n", "plan:\n  tp: 8\n  pp: 2\n"])
def test_a_bare_plan_is_accepted_and_knows_what_it_states(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    entry = read_document(path).plans[0]
    assert entry.plan == Plan(tp=8, pp=2, schedule="1f1b")
    assert entry.stated == {"tp", "pp"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("num_gpus: 16", "num_gpus: many"),
        ("num_gpus: 16", "num_gpus: 0"),
        ("num_gpus: 16", "num_gpus: true"),
        ("num_gpus: 16\n", ""),
        ("model: llama3-8b", "modell: llama3-8b"),
        ("seq_length: 8192", "seq_length: 1e9"),
        ("rank: 2", "rank: 1"),
        ("rank: 2", "rank: first"),
        ("tp: 4", "tp: 0"),
        ("tp: 4", "tp: .nan"),
        ("tp: 4", "tp: 1000000000"),
        ("tp: 4", "tpp: 4"),
        ("num_layers: 12", "num_layers: [1]"),
        ("plans:", "plans: []\nold:"),
    ],
)
def test_a_broken_document_is_one_line_with_the_file(
    tmp_path: Path, change: str, message: str
) -> None:
    path = tmp_path / "plans.yaml"
    write_document(DOCUMENT, path)
    text = path.read_text()
    assert change in text
    path.write_text(text.replace(change, message, 1))
    with pytest.raises(ParallelSimError) as caught:
        read_document(path)
    assert "plans.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("colour: red\n")
    with pytest.raises(SpecError, match="neither"):
        read_document(path)


def test_a_missing_rank_names_those_that_exist() -> None:
    with pytest.raises(PlanError, match="has 1, 2"):
        DOCUMENT.with_rank(7, "plans.yaml")


def test_paths_are_relative_to_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "specs" / "mine.yaml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    document = PlanDocument(**{**DOCUMENT.__dict__, "model": "specs/mine.yaml"})
    write_document(document, "out/plans.yaml")
    assert "model: ../specs/mine.yaml" in (tmp_path / "out/plans.yaml").read_text()
    monkeypatch.chdir(tmp_path / "out")
    model = read_document("plans.yaml").model
    assert model is not None
    assert Path(model).resolve() == tmp_path / "specs" / "mine.yaml"


def test_an_existing_file_stays_without_force(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("precious")
    with pytest.raises(OutputError, match="--force"):
        write_text(path, "new")
    assert path.read_text() == "precious"
    write_text(path, "new", force=True)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["run.sh"]


def test_a_failed_write_leaves_the_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plans.yaml"
    path.write_text("precious")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_text(path, "new", force=True)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["plans.yaml"]


def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plans.yaml"
    monkeypatch.setattr(os, "fsync", lambda _: path.write_text("theirs"))
    with pytest.raises(OutputError, match="exists already"):
        write_text(path, "mine")
    assert path.read_text() == "theirs"


def test_replacing_through_a_link_keeps_the_link_and_the_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "new", force=True)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_devices_are_written_to_not_replaced() -> None:
    write_text("/dev/null", "gone")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize("path", ["missing/plans.yaml", ".", "bad\0name", "a" * 5000])
def test_impossible_paths_are_refused_early(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError):
        write_text(path, "text")
    if path != "a" * 5000:
        with pytest.raises(OutputError):
            check_writable(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipes_are_refused_both_ways(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="pipe"):
        check_writable(pipe, force=True)
    with pytest.raises(OutputError, match="pipe"):
        read_document(pipe)


def test_names_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/{os.fsdecode(bytes([0xFF]))}.yaml"
    with pytest.raises(OutputError, match="UTF-8"):
        check_writable(path)
    document = PlanDocument(**{**DOCUMENT.__dict__, "model": path})
    with pytest.raises(OutputError, match="UTF-8"):
        write_document(document, tmp_path / "plans.yaml")


def test_an_unknown_key_gets_the_nearest_as_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "plans.yaml"
    write_document(DOCUMENT, path)
    path.write_text(path.read_text().replace("num_gpus:", "num_gpu:"))
    with pytest.raises(SpecError, match="num_gpu: unknown key, did you mean num_gpus"):
        read_document(path)
