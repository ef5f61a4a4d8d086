"""A small C++ scanner: finds definitions and invocations in a file, and edits it by insertion only.

It knows what a compiler's lexer knows (comments, literals, preprocessor lines, balanced brackets)
and enough of declarations to find a function by its name. It is no front end: text that it cannot
read it leaves out, so a caller has to say what it missed.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from runner.errors import VariantError

_TOKEN = re.compile(
    r"""
    (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\(.*?(?:\)(?P=delimiter)"|\Z))
  | (?P<string>(?:u8|[uUL])?"(?:\\(?:\r\n|.)|[^"\\\n])*"?)
  | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z_]|[\w.])*)
  | (?P<word>[^\W\d]\w*)
  | (?P<newline>\n)
  | (?P<space>(?:[^\S\n]|\\\r?\n)+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
DEPTH = 200
"""Brackets in brackets: more than a source has, and few enough for one made to have many."""
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_OPENER = {closer: opener for opener, closer in _CLOSER.items()}
_PUNCTUATION = re.compile(r"[^\w\s]")
_WORD = re.compile(r"[^\W\d]\w*")
_DIRECTIVE = re.compile(r"#\s*(\w*)\s*(.*)", re.DOTALL)
_NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b|extern\s*\"\s*\"\s*\Z")
_CLASS = re.compile(r"(?:typedef\s+)?(class|struct|union|enum)\b")
_LABEL = re.compile(r"(?:public|private|protected)\s*:(?!:)")
_NAME = re.compile(r"(?:[^\W\d]\w*\s*::\s*)*(?:~\s*)?[^\W\d]\w*\s*\Z")
_QUALIFIERS = re.compile(r"(?:const|volatile|noexcept|override|final|try|mutable|&&?|\s)*\Z")
_NO_FUNCTION = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof asm catch decltype defined do else explicit for if noexcept requires "
        "return sizeof static_assert switch throw typeid while __attribute__ __declspec",
    )
)
_FILLERS = frozenset({"const", "volatile", "typename", "class", "struct", "enum", "union"})
_TYPE_WORDS = _FILLERS | frozenset(
    re.findall(r"\w+", "auto bool char double float int long short signed unsigned void wchar_t")
)


@dataclass(frozen=True)
class Insertion:
    """Text that goes before offset `at`."""

    at: int
    text: str


@dataclass(frozen=True)
class Span:
    """A half-open range of offsets."""

    start: int
    end: int


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function.

    declaration: type and name as written, on one line, without comments and default.
    type: the declaration without the name. name: empty where the parameter has none.
    name_end: offset where the name ends, or where a name would go.
    """

    declaration: str
    type: str
    name: str
    default: str
    name_end: int


@dataclass(frozen=True)
class Function:
    """One function definition.

    name is the last part of `qualified`; `start` is where its declaration begins, template header
    included; `body` runs from its opening brace to past its closing one.
    """

    name: str
    qualified: str
    start: int
    template: str
    parameters: tuple[Parameter, ...]
    body: Span


@dataclass(frozen=True)
class Invocation:
    """A name followed by arguments in parentheses: a call, a macro, or a declaration.

    span runs from the name to past the closing parenthesis; `template` holds explicit template
    arguments with their brackets.
    """

    name: str
    template: str
    span: Span
    arguments: tuple[Span, ...]


def insert(text: str, insertions: Iterable[Insertion]) -> str:
    """The text with every insertion made; those at one offset keep the order they came in."""
    parts: list[str] = []
    done = 0
    for insertion in sorted(insertions, key=lambda one: one.at):
        parts += [text[done : insertion.at], insertion.text]
        done = insertion.at
    return "".join([*parts, text[done:]])


@dataclass(frozen=True)
class _Conditional:
    at: int
    keyword: str
    never: bool


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _blank_inside(literal: str) -> str:
    """A literal without its content, so that its quotes still show where one stands."""
    quote = '"' if '"' in literal[:4] else "'"
    first = literal.index(quote)
    if len(literal) > first + 1 and literal.endswith(quote):
        return " " * first + quote + _blank(literal[first + 1 : -1]) + quote
    return " " * first + quote + _blank(literal[first + 1 :])


def _mask(text: str) -> tuple[str, list[_Conditional]]:
    """The text with comments, the content of literals and preprocessor lines blanked."""
    parts: list[str] = []
    conditionals: list[_Conditional] = []
    directive: int | None = None
    blank_line = True
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if match["raw"] is not None:
            kind = "raw"
        if kind == "newline":
            if directive is not None:
                conditionals += _conditional(text, directive, match.start())
                directive = None
            blank_line = True
            parts.append(token)
            continue
        if kind == "other" and token == "#" and blank_line:
            directive = match.start()
        if directive is not None or kind == "comment":
            parts.append(_blank(token))
        elif kind in ("raw", "string", "char"):
            parts.append(_blank_inside(token))
        else:
            parts.append(token)
        blank_line = blank_line and kind in ("space", "comment")
    if directive is not None:
        conditionals += _conditional(text, directive, len(text))
    return _blank_dead_code("".join(parts), conditionals), conditionals


def _conditional(text: str, start: int, end: int) -> list[_Conditional]:
    match = _DIRECTIVE.match(text, start, end)
    if match is None or match[1] not in {"if", "ifdef", "ifndef", "elif", "else", "endif"}:
        return []
    condition = re.sub(r"//.*|/\*.*?\*/", " ", match[2]).strip()
    return [_Conditional(start, match[1], match[1] == "if" and condition in {"0", "false"})]


def _blank_dead_code(code: str, conditionals: list[_Conditional]) -> str:
    """Blank what stands between `#if 0` and its `#else`, `#elif` or `#endif`."""
    for index, first in enumerate(conditionals):
        if not first.never:
            continue
        depth = 0
        end = len(code)
        for later in conditionals[index + 1 :]:
            if depth == 0 and later.keyword in {"elif", "else", "endif"}:
                end = later.at
                break
            depth += later.keyword.startswith("if")
            depth -= later.keyword == "endif"
        code = code[: first.at] + _blank(code[first.at : end]) + code[end:]
    return code


def _pair(code: str, conditionals: list[_Conditional]) -> dict[int, int]:
    """Closing bracket by opening bracket; every branch of a conditional starts from one depth."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    branches: list[tuple[list[int], list[int] | None, bool]] = []
    events: list[tuple[int, str, bool]] = [
        (match.start(), match.group(), False) for match in re.finditer(r"[()\[\]{}]", code)
    ]
    events += [(one.at, one.keyword, one.never) for one in conditionals]
    for at, token, never in sorted(events):
        if token in _CLOSER:
            stack.append(at)
            if len(stack) > DEPTH:
                raise VariantError(f"a source has brackets in brackets, more than {DEPTH} deep")
        elif token in _OPENER:
            depths = [i for i, opener in enumerate(stack) if code[opener] == _OPENER[token]]
            if depths:
                pairs.setdefault(stack[depths[-1]], at)
                del stack[depths[-1] :]
        elif token.startswith("if"):
            branches.append((list(stack), None, never))
        elif branches and token in ("else", "elif"):
            before, first, dead = branches[-1]
            if dead:
                branches[-1] = (before, None, False)
            else:
                branches[-1] = (before, stack if first is None else first, False)
                stack = list(before)
        elif branches and token == "endif":
            _, first, _ = branches.pop()
            stack = stack if first is None else first
    return pairs


@dataclass(frozen=True)
class Source:
    """One C++ file: its text and what the scanner sees of it (`code`, offset for offset)."""

    text: str

    @cached_property
    def _masked(self) -> tuple[str, list[_Conditional]]:
        return _mask(self.text)

    @cached_property
    def code(self) -> str:
        """The text with comments, the content of literals and preprocessor lines blanked."""
        return self._masked[0]

    @cached_property
    def pairs(self) -> dict[int, int]:
        """Offset of the closing bracket by offset of its opening one."""
        return _pair(*self._masked)

    @cached_property
    def _words(self) -> dict[str, list[int]]:
        offsets: dict[str, list[int]] = {}
        for match in _WORD.finditer(self.code):
            offsets.setdefault(match.group(), []).append(match.start())
        return offsets

    @cached_property
    def _parentheses(self) -> list[int]:
        return sorted(opener for opener in self.pairs if self.code[opener] == "(")

    @cached_property
    def newline(self) -> str:
        """How the file ends its lines."""
        return "\r\n" if "\r\n" in self.text else "\n"

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Every function definition outside other functions, in order."""
        found: list[Function] = []
        self._scan(0, len(self.code), found, None)
        return tuple(found)

    def words(self, name: str, within: Span | None = None) -> list[int]:
        """Offsets of an identifier."""
        offsets = self._words.get(name, [])
        if within is None:
            return list(offsets)
        first = bisect.bisect_left(offsets, within.start)
        return offsets[first : bisect.bisect_left(offsets, within.end)]

    def invocations(self, name: str, within: Span | None = None) -> list[Invocation]:
        """Where a name stands before parentheses, with or without template arguments."""
        found = []
        for start in self.words(name, within):
            at = self._after_space(start + len(name))
            template = ""
            if self.code[at : at + 1] == "<":
                close = self._angle_close(at, len(self.code))
                if close is None:
                    continue
                template = self.text[at : close + 1]
                at = self._after_space(close + 1)
            close = self.pairs.get(at) if self.code[at : at + 1] == "(" else None
            if close is not None:
                arguments = tuple(self.split(Span(at + 1, close)))
                found.append(Invocation(name, template, Span(start, close + 1), arguments))
        return found

    def enclosing(self, at: int) -> Invocation | None:
        """The innermost invocation whose arguments hold that offset."""
        index = bisect.bisect_left(self._parentheses, at) - 1
        while index >= 0 and self.pairs[self._parentheses[index]] <= at:
            index -= 1
        if index < 0:
            return None
        opener = self._parentheses[index]
        match = _NAME.search(self.code, 0, opener)
        if match is None:
            return None
        name_at = [one.start() for one in _WORD.finditer(self.code, match.start(), opener)][-1]
        name = self.code[name_at:opener].rstrip()
        arguments = tuple(self.split(Span(opener + 1, self.pairs[opener])))
        return Invocation(name, "", Span(name_at, self.pairs[opener] + 1), arguments)

    def statement_end(self, at: int) -> int:
        """Past the semicolon that ends what begins at that offset, or `at` where none follows."""
        match = re.compile(r"\s*;").match(self.code, at)
        return match.end() if match else at

    def top_level_start(self, at: int) -> int:
        """Where the declaration outside of every namespace begins that holds that offset."""
        outermost: list[Span] = []
        self._scan(0, len(self.code), [], outermost)
        return next((span.start for span in outermost if span.start <= at < span.end), at)

    def line_start(self, at: int) -> int:
        """Offset of the first character of a line."""
        return self.text.rfind("\n", 0, at) + 1

    def indentation(self, at: int) -> str:
        """The white space that the line of that offset starts with."""
        match = re.compile(r"[^\S\n]*").match(self.text, self.line_start(at))
        return match.group() if match else ""

    def slice(self, span: Span) -> str:
        """The text of a span."""
        return self.text[span.start : span.end]

    def trim(self, start: int, end: int) -> Span:
        """The span without white space and comments at its ends."""
        inner = self.code[start:end]
        left = len(inner) - len(inner.lstrip())
        return Span(start + left, start + max(left, len(inner.rstrip())))

    def split(self, span: Span, separator: str = ",") -> list[Span]:
        """Parts between separators that stand outside brackets and template arguments."""
        cuts = [at for at, char in self._outer(span) if char == separator]
        bounds = [span.start - 1, *cuts, span.end]
        parts = [self.trim(a + 1, b) for a, b in itertools.pairwise(bounds)]
        return [] if len(parts) == 1 and parts[0].start == parts[0].end else parts

    def _after_space(self, at: int) -> int:
        while self.code[at : at + 1].isspace():
            at += 1
        return at

    def _angle_close(self, at: int, limit: int) -> int | None:
        """Offset of the `>` that closes template arguments; None where `<` is an operator."""
        if not re.compile(r"[\w]\s*\Z").search(self.code, max(0, at - 80), at):
            return None
        depth = 0
        while at < limit:
            char = self.code[at]
            if char in _CLOSER:
                at = self.pairs.get(at, at)
            elif char == "<":
                depth += 1
            elif char == ">" and self.code[at - 1] != "-":
                depth -= 1
                if depth == 0:
                    return at
            elif char in ";)]}" or (self.code[at : at + 2] in ("&&", "||") and depth == 0):
                return None
            at += 1
        return None

    def _outer(self, span: Span) -> Iterator[tuple[int, str]]:
        """Punctuation outside brackets and template arguments; an opening bracket is yielded."""
        at = span.start
        while match := _PUNCTUATION.search(self.code, at, span.end):
            at, char = match.start(), match.group()
            close = self._angle_close(at, span.end) if char == "<" else None
            if close is None:
                yield at, char
                close = self.pairs.get(at, at)
            at = close + 1

    def _scan(self, start: int, end: int, found: list[Function], outer: list[Span] | None) -> None:
        """Collect the functions between two offsets, and the outermost declarations with a body."""
        head = at = start
        stop = re.compile(r"[;(\[{}]")
        while match := stop.search(self.code, at, end):
            here, char = match.start(), match.group()
            close = self.pairs.get(here, here)
            if char in "([":
                at = close + 1
                continue
            if char in ";}" or close == here:
                head = at = here + 1
                continue
            begin = self._declaration_start(head, here)
            kind = self._after_template(begin, here)
            function = self._function(begin, kind, here)
            scope = _NAMESPACE.match(self.code, kind, here) or _CLASS.match(self.code, kind, here)
            at = close + 1
            if function is not None:
                found.append(function)
            elif scope is not None and self.code[:here].rstrip()[-1:] != "=":
                self._scan(here + 1, close, found, None)
            else:
                continue
            if outer is not None:
                outer.append(Span(begin, close + 1))
            head = at

    def _declaration_start(self, head: int, limit: int) -> int:
        at = self.trim(head, limit).start
        while label := _LABEL.match(self.code, at, limit):
            at = self.trim(label.end(), limit).start
        return at

    def _after_template(self, at: int, limit: int) -> int:
        """Past the template headers that a declaration begins with."""
        while match := re.compile(r"template\b\s*").match(self.code, at, limit):
            if self.code[match.end() : match.end() + 1] != "<":
                return at
            close = self._angle_close(match.end(), limit)
            if close is None:
                return at
            at = self._after_space(close + 1)
        return at

    def _function(self, begin: int, head: int, brace: int) -> Function | None:
        """The function whose body opens at `brace`, if what stands before is its declaration."""
        groups: list[int] = []
        end = brace
        for at, char in self._outer(Span(head, brace)):
            if char == "=" and "operator" not in self.code[head:at]:
                return None
            if char == "(":
                groups.append(at)
            elif char == ":" and groups and ":" not in self.code[at - 1] + self.code[at + 1]:
                end = at
                break
        named = [one for one in (self._name_before(head, group) for group in groups) if one]
        chosen = next((one for one in named if one.typed), named[0] if named else None)
        if chosen is None:
            return None
        if end < brace and self.code[:brace].rstrip()[-1] not in ")}":
            return None  # the brace initialises a member in a constructor's list
        close = self.pairs[chosen.group]
        if _CLASS.match(self.code, head, brace) and not _QUALIFIERS.match(
            self.code[close + 1 : end]
        ):
            return None
        qualified = re.sub(r"\s+", "", self.code[chosen.start : chosen.group])
        return Function(
            name=qualified.rpartition("::")[2],
            qualified=qualified,
            start=begin,
            template=self.text[begin:head].strip(),
            parameters=self._parameters(Span(chosen.group + 1, close)),
            body=Span(brace, self.pairs[brace] + 1),
        )

    def _name_before(self, head: int, group: int) -> _Named | None:
        match = _NAME.search(self.code, head, group)
        if match is None or group not in self.pairs:
            return None
        words = _WORD.findall(match.group())
        if words[-1] in _NO_FUNCTION:
            return None
        before = self.code[head : match.start()].rstrip()
        typed = bool(before) and (before[-1] in ">*&]" or before[-1].isalnum() or before[-1] == "_")
        return _Named(match.start(), group, typed)

    def _parameters(self, span: Span) -> tuple[Parameter, ...]:
        parts = self.split(span)
        if len(parts) == 1 and self.code[parts[0].start : parts[0].end] == "void":
            return ()
        return tuple(self._parameter(part) for part in parts)

    def _parameter(self, part: Span) -> Parameter:
        cut = next((at for at, char in self._outer(part) if char == "="), part.end)
        declarator = self.trim(part.start, cut)
        default = self.trim(cut + 1, part.end) if cut < part.end else Span(part.end, part.end)
        name = self._declared_name(declarator)
        declaration = _one_line(self.code[declarator.start : declarator.end])
        kind = self.code[declarator.start : name.start] + self.code[name.end : declarator.end]
        kind = re.sub(r"\[\[.*?\]\]", "", kind)
        return Parameter(
            declaration=declaration,
            type=_one_line(kind),
            name=self.code[name.start : name.end],
            default=self.slice(default),
            name_end=name.end,
        )

    def _declared_name(self, declarator: Span) -> Span:
        """Where the name of a parameter stands; empty, at the end, where it has none."""
        nested = re.compile(r"\(\s*[*&^]+\s*(?:const\s+)?([^\W\d]\w*)")
        if match := nested.search(self.code, declarator.start, declarator.end):
            return Span(match.start(1), match.end(1))
        end = declarator.end
        while self.code[:end].endswith("]"):
            openers = [a for a, b in self.pairs.items() if b == end - 1]
            end = self.trim(declarator.start, openers[0]).end if openers else end - 1
        match = re.compile(r"[^\W\d]\w*\Z").search(self.code, declarator.start, end)
        if match is None or match.group() in _TYPE_WORDS:
            return Span(end, end)
        before = self.code[declarator.start : match.start()].rstrip()
        named = any(word not in _FILLERS for word in _WORD.findall(before))
        if not named or before.endswith("::"):
            return Span(end, end)
        return Span(match.start(), match.end())


@dataclass(frozen=True)
class _Named:
    """A name before parentheses; `typed` where a type stands before the name."""

    start: int
    group: int
    typed: bool


def _one_line(code: str) -> str:
    return re.sub(r"\s+", " ", code).strip()
