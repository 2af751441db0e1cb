"""Reading and writing YAML and JSON: plain data only, bounded in every direction.

Numbers follow YAML 1.2's core schema, not 1.1: ``1e6`` is a number, ``yes`` and ``010`` are text;
whole numbers may hold underscores. Keys are always text. Anchors, aliases, tags, directives and
second documents are refused, and so are duplicate keys: each is a way to read something else than
what is written.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from parallelsim.errors import OutputError, SpecError

MAX_FILE_BYTES = 4 * 1024**2
MAX_DEPTH = 50
MAX_NODES = 200_000
MAX_WHOLE_NUMBER = 2**53
"""Beyond it a float can no longer count, and JSON readers disagree."""

_INT = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"(?i)[-+]?\.inf|\.nan")
_NAMES: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        OutputError: the file cannot be read.
        SpecError: it is not a bounded, plain YAML mapping; one line with file, key and reason.
    """
    return parse_yaml(_read_text(path), str(path))


def parse_yaml(text: str, file: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; ``file`` names it in errors (see :func:`read_yaml`)."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if text.startswith("%") or "\n%" in text:
        raise SpecError("directives (%) are not accepted", file=shown_file(file))
    try:
        data = _build(yaml.parse(text, Loader=loader), file)
    except yaml.YAMLError as error:
        raise SpecError(f"not valid YAML: {_yaml_problem(error)}", file=shown_file(file)) from None
    except UnicodeError:
        raise SpecError("not valid Unicode text", file=shown_file(file)) from None
    return _checked(data, file)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object that a JSON file holds, under the same bounds as :func:`read_yaml`.

    Raises:
        OutputError: the file cannot be read.
        SpecError: it is not a bounded JSON object.
    """
    return parse_json(_read_text(path), str(path))


def parse_json(text: str, file: str) -> dict[str, Any]:
    """The object that a JSON text holds; ``file`` names it in errors (see :func:`read_json`)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise SpecError("duplicate key", file=shown_file(file), key=shown_key([key]))
                seen.add(key)
        return mapping

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_int=_whole_number)
    except RecursionError:
        raise SpecError(f"nested deeper than {MAX_DEPTH}", file=shown_file(file)) from None
    except ValueError as error:
        raise SpecError(f"not valid JSON: {error}", file=shown_file(file)) from None
    return _checked(data, file)


def dump_yaml(data: Any) -> str:
    """Plain data as block-style YAML that :func:`read_yaml` reads back equal, keys in order."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes text that would read as something else in quotes, and never an alias."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        quoted = not value.isprintable() or not isinstance(_scalar(value), str)
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style='"' if quoted else None
        )

    Dumper.add_representer(str, text)
    dumped = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(dumped)


def require_sources(data: dict[str, Any], file: str) -> None:
    """Refuse numbers without origin.

    Every mapping that holds a number (itself or in a list) needs a non-empty text ``source`` in
    itself or in an enclosing mapping.

    Raises:
        SpecError: the first mapping that has none.
    """
    pending: list[tuple[list[str | int], dict[str, Any]]] = [([], data)]
    while pending:
        path, mapping = pending.pop()
        source = mapping.get("source")
        if isinstance(source, str) and source.strip():
            continue
        for key, value in mapping.items():
            for leaf_path, leaf in _outside_mappings([*path, key], value):
                if isinstance(leaf, dict):
                    pending.append((leaf_path, leaf))
                elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
                    message = "a number without a source; add 'source: ...' beside it or above"
                    message += " (for your own numbers: 'source: own measurement')"
                    raise SpecError(message, file=shown_file(file), key=shown_key(leaf_path))


def shown(value: Any) -> str:
    """A value as it may appear in a one-line message: printable, at most 60 characters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**30:
        return "a huge number"
    text = repr(value[:80]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def shown_key(path: Iterable[str | int]) -> str:
    """A path of keys as ``architecture.blocks[0].repeat``, printable and bounded."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.isprintable() and part else repr(part)
            text += ("." if text else "") + (name if len(name) <= 60 else name[:57] + "...")
    return text if len(text) <= 200 else text[:197] + "..."


def shown_file(path: str | Path) -> str:
    """A file name as it may appear in a one-line message."""
    text = str(path)
    text = text if text.isprintable() and text else repr(text)
    return text if len(text) <= 200 else "..." + text[-197:]


def in_file(error: SpecError, file: str) -> SpecError:
    """The same error with the file named in front, for checks that do not know the file."""
    named = SpecError(str(error), file=shown_file(file))
    named.key = error.key
    return named


def _read_text(path: str | Path) -> str:
    file = shown_file(path)
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode) and not str(path).startswith(("/dev/", "/proc/")):
            raise OutputError(f"{file}: is a named pipe, expected a file")
        with open(path, "rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{file}: cannot read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SpecError(f"larger than {MAX_FILE_BYTES // 1024**2} MiB", file=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"not UTF-8 text (byte {error.start})", file=file) from None


def _build(events: Iterable[Any], file: str) -> Any:
    """Plain data from parser events, without recursion.

    A stack entry is (container, key waiting for its value or None); the root container is a list.
    """
    root: list[Any] = []
    stack: list[tuple[Any, list[str]]] = [(root, [])]
    num_nodes = 0

    def refuse(message: str, event: Any) -> SpecError:
        return SpecError(f"{message} (line {event.start_mark.line + 1})", file=shown_file(file))

    for event in events:
        kind = type(event).__name__
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            stack.pop()
            continue
        if kind == "AliasEvent" or getattr(event, "anchor", None) is not None:
            raise refuse("anchors and aliases are not accepted: write the value out", event)
        if kind not in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent"):
            if kind == "DocumentStartEvent" and root:
                raise refuse("a second document", event)
            continue
        if event.tag is not None:
            raise refuse(f"tag {shown(event.tag)} is not accepted", event)
        num_nodes += 1
        if num_nodes > MAX_NODES:
            raise refuse(f"more than {MAX_NODES} values", event)
        container, waiting = stack[-1]
        if isinstance(container, dict) and not waiting:
            if kind != "ScalarEvent":
                raise refuse("a key must be text", event)
            if event.value in container:
                raise refuse(f"duplicate key {shown(event.value)}", event)
            waiting.append(event.value)
            continue
        value: Any = {} if kind == "MappingStartEvent" else []
        if kind == "ScalarEvent":
            value = _scalar(event.value) if event.implicit[0] else event.value
        else:
            if len(stack) > MAX_DEPTH:
                raise refuse(f"nested deeper than {MAX_DEPTH}", event)
            stack.append((value, []))
        if isinstance(container, dict):
            container[waiting.pop()] = value
        else:
            container.append(value)
    return root[0] if root else None


def _scalar(text: str) -> Any:
    """What an unquoted scalar means: true, false, null, a number, or the text itself."""
    if text in _NAMES:
        return _NAMES[text]
    if _INT.fullmatch(text):
        return _whole_number(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    return math.nan if _NOT_FINITE.fullmatch(text) else text


def _whole_number(text: str) -> int | float:
    """The int; infinity, which :func:`_checked` refuses, for more digits than any number needs."""
    return int(text) if len(text) <= 40 else math.inf


def _checked(data: Any, file: str) -> dict[str, Any]:
    """The document, if it is a mapping within depth and number limits."""
    name = shown_file(file)
    if not isinstance(data, dict):
        raise SpecError(f"expected a mapping of keys to values, got {shown(data)}", file=name)
    pending: list[tuple[list[str | int], Any]] = [([], data)]
    num_nodes = 0
    while pending:
        path, value = pending.pop()
        num_nodes += 1
        if len(path) > MAX_DEPTH or num_nodes > MAX_NODES:
            limit = (
                f"nested deeper than {MAX_DEPTH}" if len(path) > MAX_DEPTH else "too many values"
            )
            raise SpecError(limit, file=name, key=shown_key(path))
        if isinstance(value, dict):
            pending.extend(([*path, str(key)], item) for key, item in value.items())
        elif isinstance(value, list):
            pending.extend(([*path, index], item) for index, item in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise SpecError("not a finite number in range", file=name, key=shown_key(path))
        elif isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
            message = "whole numbers beyond 2**53 are not accepted"
            raise SpecError(message, file=name, key=shown_key(path))
    return data


def _outside_mappings(path: list[str | int], value: Any) -> Iterator[tuple[list[str | int], Any]]:
    """The value itself, or what a list holds at any depth, down to mappings."""
    if not isinstance(value, list):
        yield path, value
        return
    for index, item in enumerate(value):
        yield from _outside_mappings([*path, index], item)


def _yaml_problem(error: Exception) -> str:
    """The parser's complaint in one line, with its line number."""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    line = f" (line {mark.line + 1})" if mark is not None else ""
    text = " ".join(str(problem).split())
    return (text if text.isprintable() else ascii(text))[:160] + line
