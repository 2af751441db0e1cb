"""The command that a bash script would start, found without a shell.

Understood: variables with their defaults, arrays, quotes, line continuations, arithmetic, ``if``,
``case``, functions, loops over known words, ``&&`` and ``||``, here-documents for another shell,
``bash -c "..."``. Files that a condition asks for are taken to be there. No command is run, no file
sourced: notes say where, and values that would come from there are marked as unset.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from parallelsim.errors import SpecError
from parallelsim.importers.bash_conditions import holds
from parallelsim.importers.bash_expand import Variables, unset_names, without_unset
from parallelsim.importers.bash_script import Command, ExitError, LeaveError, Script
from parallelsim.importers.bash_words import Token, tokens

MAX_DEPTH = 20
"""Functions and shells inside each other."""
MAX_TURNS = 200
"""Of all loops of a script."""
SHELLS = ("bash", "sh", "sbatch", "srun")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\[[^]]+\])?)(\+?)=(.*)", re.S)
_ELEMENT = re.compile(r"\[([^]]+)\]=(.*)", re.S)
"""Of an associative array."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_PREFIXES = ("exec", "time", "nohup", "then", "else", "do", "{", "}", "!")
_NO_COMMANDS = ("set", "echo", "mkdir", "cd", "read", "printf", "pushd", "popd", "return")
_PATTERN = re.compile(r"[*?]|\{[^}]*(?:,|\.\.)[^}]*\}")
"""Of files, or of several words: not expanded here."""
_FAILING = ("read", "getopts", "false", "command", "type", "which", "grep", "nvidia-smi", "diff")
"""Commands that are taken to fail where a condition asks them."""


def commands(
    text: str, file: str, environment: Mapping[str, str], is_wanted: Callable[[Sequence[str]], bool]
) -> Script:
    """The wanted commands of a script, and what was not followed.

    Args:
        text: bash.
        file: its name in messages.
        environment: variables that it finds; its own arguments under 1, 2 and so on.
        is_wanted: whether the words of a command are those that are looked for.

    Raises:
        SpecError: the script cannot be read.
    """
    arguments = [value for name, value in environment.items() if name.isdecimal()]
    script = Script(file, Variables(environment, arguments), is_wanted)
    _run(script, text)
    return script


def _run(script: Script, text: str) -> None:
    with contextlib.suppress(ExitError):
        _Runner(script, tokens(text, script.file)).run()


class _Runner:
    """Walks over tokens; where ``active`` is false nothing is done."""

    def __init__(self, script: Script, words: list[Token]) -> None:
        self.script, self.tokens, self.at = script, words, 0
        self.active, self.status, self.last = True, True, ""
        self.loops = 0

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
        """``while``, ``until`` and ``for NAME in WORDS``; what is in other loops is skipped."""
        end, outer = self._end_of_loop(), self.active
        name, values = self._for_words() if token.text == "for" else ("", None)
        start, turn = self.at, 0
        follows = outer and (values is not None or token.text in ("while", "until"))
        while follows and (values is None or turn < len(values)):
            self.at, self.active = start, True
            if values is not None:
                self.script.variables.put(name, values[turn])
            self._list(("do",))
            if values is None and self.status == (token.text == "until"):
                break
            turn += 1
            self.script.turns += 1
            follows = self.script.turns < MAX_TURNS
            if self._turn_ends_loop():
                break
        if outer and not follows:
            self._note(token.line, f"the {token.text} loop is not followed")
        self.at, self.active = end, outer

    def _turn_ends_loop(self) -> bool:
        """Run a loop's body; whether it ends in ``break``."""
        self.loops += 1
        try:
            self._list(("done",))
        except LeaveError as leave:
            return leave.ends
        finally:
            self.loops -= 1
        return False

    def _end_of_loop(self) -> int:
        """Position behind the loop's ``done``."""
        depth, at = 1, self.at
        while depth and at < len(self.tokens):
            inner = self.tokens[at]
            if inner.kind == "word" and inner.text in ("for", "while", "until", "select"):
                depth += self._begins(at)
            elif inner.kind == "word" and inner.text == "done":
                depth -= 1
            at += 1
        return at

    def _for_words(self) -> tuple[str, list[str] | None]:
        """(name, the values that it takes); None where they are not known here."""
        name = self._peek()
        if name is None or name.kind != "word":
            return "", None
        self.at += 1
        values: list[str] = []
        follower = self._peek()
        if follower is None or follower.text != "in":
            return name.text, list(self.script.variables.arguments)
        self.at += 1
        while (word := self._peek()) and word.kind == "word":
            self.at += 1
            found = self.script.variables.fields(word.text) if self.active else []
            if any(unset_names(value) for value in found) or _PATTERN.search(word.text):
                return name.text, None
            values += found
        return name.text, values

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
            is_word = inner.kind == "word"
            parts.append(self.script.variables.text(inner.text) if is_word else inner.text)
        if self.active:
            status = holds(parts, self.script.variables)
            if status is None:
                shown = without_unset(" ".join(parts))[:60]
                self._note(line, f"the condition {shown!r} cannot be decided here: taken as false")
            self.status = bool(status)

    def _execute(self, words: list[str], line: int) -> None:
        name = self.last = words[0].rsplit("/", 1)[-1]
        self.status = name not in _FAILING
        script = self.script
        if name == "exit":
            raise ExitError
        if name in ("source", "."):
            self._note(line, f"{' '.join(map(without_unset, words))[:60]!r} is not followed")
        elif name == "unset":
            for variable in words[1:]:
                script.variables.values.pop(variable, None)
        elif name in ("break", "continue") and self.loops:
            raise LeaveError(ends=name == "break")
        elif name == "shift":
            number = words[1] if len(words) > 1 else "1"
            del script.variables.arguments[
                : int(number) if re.fullmatch("[0-9]{1,9}", number) else 0
            ]
        elif name == "set" and words[1:2] == ["--"]:
            script.variables.arguments = words[2:]
        elif name in script.functions and script.depth < MAX_DEPTH:
            script.depth += 1
            outer, script.variables.arguments = script.variables.arguments, words[1:]
            _Runner(script, script.functions[name]).run()
            script.variables.arguments = outer
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
