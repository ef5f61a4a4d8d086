"""Which handlers gain an initialize stage, and how the stage is written."""

from __future__ import annotations

import pytest

from runner.errors import VariantError
from runner.variants.cpp import Source
from runner.variants.ffi13 import HANDLERS, widen
from runner.variants.stream import instrument

FFI_H = """\
template <typename... Args>
Error_Type wrapInStreamCapture(std::function<Error_Type(cudaStream_t, Args...)> func,
                               cudaStream_t stream, Args... args) {
  cudaGraph_t graph{};
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  Error_Type error = func(stream, std::forward<Args>(args)...);
  CHECK(cudaStreamEndCapture(stream, &graph));
  return error;
}
"""
ACT = """\
Error_Type ActLuInitializeFFI(cudaStream_t stream, Buffer in) {
  return wrapInStreamCapture(std::function(ActLuFFI), stream, in);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ActLuInitializeHandler, ActLuInitializeFFI,
                              FFI::Bind<FFI_Initialize>().Ctx<Stream>().Arg<Buffer>());
"""
DEQUANTIZE = """\
Error_Type DequantizeFFI(cudaStream_t stream, Buffer in,  // what to read
                         Result out, double scale = 1.0) {
  return launch(stream, in, out, scale);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DequantizeHandler, DequantizeFFI,
                              FFI::Bind()
                                  .Ctx<Stream>()  // stream
                                  .Arg<Buffer>()  // input
                                  .Ret<Buffer>()
                                  .Attr<double>("scale"),  // scale
                              FFI_CudaGraph_Traits);
"""
TREE = {
    "extensions.h": "DECLARE(ActLuHandler);\nXLA_FFI_DECLARE_HANDLER_SYMBOL(DequantizeHandler);\n",
    "extensions/act.cpp": ACT,
    "extensions/ffi.h": FFI_H,
    "extensions/pybind.cpp": """\
pybind11::dict Registrations() {
  pybind11::dict dict;
  dict["te_dequantize_ffi"] = EncapsulateFFI(DequantizeHandler);
  return dict;
}
""",
    "extensions/quantization.cpp": DEQUANTIZE,
}


def changed(path: str, tree: dict[str, str]) -> str:
    return widen(tree).files[path]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_a_stage_captures_the_handlers_own_function() -> None:
    text = squeezed(changed("extensions/quantization.cpp", TREE))
    assert (
        "Error_Type DequantizeInitializeFFI(cudaStream_t stream, Buffer in, Result out, "
        "double scale) { return wrapInStreamCapture(std::function(DequantizeFFI), stream, in, "
        "out, scale); }"
    ) in text


def test_a_stage_is_bound_like_the_execute_handler_without_its_traits() -> None:
    source = Source(changed("extensions/quantization.cpp", TREE))
    execute, initialize = source.invocations("XLA_FFI_DEFINE_HANDLER_SYMBOL")
    arguments = [source.slice(one) for one in initialize.arguments]
    assert arguments[:2] == ["DequantizeInitializeHandler", "DequantizeInitializeFFI"]
    binding = source.slice(execute.arguments[2])
    assert arguments[2] == binding.replace("Bind()", "Bind<FFI_Initialize>()")
    assert len(arguments) == 3


def test_a_stage_is_declared_next_to_its_handler() -> None:
    text = changed("extensions.h", TREE)
    assert text.endswith(
        "XLA_FFI_DECLARE_HANDLER_SYMBOL(DequantizeHandler);\n"
        "XLA_FFI_DECLARE_HANDLER_SYMBOL(DequantizeInitializeHandler);\n"
    )


def test_a_plain_registration_becomes_a_dict_of_stages() -> None:
    assert (
        'dict["te_dequantize_ffi"] = pybind11::dict(pybind11::arg("initialize") = '
        'EncapsulateFFI(DequantizeInitializeHandler), pybind11::arg("execute") = '
        "EncapsulateFFI(DequantizeHandler));"
    ) in squeezed(changed("extensions/pybind.cpp", TREE))


def test_a_registration_with_stages_keeps_them() -> None:
    pybind = TREE["extensions/pybind.cpp"].replace(
        "EncapsulateFFI(DequantizeHandler)",
        'pybind11::dict(pybind11::arg("prepare") = EncapsulateFFI(PrepareHandler),\n'
        '    pybind11::arg("execute") = EncapsulateFFI(DequantizeHandler))',
    )
    text = changed("extensions/pybind.cpp", {**TREE, "extensions/pybind.cpp": pybind})
    assert (
        'pybind11::dict(pybind11::arg("prepare") = EncapsulateFFI(PrepareHandler), '
        'pybind11::arg("initialize") = EncapsulateFFI(DequantizeInitializeHandler), '
        'pybind11::arg("execute") = EncapsulateFFI(DequantizeHandler));'
    ) in squeezed(text)


def test_a_stage_follows_the_names_that_the_commit_uses() -> None:
    tree = {path: text.replace("wrapInStreamCapture", "Discard") for path, text in TREE.items()}
    tree["extensions/act.cpp"] = (
        tree["extensions/act.cpp"]
        .replace("return Discard(", "return te::Discard(")
        .replace("FFI_Initialize", "Stage::kInitialize")
    )
    text = changed("extensions/quantization.cpp", tree)
    assert "return te::Discard(std::function(DequantizeFFI), stream" in text
    assert "FFI::Bind<Stage::kInitialize>()" in text


def test_a_parameter_without_a_name_gets_one() -> None:
    quantization = DEQUANTIZE.replace("Buffer in,", "Buffer /*in*/,")
    text = squeezed(
        changed(
            "extensions/quantization.cpp", {**TREE, "extensions/quantization.cpp": quantization}
        )
    )
    assert "DequantizeInitializeFFI(cudaStream_t stream, Buffer argument1, Result out" in text
    assert "stream, argument1, out, scale);" in text


def test_the_result_says_which_of_the_thirteen_are_not_there() -> None:
    result = widen(TREE)
    assert result.gained == ("Dequantize",)
    assert result.present == ()
    assert result.absent == tuple(one for one in HANDLERS if one != "Dequantize")


def test_a_stage_that_the_commit_has_is_left_alone() -> None:
    once = {**TREE, **widen(TREE).files}
    again = widen(once)
    assert again.files == {}
    assert again.gained == ()
    assert again.present == ("Dequantize",)


def test_a_stage_that_is_defined_but_not_registered_is_only_registered() -> None:
    done = widen(TREE).files
    tree = {**TREE, **done, "extensions/pybind.cpp": TREE["extensions/pybind.cpp"]}
    assert set(widen(tree).files) == {"extensions/pybind.cpp"}


def test_a_commit_without_initialize_stages_is_refused_with_the_reason() -> None:
    tree = {path: text for path, text in TREE.items() if path != "extensions/act.cpp"}
    with pytest.raises(VariantError, match="no stream capture in the FFI initialize stage"):
        widen(tree)


def test_a_commit_with_none_of_the_thirteen_is_refused() -> None:
    tree = {**TREE, "extensions/quantization.cpp": ""}
    with pytest.raises(VariantError, match="none of the 13 handlers"):
        widen(tree)


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        ("quantization.cpp", "DequantizeFFI(cuda", "OtherFFI(cuda", "no function 'DequantizeFFI'"),
        ("quantization.cpp", "cudaStream_t stream, ", "", "does not take a stream first"),
        ("quantization.cpp", "FFI::Bind()", "binding()", "no binding in the definition"),
        ("pybind.cpp", "DequantizeHandler", "OtherHandler", "no registration of Dequantize"),
    ],
)
def test_a_handler_that_cannot_be_read_is_named(path: str, old: str, new: str, reason: str) -> None:
    path = f"extensions/{path}"
    with pytest.raises(VariantError, match="ffi13") as caught:
        widen({**TREE, path: TREE[path].replace(old, new)})
    assert reason in str(caught.value)


def test_a_handler_that_is_not_declared_is_named() -> None:
    with pytest.raises(VariantError, match="no declaration of DequantizeHandler"):
        widen({**TREE, "extensions.h": ""})


def test_the_order_of_the_transforms_does_not_matter() -> None:
    widened = {**TREE, **widen(TREE).files}
    first = {**widened, **instrument(widened).files}
    instrumented = {**TREE, **instrument(TREE).files}
    other = {**instrumented, **widen(instrumented).files}
    assert {**other, **instrument(other).files} == first


def test_there_are_thirteen_and_grouped_quantize_v1_is_none() -> None:
    assert len(set(HANDLERS)) == 13
    assert "GroupedQuantize" not in HANDLERS
