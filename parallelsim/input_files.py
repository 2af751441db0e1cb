"""The files behind a command's inputs, so that no output replaces one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from parallelsim.calibration_overlay import is_overlay
from parallelsim.errors import ParallelSimError


def input_files(*names: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """The files that exist behind names or paths of models, clusters, frameworks and tables.

    A folder stands for its Hugging Face configuration, an overlay also for the files that it names.
    Names of the catalogue, missing files and None are left out.
    """
    return tuple(path for name in names if name is not None for path in _files(os.fspath(name)))


def _files(name: str) -> Iterator[str]:
    try:
        path = os.path.join(name, "config.json") if os.path.isdir(name) else name
        exists = bool(name) and os.path.exists(path)
    except ValueError:  # a NUL in the name
        return
    if not exists:
        return
    yield path
    if path.endswith((".yaml", ".yml")):
        yield from _of_overlay(path)


def _of_overlay(path: str) -> Iterator[str]:
    from parallelsim.yaml_io import read_yaml

    try:
        data = read_yaml(path)
    except ParallelSimError:  # whoever reads it will say what is wrong
        return
    for key in ("base", "framework") if is_overlay(data) else ():
        other = os.path.join(os.path.dirname(path), str(data.get(key, "")))
        if os.path.isfile(other):
            yield other
