"""A bash script as tokens: words with their quotes, operators, bodies of here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass

from parallelsim.errors import SpecError

OPERATORS = (";;", "&&", "||", ";", "&", "|", "(", ")")
MAX_SCRIPT = 1 << 20
"""Characters."""
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_REDIRECTION = re.compile(r"<<<|<<-?|>>|>\||<>|[<>]&|[<>]")
_CLOSING = {"(": ")", "{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word as it is written, an operator, a line's end, an array's ``(``, or a condition of
    ``((...))``.
    """

    kind: str
    """word, op, end, array, arithmetic or here (the body of a here-document)."""
    text: str
    line: int


class _Reader:
    """The text and the place in it."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.at, self.line = 0, 1
        self.tokens: list[Token] = []
        self.here: list[tuple[str, bool]] = []
        """Here-documents that begin on the next line: their ending word, and if tabs may lead."""

    def fail(self, what: str, line: int) -> SpecError:
        return SpecError(f"{what} that starts in line {line} does not end", file=self.file)

    def add(self, kind: str, text: str) -> None:
        self.tokens.append(Token(kind, text, self.line))
        self.line += text.count("\n")

    def run(self) -> list[Token]:
        text = self.text
        while self.at < len(text):
            rest = text[self.at]
            if text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif rest in " \t\r":
                self.at += 1
            elif rest == "#":
                self.at = _find(text, "\n", self.at)
            elif rest == "\n":
                self.at += 1
                self.add("end", "\n")
                self._skip_here_documents()
            elif text.startswith("((", self.at) and self._starts_command():
                self._arithmetic()
            elif text[self.at] in "<>":
                self._redirection()
            elif operator := next((op for op in OPERATORS if text.startswith(op, self.at)), ""):
                self.at += len(operator)
                self.add("op", operator)
            else:
                self._word()
        return self.tokens

    def _starts_command(self) -> bool:
        last = self.tokens[-1] if self.tokens else None
        words = ("if", "elif", "while", "until", "!")
        return last is None or last.kind in ("op", "end") or last.text in words

    def _arithmetic(self) -> None:
        end = self.text.find("))", self.at)
        if end < 0:
            raise self.fail("((", self.line)
        body = self.text[self.at + 2 : end]
        self.at = end + 2
        self.add("arithmetic", body)

    def _redirection(self) -> None:
        """Drop ``2>&1``, ``> file`` and the like; keep the body of a here-document."""
        before = self.text[self.at - 1 : self.at]
        if before.isdigit() and self.tokens and self.tokens[-1].text.isdigit():
            self.tokens.pop()  # the descriptor
        match = _REDIRECTION.match(self.text, self.at)
        sign = match[0] if match else self.text[self.at]
        self.at += len(sign)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        size = len(self.tokens)
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|<>()":
            self._word()
        target = "".join(token.text for token in self.tokens[size:])
        del self.tokens[size:]
        if sign in ("<<", "<<-"):
            self.here.append((target, sign == "<<-"))

    def _skip_here_documents(self) -> None:
        for word, tabs in self.here:
            ending = word.strip("'\"\\")
            start, line = self.at, self.line
            while True:
                if self.at >= len(self.text):
                    raise self.fail(f"the here-document << {ending[:40]}", line)
                end = _find(self.text, "\n", self.at)
                found = self.text[self.at : end]
                body, self.at = self.text[start : self.at], min(end + 1, len(self.text))
                if (found.lstrip("\t") if tabs else found) == ending:
                    break
            self.add("here" if ending == word else "verbatim", body)
            self.line += 1
        self.here.clear()

    def _word(self) -> None:
        text, start, first = self.text, self.at, self.line
        parts: list[str] = []
        while self.at < len(text) and text[self.at] not in " \t\r\n;&|<>)":
            character = text[self.at]
            if text.startswith("\\\n", self.at):
                self.at += 2
                parts.append("")
                continue
            if character == "(":
                if _ARRAY.fullmatch("".join(parts)):
                    self.tokens.append(Token("word", "".join(parts), self.line))
                    self.at += 1
                    self.tokens.append(Token("array", "(", self.line))
                    return
                break
            end = piece_end(text, self.at)
            if end > len(text):
                raise self.fail(f"{character} in {text[start : start + 40]!r}", first)
            parts.append(text[self.at : end])
            self.at = end
        if not parts:
            raise SpecError(
                f"line {first}: cannot read {text[start : start + 20]!r}", file=self.file
            )
        word = "".join(parts)
        self.tokens.append(Token("word", word, first))
        self.line += text.count("\n", start, self.at)


def piece_end(text: str, at: int) -> int:
    """Where the quoted part, the expansion or the character at ``at`` ends; beyond the text where
    it does not end.
    """
    character = text[at]
    if character == "\\":
        return at + 2 if at + 1 < len(text) else at + 1
    if character == "'":
        return _find(text, "'", at + 1) + 1
    if character == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = at + 1 if text[at] == "'" else piece_end(text, at)
        return at + 1
    if character == "`":
        return _find(text, "`", at + 1) + 1
    if character == "$" and text[at + 1 : at + 2] in _CLOSING:
        opening = text[at + 1]
        depth, at = 1, at + 2
        while at < len(text) and depth:
            if text[at] in (opening, _CLOSING[opening]):
                depth += 1 if text[at] == opening else -1
                at += 1
            else:
                at = piece_end(text, at)
        return at if depth == 0 else len(text) + 1
    return at + 1


def _find(text: str, what: str, start: int) -> int:
    """Position of ``what``, or the text's end."""
    found = text.find(what, start)
    return len(text) if found < 0 else found


def tokens(text: str, file: str) -> list[Token]:
    """The tokens of a script; comments and redirections are dropped.

    Raises:
        SpecError: a quote, an expansion or a here-document does not end; too long.
    """
    if len(text) > MAX_SCRIPT:
        raise SpecError(f"the script has more than {MAX_SCRIPT} characters", file=file)
    return _Reader(text, file).run()
