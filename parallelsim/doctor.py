"""Whether this installation works: its packages, terminal, folders, catalogue and arithmetic."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import isclose
from typing import Any, Literal

OLDEST_PYTHON = (3, 11)
NEEDED = {
    "numpy": "all predictions",
    "click": "commands",
    "yaml": "plans, models and clusters in files",
    "pydantic": "checks of your own files",
    "rich": "colours and progress",
    "optuna": "--searcher bayesian",
    "jinja2": "report",
    "matplotlib": "pictures",
}
"""Modules that come with parallelsim, and what they are for."""
OPTIONAL = {
    "pandas": ("to_frame() in Python", "frames"),
    "torch": ("plan --sampler gp", "gp"),
    "scipy": ("plan --sampler gp", "gp"),
    "psycopg": ("plan --storage postgresql://...", "postgresql"),
}
"""Modules that can be added: what they are for, and the extra that brings them."""
_DISTRIBUTIONS = {"yaml": "pyyaml"}
REINSTALL = "install again: pip install --force-reinstall --no-deps parallelsim"
NARROW = 60
"""Columns of a terminal below which tables lose many of theirs."""


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    status: Literal["ok", "note", "broken"]
    """A note costs comfort, or a feature that nobody may want."""
    found: str
    advice: str = ""
    """What to do; empty where all is well."""


def checks() -> Iterator[Check]:
    """Every finding, as it is made."""
    yield _python()
    yield from (_needed(module, use) for module, use in NEEDED.items())
    yield from (_optional(module, use, extra) for module, (use, extra) in OPTIONAL.items())
    yield from _terminal()
    yield from _folders()
    yield from (_catalogue(kind) for kind in ("model", "cluster", "framework"))
    yield _arithmetic()


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        return Check("python", "broken", found, f"parallelsim needs {oldest} or later")
    return Check("python", "ok", f"{found} at {sys.executable}")


def _version(module: str) -> str:
    return version(_DISTRIBUTIONS.get(module, module))


def _needed(module: str, use: str) -> Check:
    try:
        __import__(module)
        return Check(module, "ok", _version(module))
    except Exception as error:  # damaged packages raise whatever they like
        name, words = _DISTRIBUTIONS.get(module, module), " ".join(str(error).split())
        return Check(module, "broken", f"{words}, for {use}", f"pip install --upgrade {name}")


def _optional(module: str, use: str, extra: str) -> Check:
    try:
        return Check(module, "ok", _version(module))
    except PackageNotFoundError:
        advice = f"if you want that: pip install 'parallelsim[{extra}]'"
        return Check(module, "note", f"not installed, for {use}", advice)


def _terminal() -> Iterator[Check]:
    from shutil import get_terminal_size

    width, encoding = get_terminal_size().columns, sys.stdout.encoding or "none"
    advice = "" if width >= NARROW else "tables drop columns: widen it, or set COLUMNS"
    yield Check("width", "note" if advice else "ok", f"{width} columns", advice)
    yield Check("colours", "ok", _colours())
    unicode = encoding.lower().replace("-", "") == "utf8"
    advice = "" if unicode else "names with other characters come out escaped: PYTHONUTF8=1"
    yield Check("encoding", "ok" if unicode else "note", encoding, advice)


def _colours() -> str:
    if not sys.stdout.isatty():
        return "none: the output is no terminal"
    if os.environ.get("NO_COLOR"):
        return "none: NO_COLOR is set"
    return "none: TERM is dumb" if os.environ.get("TERM") == "dumb" else "on"


def _folders() -> Iterator[Check]:
    yield _writable("this folder", os.getcwd, "go to another, or give --output a path elsewhere")
    yield _writable("temporary files", tempfile.gettempdir, "set TMPDIR to a folder of yours")
    try:
        from matplotlib import get_cachedir
    except ImportError:  # said above
        return
    yield _writable("matplotlib's cache", get_cachedir, "set MPLCONFIGDIR to a folder of yours")


def _writable(name: str, folder: Callable[[], str], advice: str) -> Check:
    """A file is made and removed: permissions alone do not tell of full or read-only disks."""
    try:
        path = folder()
        with tempfile.TemporaryFile(dir=path):
            return Check(name, "ok", f"{path} can be written")
    except OSError as error:
        return Check(name, "note", f"cannot be written: {error.strerror or error}", advice)


def _catalogue(kind: Literal["model", "cluster", "framework"]) -> Check:
    from parallelsim import catalog
    from parallelsim.errors import ParallelSimError

    names = getattr(catalog, f"{kind}_names")()
    broken = []
    for name in names:
        try:
            getattr(catalog, f"load_{kind}")(name)
        except (ParallelSimError, OSError) as error:
            broken.append(str(error))
    if broken or not names:
        return Check(f"{kind}s", "broken", "; ".join(broken) or "none", REINSTALL)
    return Check(f"{kind}s", "ok", f"{len(names)} in the catalogue")


def _arithmetic() -> Check:
    """One plan: its terms add up to its step, and it is neither impossibly fast nor slow."""
    from parallelsim.errors import ParallelSimError

    try:
        row = _row()
    except (ParallelSimError, OSError) as error:
        return Check("a plan", "broken", str(error), REINSTALL)
    words = f"llama3-8b on 8 H100: {row['step_time_s']:.2f} s a step, MFU {row['mfu']:.0%}"
    sums = isclose(sum(row["time"].values()), row["step_time_s"])
    sums = sums and isclose(sum(row["memory"].values()), row["peak_memory_bytes"])
    if sums and row["feasible"] and 0.2 < row["mfu"] < 0.7:
        return Check("a plan", "ok", words)
    return Check("a plan", "broken", f"{words}: this cannot be", REINSTALL)


def _row() -> dict[str, Any]:
    from parallelsim import catalog
    from parallelsim.plan import Plan
    from parallelsim.simulate import simulate

    model, cluster = catalog.load_model("llama3-8b"), catalog.load_cluster("hgx-h100", 8)
    plan = Plan(tp=4, dp=2, zero=1, global_batch_size=128)
    return simulate(model, cluster, catalog.load_framework("megatron-core"), plan).row(0)
