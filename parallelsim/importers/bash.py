"""The command that a bash script would start, found without a shell.

Understood: variables with their defaults, arrays, quotes, line continuations, arithmetic, ``if``,
``case``, functions, ``&&`` and ``||``, here-documents for another shell, ``bash -c "..."``. Files
that a condition asks for are taken to be there. No command is run, no file sourced, no loop
followed: notes say where, and values that would come from there are marked as unset.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from parallelsim.errors import SpecError
from parallelsim.importers.bash_expand import Variables, unset_names, without_unset
from parallelsim.importers.bash_words import Token, tokens

MAX_DEPTH = 20
"""Functions and shells inside each other."""
SHELLS = ("bash", "sh", "sbatch", "srun")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\[[^]]+\])?)(\+?)=(.*)", re.S)
_ELEMENT = re.compile(r"\[([^]]+)\]=(.*)", re.S)
"""Of an associative array."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PREFIXES = ("exec", "time", "nohup", "then", "else", "do", "{", "}", "!")
_NO_COMMANDS = ("set", "echo", "mkdir", "cd", "shift", "read", "printf", "pushd", "popd", "return")
_OWN_ARGUMENTS = ("$#", "$@", "getopts")
"""In the conditions of loops over what a script is called with, of which there is nothing."""
_FAILING = ("false", "command", "type", "which", "grep", "nvidia-smi", "diff")
"""Commands that are taken to fail where a condition asks them."""
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


@dataclass(frozen=True)
class Command:
    """Words of a command, with unset values marked, and the line that it starts in."""

    words: tuple[str, ...]
    line: int


@dataclass
class Script:
    """What the script does, as far as words go."""

    file: str
    variables: Variables
    is_wanted: Callable[[Sequence[str]], bool]
    found: list[Command] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)
    """Here-documents that no shell reads, as they reach a file."""
    notes: list[str] = field(default_factory=list)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    depth: int = 0


class _ExitError(Exception):
    """The script ends here."""


def commands(
    text: str, file: str, environment: Mapping[str, str], is_wanted: Callable[[Sequence[str]], bool]
) -> Script:
    """The wanted commands of a script, and what was not followed.

    Raises:
        SpecError: the script cannot be read.
    """
    script = Script(file, Variables(environment), is_wanted)
    _run(script, text)
    return script


def _run(script: Script, text: str) -> None:
    with contextlib.suppress(_ExitError):
        _Runner(script, tokens(text, script.file)).run()


class _Runner:
    """Walks over tokens; where ``active`` is false nothing is done."""

    def __init__(self, script: Script, words: list[Token]) -> None:
        self.script, self.tokens, self.at = script, words, 0
        self.active, self.status, self.last = True, True, ""

    def run(self) -> None:
        while self.at < len(self.tokens):
            self._list(())

    def _peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _note(self, line: int, what: str) -> None:
        note = f"line {line}: {what}"
        if note not in self.script.notes:
            self.script.notes.append(note)

    def _list(self, endings: tuple[str, ...]) -> str:
        """Commands up to one of the ending words, which is taken and returned; "" at the end."""
        while token := self._peek():
            if token.kind in ("word", "op") and token.text in endings:
                self.at += 1
                return token.text
            self._command()
        return ""

    def _command(self) -> None:
        token = self.tokens[self.at]
        if token.kind == "end" or (token.kind == "op" and token.text not in ("&&", "||")):
            self.at += 1
        elif token.kind == "op":
            self.at += 1
            self._skip_ends()
            self._guarded((token.text == "&&") == self.status)
        elif token.kind in ("here", "verbatim"):
            self.at += 1
            if self.active:
                expands = token.kind == "here"
                text = self.script.variables.quoted(token.text) if expands else token.text
                if self.last in SHELLS:
                    self._inner(text)
                else:
                    self.script.documents.append(text)
        elif token.kind == "arithmetic":
            self.at += 1
            value = self.script.variables.calculated(token.text, assigns=self.active)
            self.status = value not in ("0", "") and not unset_names(value)
        elif token.text in ("if", "case", "for", "while", "until", "select"):
            self.at += 1
            {"if": self._if, "case": self._case}.get(token.text, self._loop)(token)
        elif token.text == "{":
            self.at += 1
            self._list(("}",))
        elif self._is_function(token):
            self._function(token)
        else:
            self._simple()

    def _skip_ends(self) -> None:
        while (token := self._peek()) and token.kind == "end":
            self.at += 1

    def _guarded(self, active: bool) -> None:
        """The next command, run or not."""
        before, status = self.active, self.status
        self.active = before and active
        if self._peek():
            self._command()
        self.active = before
        if not active:
            self.status = status

    def _if(self, token: Token) -> None:
        outer, taken = self.active, False
        ending = "if"
        while ending in ("if", "elif"):
            self.active = outer and not taken
            self._list(("then",))
            holds = self.status and self.active
            self.active = holds
            ending = self._list(("elif", "else", "fi"))
            taken = taken or holds
        if ending == "else":
            self.active = outer and not taken
            ending = self._list(("fi",))
        self.active, self.status = outer, True
        if not ending:
            raise SpecError(f"the if of line {token.line} has no fi", file=self.script.file)

    def _case(self, token: Token) -> None:
        outer, taken = self.active, False
        word = self._peek()
        value = without_unset(self.script.variables.text(word.text)) if word else ""
        self.at += 2  # the word and "in"
        while True:
            self._skip_ends()
            first = self._peek()
            if first is None:
                raise SpecError(f"the case of line {token.line} has no esac", file=self.script.file)
            if first.text == "esac":
                self.at += 1
                break
            matches = False
            while (pattern := self._peek()) and pattern.text != ")":
                if pattern.kind == "word":
                    matches |= fnmatchcase(value, self.script.variables.text(pattern.text))
                self.at += 1
            self.at += 1
            self.active = outer and matches and not taken
            taken = taken or matches
            if self._list((";;", "esac")) == "esac":
                break
        self.active, self.status = outer, True

    def _loop(self, token: Token) -> None:
        """Skip a loop. One over the script's own arguments has nothing to do."""
        depth, start = 1, self.at
        while depth and (inner := self._peek()):
            self.at += 1
            if inner.kind == "word" and inner.text in ("for", "while", "until", "select"):
                depth += self._begins(self.at - 1)
            elif inner.kind == "word" and inner.text == "done":
                depth -= 1
        condition = "".join(t.text for t in self.tokens[start : start + 8])
        if self.active and not any(words in condition for words in _OWN_ARGUMENTS):
            self._note(token.line, f"the {token.text} loop is not followed")

    def _begins(self, at: int) -> bool:
        before = self.tokens[at - 1]
        return before.kind in ("end", "op") or before.text in ("do", "then", "else")

    def _is_function(self, token: Token) -> bool:
        after = [(t.kind, t.text) for t in self.tokens[self.at + 1 : self.at + 3]]
        return token.text == "function" or after == [("op", "("), ("op", ")")]

    def _function(self, token: Token) -> None:
        name = token.text
        self.at += 1
        if name == "function":
            name = self.tokens[self.at].text if self._peek() else ""
            self.at += 1
        while (token_ := self._peek()) and token_.text in ("(", ")", "\n"):
            self.at += 1
        start, depth = self.at, 0
        while inner := self._peek():
            self.at += 1
            depth += {"{": 1, "}": -1}.get(inner.text, 0) if inner.kind == "word" else 0
            if depth == 0:
                break
        if self.active:
            self.script.functions[name] = self.tokens[start + 1 : self.at - 1]

    def _simple(self) -> None:
        """Assignments and the words of one command."""
        variables, words = self.script.variables, list[str]()
        line, is_command = self.tokens[self.at].line, False
        while (token := self._peek()) and token.kind in ("word", "array"):
            self.at += 1
            match = _ASSIGNMENT.fullmatch(token.text)
            after = self._peek()
            declares = bool(words) and words[0] in _DECLARES
            if after and after.kind == "array" and match:
                self.at += 1
                self._array(match[1], append=bool(match[2]))
            elif match and (not is_command or declares):
                if self.active:
                    variables.put(match[1], variables.text(match[3]), append=bool(match[2]))
            elif not is_command and token.text in _PREFIXES:
                continue
            elif token.text in ("[[", "[", "test") and not is_command:
                self._test(token)
                return
            else:
                is_command = True
                words += variables.fields(token.text) if self.active else []
        if self.active and words:
            self._execute(words, line)

    def _array(self, name: str, *, append: bool) -> None:
        values: list[str] = []
        while token := self._peek():
            self.at += 1
            if token.kind == "op" and token.text == ")":
                break
            element = _ELEMENT.fullmatch(token.text)
            if element and self.active:
                key, value = map(self.script.variables.text, element.groups())
                self.script.variables.put(f"{name}[{key}]", value)
            elif token.kind == "word" and self.active:
                values += self.script.variables.fields(token.text)
        if self.active:
            self.script.variables.put(name, values, append=append)

    def _test(self, token: Token) -> None:
        ending = {"[[": "]]", "[": "]"}.get(token.text, "")
        parts: list[str] = []
        line = token.line
        while (inner := self._peek()) and inner.kind != "end":
            if not ending and inner.kind == "op":
                break
            self.at += 1
            if inner.kind == "word" and inner.text == ending:
                break
            if inner.kind == "word":
                text = self.script.variables.text(inner.text)
                parts.append(text if inner.text not in ("!",) else "!")
            else:
                parts.append(inner.text)
        if self.active:
            self.status = self._holds(parts, line)

    def _holds(self, parts: list[str], line: int) -> bool:
        """The value of a condition's words."""
        for joint, every in (("||", False), ("-o", False), ("&&", True), ("-a", True)):
            if joint in parts:
                at = parts.index(joint)
                sides = (self._holds(side, line) for side in (parts[:at], parts[at + 1 :]))
                return all(sides) if every else any(sides)
        words = [without_unset(part) for part in parts if part not in ("(", ")")]
        if words[:1] == ["!"]:
            return not self._holds(parts[1:], line)
        if len(words) == 1:
            return bool(words[0])
        if len(words) == 2 and re.fullmatch("-[a-z]", words[0]):
            if words[0] in ("-n", "-z"):
                return bool(words[1]) == (words[0] == "-n")
            if words[0] == "-v":
                return self.script.variables.get(words[1]) is not None
            return True  # files are taken to be there
        if len(words) == 3 and words[1] in ("=", "==", "!="):
            return fnmatchcase(words[0], words[2]) == (words[1] != "!=")
        if len(words) == 3 and words[1] in _COMPARISONS:
            numbers = [re.fullmatch(r"-?[0-9]{1,18}", w) for w in (words[0], words[2])]
            if all(numbers):
                return bool(_COMPARISONS[words[1]](int(words[0]), int(words[2])))
        shown = " ".join(words)[:60]
        self._note(line, f"the condition {shown!r} cannot be decided here: taken as false")
        return False

    def _execute(self, words: list[str], line: int) -> None:
        name = self.last = words[0].rsplit("/", 1)[-1]
        self.status = name not in _FAILING
        script = self.script
        if name == "exit":
            raise _ExitError
        if name in ("source", "."):
            self._note(line, f"{' '.join(map(without_unset, words))[:60]!r} is not followed")
        elif name == "unset":
            for variable in words[1:]:
                script.variables.values.pop(variable, None)
        elif name in script.functions and script.depth < MAX_DEPTH:
            script.depth += 1
            _Runner(script, script.functions[name]).run()
            script.depth -= 1
        elif name == "eval":
            self._inner(" ".join(words[1:]))
        elif name == "let":
            for word in words[1:]:
                script.variables.calculated(word, assigns=True)
        elif name in (*_NO_COMMANDS, *_DECLARES):
            return
        elif script.is_wanted(words):
            script.found.append(Command(tuple(words), line))
        else:
            for word in words[1:]:
                if " " in word and script.is_wanted(_split(word)):
                    options = [w for w in words if w != word]
                    script.found.append(Command((*options, *_split(word)), line))

    def _inner(self, text: str) -> None:
        """Another shell's script, or the words of eval."""
        if self.script.depth < MAX_DEPTH:
            self.script.depth += 1
            _run(self.script, text)
            self.script.depth -= 1


def _split(text: str) -> list[str]:
    """Words of a command in a string."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()
