"""A study in a folder: the candidates, and what was run.

``candidates.yaml`` is written once, by ``tune init``: plans as ``plan --output`` writes them.
``study.json`` is replaced whole after every step, never changed in place, so that a process killed
at any moment leaves the study as it was before or as it is after::

    {"format": 1, "candidates_sha256": "9f86d0...",
     "model": {"name": "llama3-8b", "num_parameters": 8030261248, "flops_per_sequence": 4.2e14},
     "budget": 6, "min_gain_frac": 0.005, "proposed": 3,
     "runs": [{"rank": 1, "step_time_s": 6.5, "peak_memory_bytes": null, "source": "run-1.log"}]}

A run out of memory has no step time. One process at a time works on a study: a lock that ends with
the process keeps others out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parallelsim.errors import OutputError, SpecError
from parallelsim.model import ModelSpec
from parallelsim.output_files import write_text
from parallelsim.planfile import PlanDocument, read_document, write_document
from parallelsim.yaml_io import read_json

CANDIDATES, STUDY, LOCK = "candidates.yaml", "study.json", "study.lock"
FORMAT = 1
MAX_RUNS = 1000
_KEYS = {"format", "candidates_sha256", "model", "budget", "min_gain_frac", "proposed", "runs"}
_RUN_KEYS = {"rank", "step_time_s", "peak_memory_bytes", "source"}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What tells one model from another."""

    name: str
    num_parameters: int
    flops_per_sequence: float

    @classmethod
    def of(cls, model: ModelSpec) -> ModelFacts:
        """Those of a model at its sequence length."""
        return cls(model.name, model.num_parameters, float(model.flops_per_sequence()))

    def is_of(self, model: ModelSpec) -> bool:
        """The model has these numbers, whatever it is called."""
        other = ModelFacts.of(model)
        same = math.isclose(self.flops_per_sequence, other.flops_per_sequence, rel_tol=1e-6)
        return same and self.num_parameters == other.num_parameters


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a candidate."""

    rank: int
    step_time_s: float | None
    """None: out of memory."""
    peak_memory_bytes: float | None
    source: str
    """The log, or how the figures were given."""


@dataclass(frozen=True)
class Study:
    """Everything that its folder holds."""

    folder: Path
    document: PlanDocument
    model: ModelFacts
    budget: int
    """Runs after which the loop stops."""
    min_gain_frac: float
    """Expected gain of another run, as a share of the step, below which the loop stops."""
    proposed: int | None = None
    """Rank of the plan that waits for its run."""
    runs: tuple[Run, ...] = ()

    def check_model(self, model: ModelSpec) -> None:
        """Refuse runs of another model than the candidates were chosen for.

        Raises:
            SpecError: the model that the candidates name has changed.
        """
        if not self.model.is_of(model):
            now = ModelFacts.of(model)
            raise SpecError(
                f"made for {self.model.name} of {self.model.num_parameters:,} parameters and "
                f"{self.model.flops_per_sequence:.4g} FLOPs a sequence, but {CANDIDATES} now names "
                f"{now.name} of {now.num_parameters:,} and {now.flops_per_sequence:.4g}; undo that "
                "change, or make a new study with 'tune init'",
                file=str(self.folder / STUDY),
            )

    def with_run(self, run: Run) -> Study:
        """The study after a run; a proposal that it answers is settled."""
        proposed = None if run.rank == self.proposed else self.proposed
        return replace(self, runs=(*self.runs, run), proposed=proposed)


def check_new(folder: str | Path) -> None:
    """Refuse early where no study can be made.

    Raises:
        OutputError: there is a study, or something else.
    """
    path = Path(folder)
    if (path / STUDY).exists():
        raise OutputError(
            f"{folder}: holds a study already; go on with 'parallelsim tune next {folder}', or "
            "name another folder"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(f"{folder}: exists and is no empty folder; name a new one")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"{folder}: the folder that it would be in does not exist")


def create(study: Study) -> None:
    """Make the folder of a new study and write it.

    Raises:
        OutputError: as :func:`check_new`, or the folder cannot be made or written.
    """
    check_new(study.folder)
    try:
        study.folder.mkdir(exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{study.folder}: cannot make the folder: {reason}") from None
    write_document(study.document, study.folder / CANDIDATES)
    save(study)


def save(study: Study) -> None:
    """Put the study in the place of the one before, whole."""
    data = {
        "format": FORMAT,
        "candidates_sha256": _digest(study.folder / CANDIDATES),
        "model": asdict(study.model),
        "budget": study.budget,
        "min_gain_frac": study.min_gain_frac,
        "proposed": study.proposed,
        "runs": [asdict(run) for run in study.runs],
    }
    write_text(study.folder / STUDY, json.dumps(data, indent=1) + "\n", force=True)


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep other processes out of a study; what a killed one left half-written is removed.

    Raises:
        OutputError: there is no study, or another process works on it.
    """
    path = Path(folder)
    if not (path / STUDY).is_file():
        raise OutputError(f"{folder}: no study; make one with 'parallelsim tune init {folder} ...'")
    try:
        stream = open(path / LOCK, "ab")  # noqa: SIM115  closed below
    except OSError as error:
        raise OutputError(f"{folder}: cannot lock the study: {error.strerror or error}") from None
    with stream:
        _lock(stream.fileno(), str(folder))
        for left in path.glob(f"{STUDY}.*.tmp"):
            left.unlink(missing_ok=True)
        yield


def _lock(descriptor: int, folder: str) -> None:
    """Take the lock, which the system gives back when the process ends."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: the atomic replacement alone protects the study
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OutputError(
            f"{folder}: another process works on this study; try again when it has ended"
        ) from None


def load(folder: str | Path) -> Study:
    """The study of a folder.

    Raises:
        OutputError: a file cannot be read.
        SpecError: a file is damaged, with what was expected.
    """
    path = Path(folder)
    file = str(path / STUDY)
    data = read_json(file)
    if data.get("format") != FORMAT:
        found = str(data.get("format"))[:20]
        raise SpecError(f"expected {FORMAT}, got {found}; no study of this version", file=file)
    if set(data) != _KEYS:
        raise _damaged(file, f"expected the keys {', '.join(sorted(_KEYS))}")
    document = read_document(path / CANDIDATES)
    if data["candidates_sha256"] != _digest(path / CANDIDATES):
        raise SpecError(
            "changed since 'tune init', and the runs belong to the plans as they were; undo that "
            "change, or make a new study",
            file=str(path / CANDIDATES),
        )
    ranks = {entry.rank for entry in document.plans}
    proposed, model = data["proposed"], data["model"]
    if not isinstance(data["runs"], list) or len(data["runs"]) > MAX_RUNS:
        raise _damaged(file, f"runs: expected a list of at most {MAX_RUNS}")
    if proposed is not None and proposed not in ranks:
        raise _damaged(file, f"proposed: {CANDIDATES} has no plan of that rank")
    if not (_is_count(data["budget"]) and _is_number(data["min_gain_frac"])):
        raise _damaged(file, "budget: expected a whole number; min_gain_frac: a number above 0")
    return Study(
        folder=path,
        document=document,
        model=_facts(model, file),
        budget=data["budget"],
        min_gain_frac=float(data["min_gain_frac"]),
        proposed=proposed,
        runs=tuple(_run(entry, ranks, f"runs[{i}]", file) for i, entry in enumerate(data["runs"])),
    )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _damaged(file: str, what: str) -> SpecError:
    return SpecError(f"the study is damaged: {what}; restore it from a copy", file=file)


def _facts(data: Any, file: str) -> ModelFacts:
    names = {"name", "num_parameters", "flops_per_sequence"}
    if not isinstance(data, Mapping) or set(data) != names:
        raise _damaged(file, f"model: expected {', '.join(sorted(names))}")
    count, flops = data["num_parameters"], data["flops_per_sequence"]
    if not (isinstance(data["name"], str) and _is_count(count) and _is_number(flops)):
        raise _damaged(file, "model: expected a name and two numbers above 0")
    return ModelFacts(data["name"], count, float(flops))


def _run(data: Any, ranks: set[int], key: str, file: str) -> Run:
    if not isinstance(data, Mapping) or set(data) != _RUN_KEYS:
        raise _damaged(file, f"{key}: expected {', '.join(sorted(_RUN_KEYS))}")
    seconds, peak = data["step_time_s"], data["peak_memory_bytes"]
    if data["rank"] not in ranks:
        raise _damaged(file, f"{key}: {CANDIDATES} has no plan of that rank")
    if not all(value is None or _is_number(value) for value in (seconds, peak)):
        raise _damaged(file, f"{key}: expected numbers above 0 or null")
    return Run(int(data["rank"]), seconds, peak, str(data["source"]))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
