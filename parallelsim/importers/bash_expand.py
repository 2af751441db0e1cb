"""Bash's expansions of a word: quotes, variables, arrays, arithmetic; no command is run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from parallelsim.importers.bash_words import piece_end

UNSET_BEGIN, UNSET_END = "\ue000", "\ue001"
"""Around the name of what has no value here, in the words that would have held it."""
NAME_DOLLAR = "\ue002"
"""A dollar sign in such a name."""
_UNSET = re.compile(f"{UNSET_BEGIN}([^{UNSET_END}]*){UNSET_END}")
_PARAMETER = re.compile(r"(!?)(#?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^]]*\])?(.*)", re.S)
_PLAIN = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.S)
_CHOICE = re.compile(r"([^?]+)\?([^?:]+):([^?]+)")
_NUMBER = re.compile(r"[0-9A-Za-z_+\-*/%()<>=!&| \t\n,]*")
_NO_NUMBER = re.compile(r"\b\d+[A-Za-wyz_]")
MAX_NUMBER = 10**18
MAX_POWER = 64
MAX_VALUE = 1 << 20
"""Characters of one value."""
_OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    ast.Pow: lambda a, b: a ** min(max(b, 0), MAX_POWER),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def unset(name: str) -> str:
    """What stands for a value that is not known here."""
    inner = without_unset(name).replace("$", NAME_DOLLAR).replace("`", "'")
    return f"{UNSET_BEGIN}{inner}{UNSET_END}"


def unset_names(text: str) -> list[str]:
    """Of the values in a text that are not known here: ``$NNODES``, ``$(hostname)``."""
    return [name.replace(NAME_DOLLAR, "$") for name in _UNSET.findall(text)]


def without_unset(text: str) -> str:
    """The text as bash would have it: what is not set is empty."""
    return _UNSET.sub("", text)


@dataclass
class Variables:
    """Values by name; an array's are a list. The environment is behind them."""

    environment: Mapping[str, str]
    arguments: list[str] = field(default_factory=list)
    """Of the script, or of the function that runs: ``$1`` and so on."""
    values: dict[str, str | list[str]] = field(default_factory=dict)

    def get(self, name: str) -> str | list[str] | None:
        """The value, or None."""
        if name.isdecimal():
            place = int(name[:9]) - 1
            return self.arguments[place] if 0 <= place < len(self.arguments) else None
        if name in self.values:
            return self.values[name]
        return self.environment.get(name)

    def put(self, name: str, value: str | list[str], *, append: bool = False) -> None:
        """Set or extend a value, as ``NAME=`` and ``NAME+=`` do."""
        if append:
            old = self.get(name)
            if isinstance(value, list):
                value = (old if isinstance(old, list) else [old] if old else []) + value
            elif isinstance(old, list):
                value = [*old[:-1], (old[-1] if old else "") + value]
            else:
                value = (old or "") + value
        if sum(map(len, value)) <= MAX_VALUE:
            self.values[name] = value

    def fields(self, word: str) -> list[str]:
        """The words that a written word becomes."""
        found = _Fields()
        self._expand(word, found, quoted=False)
        return found.ended()

    def text(self, word: str) -> str:
        """The one text that a written word becomes, as in an assignment."""
        found = _Fields(splits=False)
        self._expand(word, found, quoted=False)
        return " ".join(found.ended())

    def quoted(self, text: str) -> str:
        """A text between double quotes, or in a here-document."""
        found = _Fields(splits=False)
        self._expand(text, found, quoted=True)
        return " ".join(found.ended())

    def _expand(self, word: str, found: _Fields, *, quoted: bool) -> None:
        at = 0
        while at < len(word):
            end = min(piece_end(word, at), len(word))
            if quoted and word[at] in "'\"":
                end = at + 1
            piece = word[at:end]
            at = end
            if piece[0] == "\\" and len(piece) > 1:
                kept = quoted and piece[1] not in '$`"\\\n'
                found.add(piece if kept else "" if piece[1] == "\n" else piece[1])
            elif piece[0] == "'" and not quoted:
                found.add(piece[1:-1])
            elif piece[0] == '"' and not quoted:
                found.add("")
                self._expand(piece[1:-1], found, quoted=True)
            elif piece[0] == "`":
                found.add(unset(f"`{piece[1:-1][:40]}`"))
            elif piece.startswith("$(("):
                found.add_split(self.arithmetic(piece[3:-2]), quoted)
            elif piece.startswith("$["):
                found.add_split(self.arithmetic(piece[2:-1]), quoted)
            elif piece.startswith("$("):
                found.add(unset(piece[:40]))
            elif piece.startswith("${"):
                found.add_all(self._parameter(piece[2:-1]), quoted)
            elif piece == "$" and (match := _PLAIN.match(word, at - 1)):
                at = match.end()
                found.add_all(self._parameter(match[1]), quoted)
            else:
                found.add(piece)

    def _parameter(self, text: str) -> list[str] | str:
        """``NAME``, ``NAME:-word``, ``NAME[@]`` and the like; a list for all of an array."""
        match = _PARAMETER.fullmatch(text)
        if not match:
            return unset(f"${{{text[:40]}}}")
        indirect, length, name, index, rest = match.groups()
        if length and name in ("#", "@", "*"):
            return str(len(self.arguments))
        if indirect:
            name = self.text(f"${name}") or name
        value = self._value(name, index)
        if length:
            return str(len(value or ""))
        if rest:
            return self._changed(name, value, rest)
        return unset(f"${name}") if value is None else value

    def _value(self, name: str, index: str | None) -> str | list[str] | None:
        if name in ("@", "*"):
            return list(self.arguments)
        if name == "#":
            return str(len(self.arguments))
        value = self.get(name)
        if index is None:
            return (value[0] if value else None) if isinstance(value, list) else value
        values = value if isinstance(value, list) else [] if value is None else [value]
        if index[1:-1] in ("@", "*"):
            return list(values)
        element = self.get(f"{name}[{self.text(index[1:-1])}]")
        if element is not None:
            return element
        number = self.arithmetic(index[1:-1])
        inside = number.isdigit() and int(number) < len(values)
        return values[int(number)] if inside else None

    def _changed(self, name: str, value: str | list[str] | None, rest: str) -> list[str] | str:
        """The value with an operator behind its name."""
        plain = " ".join(value) if isinstance(value, list) else value
        is_empty = plain is None or (rest[0] == ":" and not without_unset(plain))
        what = rest.removeprefix(":")
        other = what[1:]
        if what[:1] in ("-", "="):
            if not is_empty and value is not None:
                return value
            default = self.text(other)
            if what[0] == "=":
                self.put(name, default)
            return default
        if what[:1] == "+":
            return "" if is_empty else self.text(other)
        if what[:1] == "?":
            return unset(f"${name}") if is_empty or value is None else value
        if plain is None:
            return unset(f"${name}")
        return self._cut(plain, rest)

    def _cut(self, value: str, rest: str) -> str:
        """``#``, ``##``, ``%``, ``%%``, ``/``, ``//``, ``,,`` and ``^^``."""
        if rest in ("^^", ",,"):
            return value.upper() if rest == "^^" else value.lower()
        if rest[0] in "#%":
            pattern = self.text(rest.lstrip(rest[0]))
            sizes = range(len(value) + 1)
            is_longest = rest[:2] in ("##", "%%")
            for size in reversed(sizes) if is_longest else sizes:
                part = value[:size] if rest[0] == "#" else value[len(value) - size :]
                if fnmatchcase(part, pattern):
                    return value[size:] if rest[0] == "#" else value[: len(value) - size]
            return value
        if rest[0] == "/":
            old, _, new = rest.lstrip("/").partition("/")
            return value.replace(self.text(old), self.text(new), -1 if rest[:2] == "//" else 1)
        return unset(f"${{...{rest[:20]}}}")

    def calculated(self, text: str, *, assigns: bool) -> str:
        """The value of ``((text))`` or ``let text``, which may set a variable."""
        match = _SET.fullmatch(text)
        if not match:
            return self.arithmetic(text)
        name, sign, other = match.groups()
        value = self.arithmetic(f"{name} {sign} ({other})" if sign else other)
        if assigns:
            self.put(name, value)
        return value

    def arithmetic(self, text: str) -> str:
        """The value of ``$((text))``; unset where a value in it is not known."""
        expanded = self.quoted(text)
        names = expanded
        if not unset_names(expanded):
            names = re.sub(r"(?<!\w)[A-Za-z_]\w*", lambda m: self.text(f"${m[0]}") or "0", expanded)
        if unknown := unset_names(names):
            return unset(unknown[0])
        if choice := _CHOICE.fullmatch(names):
            condition, then, other = choice.groups()
            return self.arithmetic(then if self.arithmetic(condition) != "0" else other)
        try:
            if len(names) > 1000 or not _NUMBER.fullmatch(names) or _NO_NUMBER.search(names):
                raise ValueError
            written = re.sub(r"(?<![0-9])0+(?=[0-9])", "", names)
            value = _number(ast.parse(written.replace("/", "//").strip(), mode="eval").body)
        except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
            return unset(f"$(({text[:40]}))")
        return str(value)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        value = int(node.value)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = _OPERATIONS[type(node.ops[0])]
        value = int(compare(_number(node.left), _number(node.comparators[0])))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_number(node.operand)
    else:
        raise ValueError
    if abs(value) > MAX_NUMBER:
        raise ValueError
    return value


class _Fields:
    """Words under construction."""

    def __init__(self, *, splits: bool = True) -> None:
        self.splits = splits
        self.done: list[str] = []
        self.current: str | None = None

    def add(self, text: str) -> None:
        self.current = (self.current or "") + text

    def add_split(self, text: str, quoted: bool) -> None:
        """A value; outside quotes its blanks separate words, and an empty one is none."""
        if quoted or not self.splits:
            self.add(text)
            return
        for index, part in enumerate(re.split(r"\s+", text)):
            if index:
                self._end()
            if part:
                self.add(part)

    def add_all(self, values: list[str] | str, quoted: bool) -> None:
        """All values of an array, each a word, or one value."""
        if isinstance(values, str):
            self.add_split(values, quoted)
            return
        if not values and self.current == "" and quoted:
            self.current = None  # "${EMPTY[@]}" is no word
        for index, value in enumerate(values):
            if index:
                self._end() if self.splits else self.add(" ")
            self.add_split(value, quoted)

    def _end(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None

    def ended(self) -> list[str]:
        self._end()
        return self.done
