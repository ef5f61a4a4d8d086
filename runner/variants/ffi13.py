"""The `ffi13` transform: an initialize stage for thirteen handlers that only had an execute stage.

It does to a commit what TransformerEngine PR 2800 does for these handlers. How a stage is written
is taken from one that the commit already has, so the transform follows the commit's own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.errors import VariantError
from runner.variants.cpp import Function, Insertion, Invocation, Source, Span, insert
from runner.variants.stream import DEFINE, NO_CAPTURE, is_initialize, parse

_DECLARE = "XLA_FFI_DECLARE_HANDLER_SYMBOL"
_STREAM = re.compile(r"(?:const\s+)?cudaStream_t(?:\s+const)?")


class Handlers(NamedTuple):
    """The thirteen, by the name that TE's handlers, functions and stages share.

    GroupedQuantize (v1) is not among them: it copies sizes to the host and waits for the stream,
    which no capture survives.
    """

    dbias_quantize: str = "DBiasQuantize"
    grouped_quantize_v2: str = "GroupedQuantizeV2"
    dequantize: str = "Dequantize"
    scaled_softmax_forward: str = "ScaledSoftmaxForward"
    scaled_softmax_backward: str = "ScaledSoftmaxBackward"
    scaled_masked_softmax_forward: str = "ScaledMaskedSoftmaxForward"
    scaled_masked_softmax_backward: str = "ScaledMaskedSoftmaxBackward"
    scaled_upper_triang_masked_softmax_forward: str = "ScaledUpperTriangMaskedSoftmaxForward"
    scaled_upper_triang_masked_softmax_backward: str = "ScaledUpperTriangMaskedSoftmaxBackward"
    fused_topk_forward: str = "FusedTopkWithScoreFunctionForward"
    fused_topk_backward: str = "FusedTopkWithScoreFunctionBackward"
    fused_moe_aux_loss_forward: str = "FusedMoEAuxLossForward"
    fused_moe_aux_loss_backward: str = "FusedMoEAuxLossBackward"


HANDLERS = Handlers()


@dataclass(frozen=True)
class Widened:
    """What the transform made of a tree.

    files: the files it changed, with their new text. gained, present, absent: which of the
    thirteen now have an initialize stage, had one before, and are not in this commit.
    """

    files: dict[str, str]
    gained: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Place:
    """An invocation and the file it stands in."""

    path: str
    source: Source
    found: Invocation

    def argument(self, index: int) -> str:
        return self.source.slice(self.found.arguments[index])


@dataclass(frozen=True)
class _Style:
    """How this commit writes an initialize stage: what captures, and the stage's name."""

    capture: str
    stage: str


@dataclass
class _Edits:
    by_path: dict[str, list[Insertion]] = field(default_factory=dict)

    def add(self, path: str, at: int, text: str, source: Source) -> None:
        insertion = Insertion(at, text.replace("\n", source.newline))
        self.by_path.setdefault(path, []).append(insertion)


def widen(csrc: Mapping[str, str]) -> Widened:
    """Give each of the thirteen that the commit has an initialize stage of TE's own kind.

    csrc: text by path below csrc. Raises VariantError where the commit has no initialize stage
    that captures, none of the thirteen, or one that the transform cannot read. Applied twice it
    changes nothing.
    """
    sources = parse(csrc)
    style = _style(sources)
    edits = _Edits()
    gained, present, absent = [], [], []
    for handler in HANDLERS:
        execute = _first(sources, DEFINE, f"{handler}Handler")
        if execute is None:
            absent.append(handler)
        elif _widen_one(sources, style, handler, execute, edits):
            gained.append(handler)
        else:
            present.append(handler)
    if not gained and not present:
        raise VariantError(f"this commit has none of the {len(HANDLERS)} handlers of ffi13")
    files = {path: insert(csrc[path], some) for path, some in sorted(edits.by_path.items())}
    return Widened(files, tuple(gained), tuple(present), tuple(absent))


def _widen_one(
    sources: Mapping[str, Source], style: _Style, handler: str, execute: _Place, edits: _Edits
) -> bool:
    """Add what the handler's initialize stage lacks; False where it lacks nothing."""
    registrations = list(_registrations(sources, f"{handler}Handler"))
    defined = _first(sources, DEFINE, f"{handler}InitializeHandler") is not None
    if not registrations and not defined:
        raise VariantError(f"ffi13: no registration of {handler}Handler to add a stage to")
    missing = [one for one in registrations if not _has_initialize(one)]
    if not missing:
        return False
    for place in missing:
        _register(place, handler, edits)
    if not defined:
        text = _definition(sources, style, handler, execute)
        at = execute.source.statement_end(execute.found.span.end)
        edits.add(execute.path, at, text, execute.source)
    if _first(sources, _DECLARE, f"{handler}InitializeHandler") is None:
        declared = _first(sources, _DECLARE, f"{handler}Handler")
        if declared is None:
            raise VariantError(f"ffi13: no declaration of {handler}Handler to add a stage to")
        at = declared.source.statement_end(declared.found.span.end)
        text = f"\n{_DECLARE}({handler}InitializeHandler);"
        edits.add(declared.path, at, text, declared.source)
    return True


def _first(sources: Mapping[str, Source], macro: str, symbol: str) -> _Place | None:
    """The invocation of a macro whose first argument is that symbol."""
    for path, source in sources.items():
        for found in source.invocations(macro):
            if found.arguments and source.slice(found.arguments[0]) == symbol:
                return _Place(path, source, found)
    return None


def _style(sources: Mapping[str, Source]) -> _Style:
    """What an initialize stage of this commit looks like, from the first that captures."""
    functions = {one.name: (s, one) for s in sources.values() for one in s.functions}
    for source in sources.values():
        for define in source.invocations(DEFINE):
            if len(define.arguments) < 3 or not is_initialize(source, define.arguments[2]):
                continue
            implementation = source.slice(define.arguments[1]).rpartition("::")[2]
            if implementation not in functions:
                continue
            capture = _capture_of(*functions[implementation])
            if capture:
                bind = source.invocations("Bind", define.arguments[2])[0]
                return _Style(capture, bind.template)
    raise VariantError(NO_CAPTURE)


def _capture_of(source: Source, function: Function) -> str | None:
    """What the body of an initialize stage hands its handler to, as it writes the name."""
    for at in source.words("return", function.body):
        match = re.compile(r"return\s+((?:::\s*)?(?:\w+\s*::\s*)*\w+)\s*\(").match(source.code, at)
        if match is None:
            continue
        opener = match.end() - 1
        arguments = source.split(Span(opener + 1, source.pairs.get(opener, opener + 1)))
        if len(arguments) > 1 and "function" in source.slice(arguments[0]):
            return match.group(1)
    return None


def _definition(sources: Mapping[str, Source], style: _Style, handler: str, execute: _Place) -> str:
    """The stage's function and the macro that makes a handler of it."""
    implementation = execute.argument(1).lstrip("&")
    function = _implementation(sources, execute, implementation)
    if not function.parameters or not _STREAM.fullmatch(function.parameters[0].type):
        raise VariantError(
            f"ffi13: {implementation} does not take a stream first, so nothing can capture it"
        )
    declared, names = [], []
    for index, parameter in enumerate(function.parameters):
        name = parameter.name or f"argument{index}"
        declared.append(
            parameter.declaration if parameter.name else f"{parameter.declaration} {name}"
        )
        names.append(name)
    stage = f"{handler}InitializeFFI"
    capture = [f"std::function({implementation})", *names]
    return (
        f"\n\nError_Type {stage}({_wrapped(declared)}) {{\n"
        f"  return {style.capture}({_wrapped(capture)});\n"
        "}\n\n"
        f"{DEFINE}(\n    {handler}InitializeHandler, {stage},\n    {_binding(execute, style)});"
    )


def _implementation(
    sources: Mapping[str, Source], execute: _Place, implementation: str
) -> Function:
    name = implementation.rpartition("::")[2]
    for source in [execute.source, *sources.values()]:
        for function in source.functions:
            if function.name == name and not function.template:
                return function
    raise VariantError(f"ffi13: no function {implementation!r} behind {execute.argument(0)}")


def _binding(execute: _Place, style: _Style) -> str:
    """The execute handler's binding, for the initialize stage."""
    source, binding = execute.source, execute.found.arguments[2]
    binds = source.invocations("Bind", binding)
    if not binds:
        raise VariantError(f"ffi13: no binding in the definition of {execute.argument(0)}")
    name_end = binds[0].span.start + len("Bind")
    opener = name_end + len(binds[0].template)
    start = source.text[binding.start : name_end]
    return f"{start}{style.stage}{source.text[opener : binding.end]}"


def _registrations(sources: Mapping[str, Source], symbol: str) -> Iterator[_Place]:
    """Where a handler is wrapped for registration: `EncapsulateFFI(<symbol>)`."""
    for path, source in sources.items():
        for at in source.words(symbol):
            wrapper = source.enclosing(at)
            if wrapper is None or wrapper.name in {DEFINE, _DECLARE} or not wrapper.arguments:
                continue
            if source.slice(wrapper.arguments[0]) == symbol and len(wrapper.arguments) == 1:
                yield _Place(path, source, wrapper)


def _stages_of(place: _Place) -> Invocation | None:
    """The dict of stages that a registration is the execute stage of, if it is in one."""
    around = place.source.enclosing(place.found.span.start)
    return around if around is not None and around.name == "dict" else None


def _has_initialize(place: _Place) -> bool:
    stages = _stages_of(place)
    return stages is not None and bool(re.search(r'"initialize"', place.source.slice(stages.span)))


def _register(place: _Place, handler: str, edits: _Edits) -> None:
    """Add the initialize stage to a registration, next to the stages it has."""
    source, wrapper = place.source, place.found
    initialize = f'pybind11::arg("initialize") = {wrapper.name}({handler}InitializeHandler),'
    stages = _stages_of(place)
    if stages is None:
        before = f'pybind11::dict({initialize}\n                     pybind11::arg("execute") = '
        edits.add(place.path, wrapper.span.start, before, source)
        edits.add(place.path, wrapper.span.end, ")", source)
        return
    execute = next(one for one in stages.arguments if one.start <= wrapper.span.start < one.end)
    edits.add(place.path, execute.start, f"{initialize}\n                     ", source)


def _wrapped(parts: list[str]) -> str:
    """Parts with commas between, in lines of a readable length."""
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > 90:
            lines.append("")
        lines[-1] += f"{part}, "
    return "\n    ".join(line.rstrip() for line in lines).removesuffix(",")
