"""How well runs are predicted by constants that were fitted without them.

    python benchmarks/refit.py TABLE.csv [TABLE.csv ...] --output docs/accuracy_leave_out.md

The catalogue's constants were set by people who saw every row of the table, so its errors are
in-sample. This fits all of them again from priors that know no run (``refit_constants.py``), on
all sources but one, and predicts the runs of the one left out: the error to expect of a cluster and
a software that nobody compared. Then it fits to all runs, and says which constants of the catalogue
the runs and the priors together contradict. Writes the page and a JSON file beside it; changes
nothing else. Half an hour to an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from refit_constants import CONSTANTS
from refit_fit import Estimate, most_probable
from refit_model import Constant, FloatArray, Predictor
from refit_page import page

from parallelsim.scored_row import ScoredRow
from parallelsim.validation import validate

LARGEST_SHARE = 40
"""Runs of one family that are fitted, evenly spread over its rows; all are predicted."""
TOGETHER: tuple[tuple[str, ...], ...] = (
    ("sc21", "korthi"),
    ("zb", "vocabpp"),
    ("dgxc-benchmarking", "megatron-bridge", "mlperf-v4.0", "nemo-docs"),
)
"""Sources of the same authors and clusters: left out together in the stricter figure."""


@dataclass(frozen=True)
class Table:
    """Timed runs with what the catalogue's constants predict."""

    groups: tuple[str, ...]
    """Source of each run."""
    families: tuple[str, ...]
    """The source, and what is trained, or how, where that is no whole dense model in copies."""
    measured: FloatArray
    today: FloatArray
    predictor: Predictor

    @property
    def sources(self) -> list[str]:
        """In the order of the table."""
        return list(dict.fromkeys(self.groups))

    def members(self, sources: Sequence[str]) -> FloatArray:
        """Mask of the runs of some sources."""
        return np.isin(np.array(self.groups), sources)


@dataclass(frozen=True)
class Study:
    """All predictions and the fit to all runs."""

    table: Table
    at_priors: FloatArray
    fit: Estimate
    fitted: FloatArray
    left_out: FloatArray
    """Each source by constants fitted on the others."""
    related_left_out: FloatArray
    """The same, related sources left out together."""
    without: Mapping[tuple[str, ...], Estimate]
    """The fits behind them, by what was left out."""


def table_of(rows: Sequence[ScoredRow], constants: Sequence[Constant] = CONSTANTS) -> Table:
    """The timed ones of scored rows."""
    timed = [row for row in rows if row.case is not None and row.run.step_time_s]
    return Table(
        groups=tuple(row.group for row in timed),
        families=tuple(row.family for row in timed),
        measured=np.array([row.run.step_time_s for row in timed], np.float64),
        today=np.array([row.step_time_s for row in timed]),
        predictor=Predictor([row.case for row in timed if row.case is not None], constants),
    )


def spread(groups: Sequence[str], largest: int = LARGEST_SHARE) -> FloatArray:
    """Mask of at most ``largest`` rows of each group, evenly spread."""
    names, mask = np.array(groups), np.zeros(len(groups), bool)
    for name in dict.fromkeys(groups):
        index = np.flatnonzero(names == name)
        count = min(largest, len(index))
        mask[index[(np.arange(count) * len(index)) // count]] = True
    return mask


def study(table: Table, say: Callable[[str], None] = lambda text: None) -> Study:
    """Fit to all sources, and to all but each."""
    predictor, kept = table.predictor, spread(table.families)
    origin = np.zeros(len(predictor.parameters))
    at_priors = predictor.step_times(origin)
    slopes = np.zeros((predictor.size, len(origin)))
    slopes[kept] = predictor.only(kept).jacobian(origin, at_priors[kept])

    def fitted_on(mask: FloatArray) -> Estimate:
        """No run outside the mask is predicted or compared."""
        families = [name for name, used in zip(table.families, mask, strict=True) if used]
        start = (at_priors[mask], slopes[mask])
        return most_probable(predictor.only(mask), table.measured[mask], families, start)

    fit = fitted_on(kept)
    fitted = predictor.step_times(fit.z)
    say(f"all: objective {fit.objective:.1f}")
    without: dict[tuple[str, ...], Estimate] = {}
    left_out = np.full(predictor.size, np.nan)
    related = np.full(predictor.size, np.nan)
    for sources in [(name,) for name in table.sources] + [*TOGETHER]:
        held = table.members(sources)
        if not held.any() or held.all():
            continue
        estimate = without[sources] = fitted_on(kept & ~held)
        predicted = predictor.only(held).step_times(estimate.z)
        related[held] = predicted  # those left out together come last
        if len(sources) == 1:
            left_out[held] = predicted
        errors = predicted / table.measured[held] - 1
        say(f"without {', '.join(sources)}: its MAPE {100 * np.abs(errors).mean():.1f} %")
    return Study(table, at_priors, fit, fitted, left_out, related, without)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="+", help="measured runs, as 'parallelsim validate' reads")
    parser.add_argument("--output", metavar="PAGE.md", help="write the page, and JSON beside it")
    options = parser.parse_args()
    start = time.perf_counter()
    found = study(
        table_of(validate(options.tables).scored), lambda text: print(text, file=sys.stderr)
    )
    text, document = page(found)
    if options.output:
        output = Path(options.output)
        output.write_text(text)
        output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["mean_over_families"], indent=1))
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
