"""One row of a table of measured runs with its prediction."""

from __future__ import annotations

from dataclasses import dataclass

from parallelsim.measured_cases import Case
from parallelsim.measurements import Run
from parallelsim.scores import FITS_BELOW


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of the table with its prediction, or the reason why there is none."""

    id: str
    group: str
    reason: str
    """Of a skipped row why; of a scored one its flag and what was assumed."""
    case: Case | None = None
    step_time_s: float = float("nan")
    peak_memory_bytes: float = float("nan")
    memory_use_frac: float = float("nan")
    cause_shares: tuple[float, ...] = ()
    """Of the predicted step by cause, in the order of :data:`parallelsim.causes.CAUSES`."""

    @property
    def is_scored(self) -> bool:
        """There is a prediction and something measured."""
        return self.case is not None

    @property
    def run(self) -> Run:
        """The measured run of a scored row."""
        assert self.case is not None
        return self.case.run

    @property
    def family(self) -> str:
        """The group, and what is trained, or how, where that is no whole dense model in copies."""
        if self.case is None:
            return self.group
        kinds = {
            "experts": self.case.model.has_experts,
            "LoRA": self.case.model.lora is not None,
            "FSDP": self.case.plan.zero == 3,
        }
        return ", ".join([self.group, *(name for name, holds in kinds.items() if holds)][:2])

    @property
    def is_apart(self) -> bool:
        """Scored, but not part of the main report."""
        return self.case is not None and self.run.is_apart

    @property
    def is_judged(self) -> bool:
        """Whether it fits is a prediction, not what the recompute was chosen by."""
        return self.case is not None and not self.case.recompute_is_free

    @property
    def predicted_fits(self) -> bool:
        """The verdict."""
        return self.memory_use_frac <= FITS_BELOW
