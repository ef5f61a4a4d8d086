"""What `instrumented` does to a capture: where it applies, what it inserts, how the result runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import VariantError
from runner.variants.stream import Capture, instrument

BEGIN = "check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));"
REST = """
  Status status = work(stream);
  cudaGraph_t graph{};
  check(cudaStreamEndCapture(stream, &graph));
  return status;
}
"""
STOCK = "Status capture(Work work, cudaStream_t stream) {\n  " + BEGIN + REST
OWNED = (
    "inline cudaStream_t owned() {\n  thread_local cudaStream_t mine = make();\n  return mine;\n}\n"
)

FROM_XLA = {
    "stock": STOCK,
    "other_names": STOCK.replace("stream,", "s,").replace("stream)", "s)"),
    "spread_over_lines": STOCK.replace(
        BEGIN,
        "check(\n      cudaStreamBeginCapture(  // begin (now\n          stream,\n"
        "          cudaStreamCaptureModeRelaxed)\n  );",
    ),
    "one_line": STOCK.replace("\n", " "),
    "const_parameter": STOCK.replace("cudaStream_t stream)", "const cudaStream_t stream)"),
    "reference_parameter": STOCK.replace("cudaStream_t stream)", "const cudaStream_t &stream)"),
    "attribute": STOCK.replace("cudaStream_t stream)", "[[maybe_unused]] cudaStream_t stream)"),
    "checked_by_if": STOCK.replace(
        BEGIN,
        "if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess)\n"
        "    return 1;",
    ),
    "if_without_braces": STOCK.replace(
        BEGIN,
        "if (work)\n    check(::cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));\n"
        "  else\n    return 1;",
    ),
    "stored_status": STOCK.replace(
        BEGIN,
        "auto begun = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);\n"
        "  check(begun);",
    ),
    "alias": STOCK.replace("cudaStream_t stream)", "cudaStream_t xla)").replace(
        "check(cudaStreamBegin", "cudaStream_t stream{xla};\n  check(cudaStreamBegin"
    ),
    "alias_of_alias": STOCK.replace("cudaStream_t stream)", "cudaStream_t xla)").replace(
        "check(cudaStreamBegin",
        "auto other = static_cast<cudaStream_t>(xla);\n  cudaStream_t stream;\n"
        "  stream = (other);\n  check(cudaStreamBegin",
    ),
    "sometimes_owned": OWNED
    + STOCK.replace("cudaStream_t stream)", "cudaStream_t xla)").replace(
        "check(cudaStreamBegin",
        "cudaStream_t stream = xla == nullptr ? owned() : xla;\n  check(cudaStreamBegin",
    ),
    "generic": "template <typename W>\n" + STOCK.replace("Work work", "W work"),
    "other_check": "#define CHECK(...) do { check(__VA_ARGS__); } while (0)\n"
    + STOCK.replace("check(cuda", "CHECK(cuda"),
    "to_graph": STOCK.replace("{\n", "{\n  cudaGraph_t into{};\n", 1).replace(
        "cudaStreamBeginCapture(stream,", "cudaStreamBeginCaptureToGraph(stream, into,"
    ),
    "windows_lines": STOCK.replace("\n", "\r\n"),
}
OWN = {
    "returned": OWNED
    + STOCK.replace("cudaStream_t stream)", "cudaStream_t /*stream*/)").replace(
        "check(cudaStreamBegin", "cudaStream_t stream = owned();\n  check(cudaStreamBegin"
    ),
    "keyed_by_xla": "inline cudaStream_t owned_for(cudaStream_t) { return make(); }\n"
    + STOCK.replace("cudaStream_t stream)", "cudaStream_t xla)").replace(
        "check(cudaStreamBegin", "cudaStream_t stream = owned_for(xla);\n  check(cudaStreamBegin"
    ),
    "created": STOCK.replace("cudaStream_t stream)", "cudaStream_t)").replace(
        "check(cudaStreamBegin",
        "cudaStream_t stream = nullptr;\n  check(cudaStreamCreateWithFlags(&stream, "
        "cudaStreamNonBlocking));\n  check(cudaStreamBegin",
    ),
    "member": "struct Owner { cudaStream_t held = make(); cudaStream_t get() { return held; } };\n"
    + STOCK.replace("cudaStream_t stream)", "cudaStream_t)")
    .replace("check(cudaStreamBegin", "Owner owner;\n  check(cudaStreamBegin")
    .replace("Capture(stream", "Capture(owner.get()")
    .replace("work(stream)", "work(owner.get())"),
    "global": "static cudaStream_t everywhere = make();\n"
    + STOCK.replace("stream,", "everywhere,").replace("work(stream)", "work(everywhere)"),
}


SHAPES: dict[str, str] = {**FROM_XLA, **OWN}


def one(text: str) -> dict[str, str]:
    return {"extensions/ffi.h": text}


@pytest.mark.parametrize("shape", FROM_XLA)
def test_a_capture_on_xlas_stream_needs_a_stream_of_its_own(shape: str) -> None:
    assert instrument(one(FROM_XLA[shape])).owned_stream_needed


@pytest.mark.parametrize("shape", OWN)
def test_a_capture_on_an_own_stream_does_not(shape: str) -> None:
    result = instrument(one(OWN[shape]))
    assert not result.owned_stream_needed
    assert "capture_stream(" not in result.files["extensions/ffi.h"]
    assert "::racewatch::held(" in result.files["extensions/ffi.h"]


def test_the_result_names_each_capture() -> None:
    result = instrument({**one(STOCK), "b.h": OWN["returned"].replace("capture(", "other(")})
    assert result.captures == (
        Capture("b.h", "other", "stream", None),
        Capture("extensions/ffi.h", "capture", "stream", "stream"),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_applying_twice_changes_nothing(shape: str) -> None:
    tree = one(SHAPES[shape])
    first = instrument(tree)
    second = instrument({**tree, **first.files})
    assert second.files == {}
    assert second.captures == first.captures
    assert second.reporters == first.reporters


@pytest.mark.parametrize(
    "text",
    [
        "int wrapInStreamCapture(int a) { return a; }",
        "// cudaStreamBeginCapture(stream, mode); cudaStreamEndCapture(stream, &graph);\n",
        'const char *help = "cudaStreamBeginCapture(stream, mode)";',
        "#if 0\n" + STOCK + "#endif\n",
        "",
    ],
)
def test_a_commit_without_a_capture_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(VariantError, match="no stream capture in the FFI initialize stage"):
        instrument(one(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "struct Scope {\n"
            "  Scope(cudaStream_t s) : s_(s) {\n    cudaStreamBeginCapture(s_, mode);\n  }\n"
            "  ~Scope() { cudaStreamEndCapture(s_, &graph_); }\n};\n",
            "Scope begins a stream capture on 's_' that it does not end itself",
        ),
        (
            STOCK.replace("cudaStream_t stream)", "Context &context)")
            .replace("Capture(stream", "Capture(context.stream")
            .replace("work(stream)", "work(context.stream)"),
            "'context.stream', part of the parameter 'context'",
        ),
        (
            "Status capture(Work work, cudaStream_t xla) {\n"
            "  return with(xla, [&](cudaStream_t stream) {\n  "
            + BEGIN
            + REST.rstrip("}\n")
            + "\n  });\n}\n",
            "where 'stream' comes from is not to be seen",
        ),
    ],
)
def test_a_capture_that_cannot_be_followed_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(VariantError, match="extensions/ffi") as caught:
        instrument(one(text))
    assert reason in str(caught.value)


def test_a_capture_outside_of_functions_is_refused_by_file() -> None:
    text = "auto load = [](cudaStream_t stream) {\n  " + BEGIN + REST.rstrip() + ";\n"
    with pytest.raises(VariantError, match="extensions/ffi") as caught:
        instrument(one(text))
    assert "outside of any function" in str(caught.value)


def test_every_function_that_calls_a_capture_reports_itself() -> None:
    callers = (
        "Status ActInitializeFFI(cudaStream_t stream) {\n  return capture(act, stream);\n}\n"
        "Status NormInitializeFFI(cudaStream_t stream) {\n"
        "  return ns::capture<int>(norm, stream);\n}\n"
        "Status NormFFI(cudaStream_t stream) {\n  return 0;  // capture(x)\n}\n"
    )
    result = instrument({**one(STOCK), "extensions/norm.cpp": callers})
    assert result.reporters == ("ActInitializeFFI", "NormInitializeFFI")
    assert result.files["extensions/norm.cpp"].count("::racewatch::entered(__func__);") == 2


def test_what_the_initialize_stage_is_bound_to_reports_itself_through_a_helper_too() -> None:
    callers = (
        "Status load(cudaStream_t stream) { return capture(act, stream); }\n"
        "Status ActInitializeFFI(cudaStream_t stream) {\n  return load(stream);\n}\n"
        "XLA_FFI_DEFINE_HANDLER_SYMBOL(ActInitializeHandler, ActInitializeFFI,\n"
        "    FFI::Bind<FFI_Initialize>().Ctx<Stream>());\n"
    )
    result = instrument({**one(STOCK), "act.cpp": callers})
    assert result.reporters == ("ActInitializeFFI", "load")


def test_the_header_is_included_from_where_each_file_lies() -> None:
    caller = "namespace a {\nStatus f(cudaStream_t s) {\n  return capture(w, s);\n}\n}\n"
    result = instrument({**one(STOCK), "f.cpp": caller, "a/b/g.cpp": caller})
    assert set(result.files) == {"racewatch.h", "extensions/ffi.h", "f.cpp", "a/b/g.cpp"}
    assert result.files["f.cpp"].startswith('#include "racewatch.h"\n\nnamespace a {')
    assert result.files["extensions/ffi.h"].startswith('#include "../racewatch.h"\n')
    assert result.files["a/b/g.cpp"].startswith('#include "../../racewatch.h"\n')


def test_windows_line_ends_are_kept() -> None:
    text = instrument(one(FROM_XLA["windows_lines"])).files["extensions/ffi.h"]
    assert text.count("\n") == text.count("\r\n")


def is_subsequence(stock: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in stock)


@settings(deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    before=st.lists(
        st.sampled_from(
            ["// cudaStreamBeginCapture(\n", "int f() { return 1; }\n", "#include <a>\n", "\n"]
        )
    ),
    scopes=st.lists(
        st.sampled_from(["namespace a {\n", "inline namespace b { ", 'extern "C" {\n'])
    ),
)
def test_only_insertions_wherever_the_capture_stands(
    shape: str, before: list[str], scopes: list[str]
) -> None:
    text = "".join(before + scopes) + SHAPES[shape] + "}" * len(scopes)
    changed = instrument(one(text)).files["extensions/ffi.h"]
    assert is_subsequence(text, changed)
    assert changed.count("::racewatch::held(") == 1


CUDA = """\
#pragma once
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
using cudaStream_t = int *;
struct cudaGraph_t {};
enum cudaError_t { cudaSuccess = 0, cudaErrorUnknown = 999 };
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeRelaxed = 2 };
using Status = int;
using Work = std::function<Status(cudaStream_t)>;
inline int streams[64];
inline int made = 1;
inline int *captured = nullptr;
inline int *ended = nullptr;
inline int *worked = nullptr;
inline double open_ms = 0;
inline std::chrono::steady_clock::time_point began;
inline cudaStream_t make() { return &streams[made++]; }
inline void check(cudaError_t e) { if (e != cudaSuccess) throw std::runtime_error("cuda"); }
inline cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
  *s = make();
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, int) {
  captured = s;
  began = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t, int mode) {
  return cudaStreamBeginCapture(s, mode);
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *) {
  ended = s;
  const std::chrono::duration<double, std::milli> open = std::chrono::steady_clock::now() - began;
  open_ms = open.count();
  return cudaSuccess;
}
"""


@dataclass(frozen=True)
class Ran:
    """What one shape's capture did: streams as numbers, XLA's being 0."""

    captured: int
    ended: int
    worked: int
    again: int
    open_ms: float


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every shape, instrumented and compiled against a stand-in for the CUDA runtime."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("shapes")
    tree = {f"{name}.h": f"namespace {name} {{\n{SHAPES[name]}}}\n" for name in SHAPES}
    main = '#include "cuda.h"\n' + "".join(f'#include "{name}.h"\n' for name in SHAPES)
    main += "Status work(cudaStream_t s) { worked = s; return 0; }\n"
    for name in SHAPES:
        main += (
            f"Status {name}_InitializeFFI(cudaStream_t xla) {{\n"
            f"  return {name}::capture(Work(work), xla);\n}}\n"
        )
    main += "int number(cudaStream_t s) { return int(s - streams); }\nint main() {\n"
    for name in SHAPES:
        main += (
            f"  {name}_InitializeFFI(streams);\n"
            f'  std::printf("{name} %d %d %d", number(captured), number(ended), number(worked));\n'
            f"  {name}_InitializeFFI(streams);\n"
            f'  std::printf(" %d %f\\n", number(captured), open_ms);\n'
        )
    tree["main.cpp"] = main + "}\n"
    tree |= instrument(tree).files
    tree["cuda.h"] = CUDA
    for path, text in tree.items():
        (folder / path).write_bytes(text.encode())
    command = [compiler, "-std=c++17", "-Wall", "-Werror", "main.cpp", "-o", "shapes"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "shapes"


def run(program: Path, environment: Mapping[str, str]) -> dict[str, Ran]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RACEWATCH_")}
    done = subprocess.run(
        [program], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return {
        name: Ran(int(captured), int(ended), int(worked), int(again), float(open_ms))
        for name, captured, ended, worked, again, open_ms in rows
    }


def test_the_commits_own_stream_is_kept_by_default(program: Path) -> None:
    ran = run(program, {})
    assert {name: ran[name].captured == 0 for name in ran} == {
        **dict.fromkeys(FROM_XLA, True),
        **dict.fromkeys(OWN, False),
    }


def test_an_owned_stream_is_captured_and_worked_on_and_kept(program: Path) -> None:
    ran = run(program, {"RACEWATCH_CAPTURE_STREAM": "owned"})
    assert set(ran) == {*FROM_XLA, *OWN}
    assert [name for name, one in ran.items() if one.captured == 0] == []
    assert [n for n, one in ran.items() if not one.captured == one.ended == one.worked] == []
    owned = {ran[name].captured for name in FROM_XLA} | {ran[name].again for name in FROM_XLA}
    assert len(owned - {ran["sometimes_owned"].captured}) <= 1


def test_another_choice_of_stream_is_the_commits_own(program: Path) -> None:
    assert run(program, {"RACEWATCH_CAPTURE_STREAM": ""})["stock"].captured == 0


def test_every_capture_is_held_open(program: Path) -> None:
    ran = run(program, {"RACEWATCH_HOLD_MS": "7.5"})
    assert [name for name, one in ran.items() if one.open_ms < 7.5] == []


def test_each_entry_of_a_handler_is_one_line_of_the_trace(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("earlier\n")
    ran = run(program, {"RACEWATCH_TRACE": str(trace)})
    expected = [f"{name}_InitializeFFI" for name in ran for _ in range(2)]
    assert trace.read_text().splitlines() == ["earlier", *expected]


def test_a_trace_that_cannot_be_written_is_an_error(program: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(program, {"RACEWATCH_TRACE": str(tmp_path / "missing" / "trace")})
    assert "cannot append to RACEWATCH_TRACE" in caught.value.stderr
