"""The `instrumented` transform: a capture whose stream and length the environment of a trial sets.

TE's FFI initialize stage captures what a handler enqueues and throws the graph away, to load its
kernels (TransformerEngine PR 2219). The transform finds the functions that begin and end such a
capture, whatever their names, and inserts calls of a namespace `racewatch` that it brings along:
`capture_stream` chooses the stream, `held` keeps the capture open right after it has begun, and
`entered` reports the handler. Nothing of the commit's own text is removed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.errors import VariantError
from runner.variants.cpp import Function, Insertion, Invocation, Parameter, Source, Span, insert

NO_CAPTURE = (
    "this commit has no stream capture in the FFI initialize stage, which TransformerEngine's "
    "PR 2219 brought, so there is nothing to hold open or to move to another stream"
)
_BEGIN = re.compile(r"\bcudaStreamBeginCapture\w*")
_END = "cudaStreamEndCapture"
DEFINE = "XLA_FFI_DEFINE_HANDLER_SYMBOL"
_GROUP = re.compile(
    r"(?:(?:static|reinterpret|const)_cast\s*<[^<>]*>|(?:std\s*::\s*)?move|cudaStream_t"
    r"|::racewatch::capture_stream)?\s*[({]"
)
_C_CAST = re.compile(r"\(\s*(?:const\s+)?cudaStream_t\s*\)")
_GIVEN = "_before_racewatch"

# A header of its own, so that each changed file gains one line. It does not include the CUDA
# runtime: what calls cudaStreamBeginCapture has that in scope, and the demo subject brings its own.
HEADER = "racewatch.h"
_RUNTIME = """\
// Inserted by Racewatch: lets the environment of a trial choose how a stream capture runs.
#ifndef RACEWATCH_H_
#define RACEWATCH_H_

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>

namespace racewatch {

inline std::string setting(const char *name) {
  const char *value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// The stream to capture on: the commit's own choice, or one of this thread and device that no
// other thread knows.
inline cudaStream_t capture_stream(cudaStream_t given) {
  if (setting("RACEWATCH_CAPTURE_STREAM") != "owned") return given;
  thread_local std::unordered_map<int, cudaStream_t> streams;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    throw std::runtime_error("racewatch: cudaGetDevice failed before the capture");
  }
  const auto known = streams.find(device);
  if (known != streams.end()) return known->second;
  cudaStream_t created{};
  if (cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking) != cudaSuccess) {
    throw std::runtime_error("racewatch: cudaStreamCreateWithFlags failed before the capture");
  }
  streams.emplace(device, created);
  return created;
}

// Keeps a capture that has begun open for RACEWATCH_HOLD_MS longer.
template <typename Status>
Status held(Status status) {
  const std::string text = setting("RACEWATCH_HOLD_MS");
  if (text.empty() || status != static_cast<Status>(0)) return status;
  const double milliseconds = std::strtod(text.c_str(), nullptr);
  if (milliseconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  }
  return status;
}

// Appends the name of an initialize handler to RACEWATCH_TRACE; one write per line, so that lines
// of several threads do not mix.
inline void entered(const char *function) {
  const std::string path = setting("RACEWATCH_TRACE");
  if (path.empty()) return;
  const std::string line = std::string(function) + "\\n";
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && ::write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (file >= 0) ::close(file);
  if (!written) throw std::runtime_error("racewatch: cannot append to RACEWATCH_TRACE " + path);
}

}  // namespace racewatch

#endif  // RACEWATCH_H_
"""


@dataclass(frozen=True)
class Capture:
    """One function that begins and ends a stream capture.

    stream: the expression it captures on. parameter: the parameter which that may be, and so
    XLA's own stream; None where the commit captures on a stream of its own.
    """

    path: str
    function: str
    stream: str
    parameter: str | None


@dataclass(frozen=True)
class Instrumented:
    """What the transform made of a tree: the files it changed, with their new text, and why.

    owned_stream_needed: some capture may run on XLA's stream, so that RACEWATCH_CAPTURE_STREAM
    changes something. reporters: functions that report themselves to RACEWATCH_TRACE.
    """

    files: dict[str, str]
    captures: tuple[Capture, ...]
    reporters: tuple[str, ...]

    @property
    def owned_stream_needed(self) -> bool:
        return any(capture.parameter is not None for capture in self.captures)


@dataclass(frozen=True)
class Stage:
    """An initialize handler that XLA calls, and the function that it runs."""

    handler: str
    function: str


@dataclass(frozen=True)
class _Site:
    """A capture as it stands in the text: the call that begins it, the function around it."""

    path: str
    function: Function
    begin: Invocation
    stream: Span
    parameter: Parameter | None


def parse(csrc: Mapping[str, str]) -> dict[str, Source]:
    """The scanner's view of every file, by path."""
    return {path: Source(csrc[path]) for path in sorted(csrc)}


def instrument(csrc: Mapping[str, str]) -> Instrumented:
    """Make stream, hold and trace of every capture a matter of the environment.

    csrc: text by path below csrc. Raises VariantError where no function captures, or where one
    does in a way that cannot be held open or moved. Applied twice it changes nothing.
    """
    sources = parse(csrc)
    sites = list(_sites(sources))
    if not sites:
        raise VariantError(_why_none(sources))
    edits: dict[str, list[Insertion]] = {}
    for site in sites:
        edits.setdefault(site.path, []).extend(_capture_edits(sources[site.path], site))
    reporters = _reporters(sources, {site.function.name for site in sites})
    for path, function in reporters:
        edits.setdefault(path, []).extend(_report_edits(sources[path], function))
    files = {}
    for path, insertions in sorted(edits.items()):
        if insertions:
            include = _include_edit(path, sources[path], min(one.at for one in insertions))
            files[path] = insert(csrc[path], [*include, *insertions])
    if files:
        files[HEADER] = _RUNTIME
    captures = [
        Capture(
            path=site.path,
            function=site.function.name,
            stream=sources[site.path].slice(site.stream),
            parameter=site.parameter.name.removesuffix(_GIVEN) if site.parameter else None,
        )
        for site in sites
    ]
    names = tuple(sorted({function.name for _, function in reporters}))
    return Instrumented(files, tuple(captures), names)


def stages(sources: Mapping[str, Source]) -> tuple[Stage, ...]:
    """The handlers bound to the initialize stage, in order of path and text."""
    found = []
    for source in sources.values():
        for define in source.invocations(DEFINE):
            if len(define.arguments) >= 3 and is_initialize(source, define.arguments[2]):
                handler, function = (source.slice(one) for one in define.arguments[:2])
                found.append(Stage(handler, function.rpartition("::")[2].lstrip("&")))
    return tuple(found)


def is_initialize(source: Source, binding: Span) -> bool:
    """Whether a binding (`FFI::Bind<stage>()...`) is for XLA's initialize stage."""
    binds = source.invocations("Bind", binding)
    return bool(binds) and "initialize" in binds[0].template.lower()


def _sites(sources: Mapping[str, Source]) -> Iterator[_Site]:
    for path, source in sources.items():
        if not _BEGIN.search(source.code):
            continue
        for function in source.functions:
            yield from _sites_in(path, sources, function)


def _why_none(sources: Mapping[str, Source]) -> str:
    for path, source in sources.items():
        if any(source.invocations(match.group()) for match in _BEGIN.finditer(source.code)):
            return f"{path} begins a stream capture outside of any function that can be read"
    return NO_CAPTURE


def _sites_in(path: str, sources: Mapping[str, Source], function: Function) -> Iterator[_Site]:
    source = sources[path]
    names = sorted({match.group() for match in _BEGIN.finditer(source.code)})
    begins = [one for name in names for one in source.invocations(name, function.body)]
    ends = source.invocations(_END, function.body)
    ended = {_squeezed(source, one.arguments[0]) for one in ends if one.arguments}
    for begin in sorted(begins, key=lambda one: one.span.start):
        if not begin.arguments:
            continue
        stream = begin.arguments[0]
        if _squeezed(source, stream) not in ended:
            raise VariantError(
                f"{path}: {function.name} begins a stream capture on "
                f"{source.slice(stream)!r} that it does not end itself, which the transform "
                "cannot follow"
            )
        yield _Site(path, function, begin, stream, _parameter_of(path, sources, function, stream))


def _squeezed(source: Source, span: Span) -> str:
    return re.sub(r"\s+", "", source.code[span.start : span.end])


def _parameter_of(
    path: str, sources: Mapping[str, Source], function: Function, stream: Span
) -> Parameter | None:
    """The parameter that the captured stream is or may be, through local variables and casts."""
    source = sources[path]
    parameters = {one.name: one for one in function.parameters if one.name}
    where = f"{path}: {function.name} captures on {source.slice(stream)!r}"
    seen: set[str] = set()
    expressions = [stream]
    while expressions:
        expression = expressions.pop()
        if (root := _part_of(source, expression)) in parameters:
            raise VariantError(
                f"{where}, part of the parameter {root!r}, which the transform cannot redirect"
            )
        for name in _values(source, expression):
            if name in parameters:
                return parameters[name]
            if name in seen or name == "nullptr":
                continue
            seen.add(name)
            if not _is_variable(sources, source, function, name):
                raise VariantError(f"{where}, and where {name!r} comes from is not to be seen")
            expressions += _initialisers(source, function.body, name)
    return None


def _part_of(source: Source, expression: Span) -> str | None:
    """The variable that an expression looks into: `a` of `a.stream` and of `a->get()`."""
    match = re.match(r"(\w+)\s*(?:\.|->)", source.code[expression.start : expression.end])
    return match.group(1) if match else None


def _values(source: Source, expression: Span) -> Iterator[str]:
    """The variables whose own value an expression may have, through grouping, casts and `?:`."""
    span = source.trim(expression.start, expression.end)
    code = source.code[span.start : span.end]
    if re.fullmatch(r"[^\W\d]\w*", code):
        yield code
    elif len(branches := source.split(span, "?")) > 1:
        for branch in source.split(branches[-1], ":"):
            yield from _values(source, branch)
    elif match := _C_CAST.match(code):
        yield from _values(source, Span(span.start + match.end(), span.end))
    elif match := _GROUP.match(code):
        opener = span.start + match.end() - 1
        if source.pairs.get(opener) == span.end - 1:
            yield from _values(source, Span(opener + 1, span.end - 1))


def _is_variable(
    sources: Mapping[str, Source], source: Source, function: Function, name: str
) -> bool:
    """Whether a name is a variable of the function, or one that outlives it: not what a lambda or
    a class was given, which may well be XLA's stream."""
    body = source.code[function.body.start : function.body.end]
    local = rf"(?<!\breturn)[\w>*&]\s+[*&]*{name}\s*[;={{(\[]|\bauto\b[\s&]*\[[^\]]*\b{name}\b"
    lasting = rf"\b(?:static|thread_local|inline|extern)\b[^;(){{}}]*\bcudaStream_t\s+{name}\b"
    return bool(
        re.search(local, body) or any(re.search(lasting, one.code) for one in sources.values())
    )


def _initialisers(source: Source, body: Span, name: str) -> Iterator[Span]:
    """What a local variable is declared with or assigned."""
    for at in source.words(name, body):
        follow = re.compile(r"\s*(=(?!=)|[({])").match(source.code, at + len(name))
        if follow is None:
            continue
        if follow.group(1) == "=":
            end = source.code.find(";", follow.end(), body.end)
            yield Span(follow.end(), end)
        elif re.search(r"[\w>*&]\s+\Z", source.code[body.start : at]):
            opener = follow.end() - 1
            yield Span(opener + 1, source.pairs.get(opener, opener + 1))


def _capture_edits(source: Source, site: _Site) -> list[Insertion]:
    """The hold around the call that begins the capture, and the choice of stream before it."""
    edits = []
    around = source.enclosing(site.begin.span.start)
    if around is None or around.name != "held":
        start = site.begin.span.start
        prefix = re.compile(r"::\s*\Z").search(source.code, 0, start)
        edits.append(Insertion(prefix.start() if prefix else start, "::racewatch::held("))
        edits.append(Insertion(site.begin.span.end, ")"))
    chosen = "capture_stream" in source.code[site.function.body.start : site.function.body.end]
    if site.parameter is not None and not chosen:
        edits += _stream_edits(source, site.function, site.parameter)
    return edits


def _stream_edits(source: Source, function: Function, parameter: Parameter) -> list[Insertion]:
    """Choose the stream first of all, so that every use in the body sees the choice."""
    name = parameter.name
    if parameter.type == "cudaStream_t":
        return [_first_line(source, function, f"{name} = ::racewatch::capture_stream({name});")]
    given = name + _GIVEN
    return [
        Insertion(parameter.name_end, _GIVEN),
        _first_line(
            source, function, f"cudaStream_t {name} = ::racewatch::capture_stream({given});"
        ),
    ]


def _reporters(sources: Mapping[str, Source], captures: set[str]) -> list[tuple[str, Function]]:
    """The functions that stand for an initialize handler: what XLA's initialize stage is bound to
    and what calls a capture; the captures themselves where nothing does."""
    bound = {stage.function for stage in stages(sources)}
    every = [(path, one) for path, source in sources.items() for one in source.functions]
    callers = [
        (path, one)
        for path, one in every
        if one.name not in captures
        and (
            one.name in bound or any(sources[path].words(capture, one.body) for capture in captures)
        )
    ]
    return callers or [(path, one) for path, one in every if one.name in captures]


def _report_edits(source: Source, function: Function) -> list[Insertion]:
    if re.search(r"racewatch\s*::\s*entered", source.code[function.body.start : function.body.end]):
        return []
    return [_first_line(source, function, "::racewatch::entered(__func__);")]


def _first_line(source: Source, function: Function, statement: str) -> Insertion:
    """A statement that becomes the first of a function's body, on a line of its own."""
    brace = function.body.start
    line_end = source.text.find("\n", brace)
    if source.text[brace + 1 : line_end].strip() or line_end < 0 or line_end >= function.body.end:
        return Insertion(brace + 1, f" {statement}")
    indentation = source.indentation(function.start) + "  "
    return Insertion(line_end + 1, indentation + statement + source.newline)


def _include_edit(path: str, source: Source, first: int) -> list[Insertion]:
    """The include of racewatch.h, before the outermost declaration that uses it."""
    line = f'#include "{posixpath.relpath(HEADER, posixpath.dirname(path) or ".")}"'
    if line in source.text:
        return []
    at = source.top_level_start(first)
    before = source.text[source.line_start(at) : at].strip()
    return [Insertion(at, (source.newline if before else "") + line + 2 * source.newline)]
