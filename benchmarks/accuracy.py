"""How accurate predictions are on a table of measured runs, as a page, and the intervals from it.

    python benchmarks/accuracy.py TABLE.csv --output docs/accuracy.md     regenerate everything
    python benchmarks/accuracy.py TABLE.csv --check                       compare and enforce

Regenerating writes the page, its picture, ``parallelsim/residuals.json`` (the
intervals' half-widths and P(fits)) and ``benchmarks/accuracy_floor.json``. The floor only tightens;
``--accept-worse`` lets it loosen. ``--check`` fails where a committed file is stale beyond
rounding, the floor is broken, or an interval of a regime with 50 rows or more holds less than 70 %
or more than 90 % of the runs of sources that it was not fitted on, by more than a standard error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
from accuracy_findings import COVERAGE, Findings, Floor, floor_of, measure
from accuracy_page import page

from parallelsim.report.scatter import scatter
from parallelsim.residuals import REGIMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
RESIDUALS = ROOT / "parallelsim" / "residuals.json"
FLOOR = ROOT / "benchmarks" / "accuracy_floor.json"
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*")
FITTED_TOLERANCE = 0.02
"""Relative difference of a half-width above which the packaged one is stale."""


def residuals_document(found: Findings) -> dict[str, object]:
    """What ``parallelsim/residuals.json`` holds."""
    fits = found.fits
    return {
        "source": (
            "benchmarks/accuracy.py on published training runs; sources and coverage in "
            "docs/accuracy.md; hierarchical conformal quantiles, arXiv:2306.06342"
        ),
        "date": datetime.date.today().isoformat(),
        "level": 0.80,
        "other_factor": round(found.fit.other_factor, 3),
        "regimes": {
            regime.name: {
                "half_width": round(width.half_width, 4),
                "rows": width.rows,
                "sources": width.sources,
                "basis": width.basis,
            }
            for regime, width in found.fit.widths.items()
        },
        "fits": {
            "memory_use_frac": [round(float(u), 3) for u in fits.use],
            "probability": [round(float(p), 3) for p in fits.probability],
            "runs": [int(n) for n in fits.runs],
            "failed": [int(n) for n in fits.failed],
            "sources": len(found.fits_sources),
        },
    }


def stale_residuals(found: Findings) -> list[str]:
    """How the packaged numbers differ from what the table gives now."""
    held, now = json.loads(RESIDUALS.read_text()), residuals_document(found)
    messages = []
    for regime in REGIMES:
        old = held["regimes"][regime.name]["half_width"]
        new = found.fit.widths[regime].half_width
        if abs(old / new - 1) > FITTED_TOLERANCE:
            messages.append(f"residuals.json: {regime.name}: {old:.3f}, now {new:.3f}")
    for key in ("memory_use_frac", "probability"):
        old, new = (np.array(document["fits"][key]) for document in (held, now))
        if old.shape != new.shape or np.abs(old - new).max() > FITTED_TOLERANCE:
            messages.append(f"residuals.json: the table of P(fits) is stale ({key})")
    return messages


def page_differences(old: str, new: str) -> list[str]:
    """Lines whose words differ, or whose numbers differ by more than the last digit shown."""
    before, after = old.splitlines(), new.splitlines()
    if len(before) != len(after):
        return [f"docs/accuracy.md has {len(before)} lines, regenerated {len(after)}"]
    different = []
    for number, (a, b) in enumerate(zip(before, after, strict=True), 1):
        same = NUMBER.sub("#", a) == NUMBER.sub("#", b)
        pairs = zip(NUMBER.findall(a), NUMBER.findall(b), strict=False)
        if not same or not all(_close(x, y) for x, y in pairs):
            different.append(f"docs/accuracy.md:{number}: {a.strip()!r}, now {b.strip()!r}")
    return different


def _close(a: str, b: str) -> bool:
    decimals = len(a.rstrip(",.").partition(".")[2])
    x, y = (float(text.replace(",", "").rstrip(".")) for text in (a, b))
    return abs(x - y) <= 1.01 * 10.0**-decimals if decimals else x == y


def coverage_failures(found: Findings) -> list[str]:
    """Regimes whose intervals hold too few or too many runs of left-out sources."""
    low, high = COVERAGE
    return [
        f"{row.name}: the interval holds {row.share:.1%} of {row.rows} rows, "
        f"expected {low:.0%} to {high:.0%}"
        for row in found.outside()
    ]


def broken_floor(floor: Floor, now: Floor) -> list[str]:
    """Figures that are worse than the floor; a figure that is gone is broken too."""
    messages = []
    for name, (limit, sign) in floor.items():
        value = now[name][0] if name in now else math.nan
        if not sign * value <= sign * limit:
            messages.append(f"floor: {name} is {value:.4g}, at least as good as {limit:g} expected")
    return messages


def read_floor() -> Floor:
    """The committed floor, empty where there is none."""
    if not FLOOR.exists():
        return {}
    data = json.loads(FLOOR.read_text())
    return {name: (value, +1) for name, value in data["at_most"].items()} | {
        name: (value, -1) for name, value in data["at_least"].items()
    }


def floor_text(floor: Floor) -> str:
    """The floor as a file."""
    document = {
        key: {name: value for name, (value, sign) in floor.items() if sign == wanted}
        for key, wanted in (("at_most", +1), ("at_least", -1))
    }
    return json.dumps(document, indent=2) + "\n"


def tightened(old: Floor, new: Floor, *, accept_worse: bool) -> Floor:
    """The better of both, or the new one."""
    if accept_worse:
        return new
    return {
        name: value if name not in old else min(old[name], value, key=lambda v: v[1] * v[0])
        for name, value in new.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", help="measured runs, as 'parallelsim validate' reads them")
    parser.add_argument("--output", metavar="PAGE.md", help="write the page and all that follows")
    parser.add_argument("--check", action="store_true", help="compare and enforce")
    parser.add_argument("--accept-worse", action="store_true", help="let the floor loosen")
    options = parser.parse_args()
    if bool(options.output) == options.check:
        parser.error("give either --output or --check")
    found = measure(options.table)
    achieved = floor_of(found)
    problems = coverage_failures(found)
    if options.check:
        problems += stale_residuals(found) + page_differences(PAGE.read_text(), page(found))
        problems += broken_floor(read_floor(), achieved)
    else:
        problems += [] if options.accept_worse else broken_floor(read_floor(), achieved)
        write(found, Path(options.output), accept_worse=options.accept_worse)
    for problem in problems:
        print(problem, file=sys.stderr)
    families, mape, median = found.validation.family_mean(found.validation.scored)
    print(
        f"{len(found.validation.scored)} rows scored; mean over {families} sources: step time MAPE "
        f"{100 * mape:.2f} %, median {100 * median:.2f} %; "
        f"{'no problem' if not problems else f'{len(problems)} problems'}"
    )
    return int(bool(problems))


def write(found: Findings, output: Path, *, accept_worse: bool) -> None:
    """All files."""
    output.write_text(page(found))
    RESIDUALS.write_text(json.dumps(residuals_document(found), indent=2, allow_nan=False) + "\n")
    rounded = floor_of(found, with_margin=True)
    floor = tightened(read_floor(), rounded, accept_worse=accept_worse)
    FLOOR.write_text(floor_text(floor))
    output.with_suffix(".png").write_bytes(scatter(found.validation, "png"))


if __name__ == "__main__":
    sys.exit(main())
