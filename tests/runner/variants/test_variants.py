"""The build kinds on the real sources of TransformerEngine 2.20.2."""

from __future__ import annotations

import difflib
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from runner.errors import VariantError
from runner.variants import Applied, BuildKind, Variant, apply, read, transform
from runner.variants.cpp import Source
from runner.variants.ffi13 import HANDLERS


def test_a_source_larger_than_anyone_writes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "huge.cpp").write_bytes(b"\n" * (4 * 2**20 + 1))
    with pytest.raises(VariantError, match=r"extensions/huge\.cpp has 4\.0 MiB, more than 4"):
        apply(BuildKind.STOCK, tmp_path)


INSTRUMENTED_FILES = (
    "extensions/activation.cpp",
    "extensions/amax.cpp",
    "extensions/ffi.h",
    "extensions/normalization.cpp",
    "racewatch.h",
)
FFI13_FILES = (
    "extensions.h",
    "extensions/activation.cpp",
    "extensions/amax.cpp",
    "extensions/ffi.h",
    "extensions/normalization.cpp",
    "extensions/pybind.cpp",
    "extensions/quantization.cpp",
    "extensions/router.cpp",
    "extensions/softmax.cpp",
    "racewatch.h",
)
OWN_STAGES = ("ActLu", "DActLuDBiasQuantize", "RHTAmaxCalculation", "NormForward", "NormBackward")


@pytest.fixture(scope="module")
def instrumented(te_csrc: dict[str, str]) -> Applied:
    return transform(BuildKind.INSTRUMENTED, te_csrc)


@pytest.fixture(scope="module")
def ffi13(te_csrc: dict[str, str]) -> Applied:
    return transform(BuildKind.FFI13, te_csrc)


def lost_lines(stock: dict[str, str], applied: Applied) -> list[tuple[str, str]]:
    """Lines of the stock tree that the result does not have in their place."""
    return [
        (path, line[2:].strip())
        for path in applied.changed
        if path in stock
        for line in difflib.ndiff(stock[path].splitlines(), applied.files[path].splitlines())
        if line.startswith("- ")
    ]


def is_subsequence(stock: str, text: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in stock)


def stages_in(csrc: dict[str, str]) -> set[str]:
    """Handlers whose registration has an initialize stage."""
    pattern = r'"initialize"\)\s*=\s*EncapsulateFFI\((\w+)InitializeHandler\)'
    return set(re.findall(pattern, csrc["extensions/pybind.cpp"]))


def test_stock_changes_nothing(te_csrc: dict[str, str]) -> None:
    assert transform(BuildKind.STOCK, te_csrc).changed == ()


def test_unregistered_needs_no_build_of_its_own(te_csrc: dict[str, str]) -> None:
    variant = Variant.parse("unregistered")
    assert transform(variant.build_kind(0), te_csrc).changed == ()
    assert variant.registration == "unregistered"


def test_instrumented_changes_only_the_capture_and_its_callers(instrumented: Applied) -> None:
    assert instrumented.changed == INSTRUMENTED_FILES


def test_instrumented_only_touches_the_line_that_begins_the_capture(
    te_csrc: dict[str, str], instrumented: Applied
) -> None:
    ((path, line),) = lost_lines(te_csrc, instrumented)
    assert path == "extensions/ffi.h"
    assert "cudaStreamBeginCapture" in line


def test_ffi13_changes_only_the_handlers_and_their_registration(ffi13: Applied) -> None:
    assert ffi13.changed == FFI13_FILES


def test_ffi13_only_touches_the_registrations_besides(
    te_csrc: dict[str, str], ffi13: Applied
) -> None:
    lost = lost_lines(te_csrc, ffi13)
    registrations = [line for path, line in lost if path == "extensions/pybind.cpp"]
    wrapped = [re.findall(r"EncapsulateFFI\((\w+)Handler\)", line) for line in registrations]
    assert sorted(name for names in wrapped for name in names) == sorted(HANDLERS)
    assert [path for path, _ in lost if path != "extensions/pybind.cpp"] == ["extensions/ffi.h"]


@pytest.mark.parametrize("kind", [BuildKind.INSTRUMENTED, BuildKind.FFI13])
def test_every_character_of_stock_is_kept_in_order(
    te_csrc: dict[str, str], kind: BuildKind
) -> None:
    for path, text in transform(kind, te_csrc).files.items():
        assert is_subsequence(te_csrc.get(path, ""), text), path


def test_exactly_thirteen_handlers_gain_an_initialize_stage(
    te_csrc: dict[str, str], ffi13: Applied
) -> None:
    assert ffi13.gained == tuple(HANDLERS)
    assert (ffi13.present, ffi13.absent) == ((), ())
    assert stages_in(te_csrc) == set(OWN_STAGES)
    assert stages_in({**te_csrc, **ffi13.files}) == {*OWN_STAGES, *HANDLERS}


def test_each_gained_stage_is_defined_declared_and_registered_once(
    te_csrc: dict[str, str], ffi13: Applied
) -> None:
    tree = {path: Source(text) for path, text in {**te_csrc, **ffi13.files}.items()}
    for handler in HANDLERS:
        symbol = f"{handler}InitializeHandler"
        places = sorted(path for path, one in tree.items() for _ in one.words(symbol))
        assert places[:2] == ["extensions.h", "extensions/pybind.cpp"]
        assert len(places) == 3
        functions = [one.name for s in tree.values() for one in s.functions]
        assert functions.count(f"{handler}InitializeFFI") == 1


def test_the_stages_that_were_registered_stay(te_csrc: dict[str, str], ffi13: Applied) -> None:
    pattern = r'arg\("(\w+)"\)\s*=\s*EncapsulateFFI\((\w+)\)'
    before = Counter(re.findall(pattern, te_csrc["extensions/pybind.cpp"]))
    after = Counter(re.findall(pattern, ffi13.files["extensions/pybind.cpp"]))
    assert before <= after
    assert Counter(stage for stage, _ in (after - before).elements()) == {
        "initialize": 13,
        "execute": 13,
    }


def test_every_stage_says_which_function_it_reports(instrumented: Applied, ffi13: Applied) -> None:
    assert {one.function for one in instrumented.stages} == {
        f"{h}InitializeFFI" for h in OWN_STAGES
    }
    assert {one.handler: one.function for one in ffi13.stages} == {
        f"{h}InitializeHandler": f"{h}InitializeFFI" for h in (*OWN_STAGES, *HANDLERS)
    }


def test_a_capture_on_xlas_stream_needs_an_owned_stream(instrumented: Applied) -> None:
    assert instrumented.owned_stream_needed is True
    assert [(one.path, one.function) for one in instrumented.captures] == [
        ("extensions/ffi.h", "wrapInStreamCapture")
    ]


@pytest.mark.parametrize("kind", list(BuildKind))
def test_applying_twice_changes_nothing(te_csrc_dir: Path, tmp_path: Path, kind: BuildKind) -> None:
    folder = tmp_path / "csrc"
    shutil.copytree(te_csrc_dir, folder)
    first = apply(kind, folder)
    once = read(folder)
    second = apply(kind, folder)
    assert second.changed == ()
    assert read(folder) == once
    assert second.owned_stream_needed == first.owned_stream_needed
    assert second.stages == first.stages


@pytest.mark.parametrize("kind", list(BuildKind))
def test_what_is_applied_to_a_folder_is_what_the_transform_says(
    te_csrc_dir: Path, te_csrc: dict[str, str], tmp_path: Path, kind: BuildKind
) -> None:
    folder = tmp_path / "csrc"
    shutil.copytree(te_csrc_dir, folder)
    applied = apply(kind, folder)
    assert applied == transform(kind, te_csrc)
    assert read(folder) == {**te_csrc, **applied.files}


def with_the_issues_patch(te_csrc: dict[str, str]) -> dict[str, str]:
    """The fix that issue 3863 proposes, made on the commit's own text."""
    text = te_csrc["extensions/ffi.h"]
    at = Source(text).functions[-1].start
    head, body = text[:at], text[at:]
    owned = (
        "inline cudaStream_t captureStreamForCurrentDevice() {\n"
        "  thread_local std::unordered_map<int, cudaStream_t> streams;\n"
        "  int device = 0;\n"
        "  NVTE_CHECK_CUDA(cudaGetDevice(&device));\n"
        "  auto [it, inserted] = streams.try_emplace(device, nullptr);\n"
        "  if (inserted) {\n"
        "    NVTE_CHECK_CUDA(cudaStreamCreateWithFlags(&it->second, cudaStreamNonBlocking));\n"
        "  }\n"
        "  return it->second;\n"
        "}\n\n"
    )
    for old, new in (
        ("cudaStream_t stream, Args", "cudaStream_t /*stream*/, Args"),
        (
            "cudaGraph_t graph{};",
            "cudaStream_t capture = captureStreamForCurrentDevice();\n  cudaGraph_t graph{};",
        ),
        ("BeginCapture(stream,", "BeginCapture(capture,"),
        ("func(stream,", "func(capture,"),
        ("EndCapture(stream,", "EndCapture(capture,"),
    ):
        assert body.count(old) == 1
        body = body.replace(old, new)
    return {**te_csrc, "extensions/ffi.h": head + owned + body}


@pytest.mark.parametrize("kind", [BuildKind.INSTRUMENTED, BuildKind.FFI13])
def test_a_commit_with_the_issues_patch_is_still_held_open_but_needs_no_owned_stream(
    te_csrc: dict[str, str], kind: BuildKind
) -> None:
    applied = transform(kind, with_the_issues_patch(te_csrc))
    assert applied.owned_stream_needed is False
    text = applied.files["extensions/ffi.h"]
    assert "::racewatch::held(cudaStreamBeginCapture(capture, " in text
    assert "capture_stream" not in text
    assert len(applied.gained) == (13 if kind is BuildKind.FFI13 else 0)


@pytest.mark.parametrize("kind", [BuildKind.INSTRUMENTED, BuildKind.FFI13])
def test_nothing_is_written_where_a_kind_does_not_apply(tmp_path: Path, kind: BuildKind) -> None:
    (tmp_path / "ffi.h").write_text("int wrap();\n")
    with pytest.raises(VariantError, match="no stream capture in the FFI initialize stage"):
        apply(kind, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["ffi.h"]
    assert (tmp_path / "ffi.h").read_text() == "int wrap();\n"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(VariantError, match="no folder"):
        apply(BuildKind.STOCK, tmp_path / "missing")


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    capture = (
        b"// caf\xe9\r\nint f(cudaStream_t s) {\r\n  cudaStreamBeginCapture(s, 2);\r\n"
        b"  return cudaStreamEndCapture(s, &g);\r\n}\r\n"
    )
    (tmp_path / "f.cpp").write_bytes(capture)
    apply(BuildKind.INSTRUMENTED, tmp_path)
    text = (tmp_path / "f.cpp").read_bytes()
    assert text.startswith(b"// caf\xe9\r\n")
    assert text.count(b"\n") == text.count(b"\r\n")
