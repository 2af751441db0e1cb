"""Unit constants and how numbers are shown to people.

The code computes in SI base units (seconds, bytes, FLOPs, bytes per second); these constants appear
where a file's human unit is converted and where a number is printed.
"""

from __future__ import annotations

import math

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 1e9
TERA = 1e12
MICRO = 1e-6
MILLI = 1e-3


def format_bytes(value: float) -> str:
    """Binary units with three significant digits: ``format_bytes(3 * GIB)`` is ``'3.00 GiB'``."""
    for unit, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds, milliseconds or microseconds with three significant digits."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 0.9995:
        return f"{_three_digits(value)} s"
    if abs(value) >= 0.9995 * MILLI:
        return f"{_three_digits(value / MILLI)} ms"
    return f"{_three_digits(value / MICRO)} us"


def format_duration(value: float) -> str:
    """Seconds up to two minutes, then minutes, hours and days with three significant digits."""
    for unit, size, most in (("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if 120.0 <= value < most:
            return f"{_three_digits(value / size)} {unit}"
    return format_seconds(value) if value < 120.0 else f"{_three_digits(value / 86_400.0)} days"


def format_count(value: float) -> str:
    """Large counts as people say them: ``format_count(70_553_706_496)`` is ``'70.6 B'``."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f}"


def format_percent(fraction: float) -> str:
    """A fraction as percent with one decimal: ``format_percent(0.4231)`` is ``'42.3 %'``."""
    return f"{100 * fraction:.1f} %"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 2)}f}"
