"""The demo subject's history: commits as edits of the tree in demo_tree/, oldest first."""

from __future__ import annotations

from dataclasses import dataclass

CSRC = "transformer_engine/jax/csrc"
FFI_H = f"{CSRC}/extensions/ffi.h"
EXTENSIONS_H = f"{CSRC}/extensions.h"
ACTIVATION = f"{CSRC}/extensions/activation.cpp"
NORMALIZATION = f"{CSRC}/extensions/normalization.cpp"
PYBIND = f"{CSRC}/extensions/pybind.cpp"
QUANTIZATION = f"{CSRC}/extensions/quantization.cpp"
ROUTER = f"{CSRC}/extensions/router.cpp"
SOFTMAX = f"{CSRC}/extensions/softmax.cpp"
GEMM = f"{CSRC}/extensions/gemm.cpp"
MISC_H = f"{CSRC}/extensions/misc.h"
GEMM_CU = "transformer_engine/common/gemm/gemm.cu"
CAST_CU = "transformer_engine/common/cast/cast.cu"
DOCS = "docs/index.rst"


@dataclass(frozen=True)
class Replace:
    """Exchange the one place in `path` that reads `old`."""

    path: str
    old: str
    new: str

    def apply(self, files: dict[str, str]) -> None:
        """Change the file in `files`; the place must be there exactly once."""
        count = files[self.path].count(self.old)
        if count != 1:
            raise ValueError(f"{self.path}: {count} places read {self.old!r}, need exactly one")
        files[self.path] = files[self.path].replace(self.old, self.new)


@dataclass(frozen=True)
class Write:
    """Create `path`, or overwrite it."""

    path: str
    text: str

    def apply(self, files: dict[str, str]) -> None:
        """Put the file into `files`."""
        files[self.path] = self.text


@dataclass(frozen=True)
class Append:
    """Add text at the end of `path`."""

    path: str
    text: str

    def apply(self, files: dict[str, str]) -> None:
        """Change the file in `files`."""
        files[self.path] += self.text


Edit = Replace | Write | Append


@dataclass(frozen=True)
class Commit:
    """One commit: its message, its edits, and the tags on it."""

    subject: str
    edits: tuple[Edit, ...] = ()
    body: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Merge:
    """A merge into main of `branch`, whose commits start at main's tip before `since` commits."""

    subject: str
    branch: tuple[Commit, ...]
    since: int
    tag: str = ""


_CLOSE = """
}  // namespace jax
}  // namespace transformer_engine
"""

_CAPTURE = """\
// Calls an execute function so that nothing runs but the modules of its kernels get loaded: what
// it enqueues is captured into a graph, which is thrown away.
template <typename... Args>
Error_Type wrapInStreamCapture(std::function<Error_Type(cudaStream_t, Args...)> func,
                               cudaStream_t stream, Args... args) {
  cudaGraph_t discarded{};
  NVTE_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));

  Error_Type status = func(stream, std::forward<Args>(args)...);

  NVTE_CHECK_CUDA(cudaStreamEndCapture(stream, &discarded));
  NVTE_CHECK_CUDA(cudaGraphDestroy(discarded));

  return status;
}

}  // namespace jax
}  // namespace transformer_engine

#endif"""

_ACT_INITIALIZE = """Error_Type ActLuInitializeFFI(cudaStream_t stream, Buffer_Type input_buf,
                              Result_Type output_buf, int64_t act_enum,
                              JAXX_Scaling_Mode scaling_mode) {
  return wrapInStreamCapture(std::function(ActLuFFI), stream, input_buf, output_buf, act_enum,
                             scaling_mode);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ActLuInitializeHandler, ActLuInitializeFFI,
                              FFI::Bind<FFI_Initialize>()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // input
                                  .Ret<Buffer_Type>()      // output
                                  .Attr<int64_t>("act_enum")
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode"));

"""

_DACT_INITIALIZE = """
Error_Type DActLuDBiasQuantizeInitializeFFI(cudaStream_t stream, Buffer_Type grad_buf,
                                            Buffer_Type act_input_buf, Result_Type output_buf,
                                            Result_Type dbias_buf, int64_t act_enum,
                                            JAXX_Scaling_Mode scaling_mode, bool is_dbias) {
  return wrapInStreamCapture(std::function(DActLuDBiasQuantizeFFI), stream, grad_buf, act_input_buf,
                             output_buf, dbias_buf, act_enum, scaling_mode, is_dbias);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DActLuDBiasQuantizeInitializeHandler,
                              DActLuDBiasQuantizeInitializeFFI,
                              FFI::Bind<FFI_Initialize>()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // gradient
                                  .Arg<Buffer_Type>()      // act input
                                  .Ret<Buffer_Type>()      // output
                                  .Ret<Buffer_Type>()      // dbias
                                  .Attr<int64_t>("act_enum")
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode")
                                  .Attr<bool>("is_dbias"));
"""

_NORM_FORWARD_INITIALIZE = """Error_Type NormForwardInitializeFFI(cudaStream_t stream, \
Buffer_Type x_buf, Buffer_Type gamma_buf,
                                    Buffer_Type beta_buf, Result_Type output_buf,
                                    Result_Type mu_buf, Result_Type rsigma_buf, int64_t norm_type,
                                    double epsilon) {
  return wrapInStreamCapture(std::function(NormForwardFFI), stream, x_buf, gamma_buf, beta_buf,
                             output_buf, mu_buf, rsigma_buf, norm_type, epsilon);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormForwardInitializeHandler, NormForwardInitializeFFI,
                              FFI::Bind<FFI_Initialize>()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // x
                                  .Arg<Buffer_Type>()      // gamma
                                  .Arg<Buffer_Type>()      // beta
                                  .Ret<Buffer_Type>()      // output
                                  .Ret<Buffer_Type>()      // mu
                                  .Ret<Buffer_Type>()      // rsigma
                                  .Attr<int64_t>("norm_type")
                                  .Attr<double>("epsilon"));

"""

_NORM_BACKWARD_INITIALIZE = """
Error_Type NormBackwardInitializeFFI(cudaStream_t stream, Buffer_Type dz_buf, Buffer_Type x_buf,
                                     Buffer_Type mu_buf, Buffer_Type rsigma_buf,
                                     Buffer_Type gamma_buf, Result_Type xgrad_buf,
                                     Result_Type wgrad_buf, Result_Type dbeta_buf,
                                     int64_t norm_type) {
  return wrapInStreamCapture(std::function(NormBackwardFFI), stream, dz_buf, x_buf, mu_buf,
                             rsigma_buf, gamma_buf, xgrad_buf, wgrad_buf, dbeta_buf, norm_type);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormBackwardInitializeHandler, NormBackwardInitializeFFI,
                              FFI::Bind<FFI_Initialize>()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // dz
                                  .Arg<Buffer_Type>()      // x
                                  .Arg<Buffer_Type>()      // mu
                                  .Arg<Buffer_Type>()      // rsigma
                                  .Arg<Buffer_Type>()      // gamma
                                  .Ret<Buffer_Type>()      // xgrad
                                  .Ret<Buffer_Type>()      // wgrad
                                  .Ret<Buffer_Type>()      // dbeta
                                  .Attr<int64_t>("norm_type"));
"""


def _declare(handler: str) -> Replace:
    line = f"XLA_FFI_DECLARE_HANDLER_SYMBOL({handler}Handler);\n"
    added = f"XLA_FFI_DECLARE_HANDLER_SYMBOL({handler}InitializeHandler);\n"
    return Replace(EXTENSIONS_H, line, line + added)


_RACE = (
    Replace(
        FFI_H,
        "constexpr auto FFI_CudaGraph_Traits",
        "constexpr auto FFI_Initialize = xla::ffi::ExecutionStage::kInitialize;\n"
        "constexpr auto FFI_CudaGraph_Traits",
    ),
    Replace(
        FFI_H,
        "}  // namespace jax\n}  // namespace transformer_engine\n\n#endif",
        _CAPTURE,
    ),
    _declare("ActLu"),
    _declare("DActLuDBiasQuantize"),
    _declare("NormForward"),
    _declare("NormBackward"),
    Replace(
        ACTIVATION,
        "Error_Type DActLuDBiasQuantizeFFI(",
        _ACT_INITIALIZE + "Error_Type DActLuDBiasQuantizeFFI(",
    ),
    Replace(ACTIVATION, _CLOSE, _DACT_INITIALIZE + _CLOSE),
    Replace(
        NORMALIZATION,
        "Error_Type NormBackwardFFI(",
        _NORM_FORWARD_INITIALIZE + "Error_Type NormBackwardFFI(",
    ),
    Replace(NORMALIZATION, _CLOSE, _NORM_BACKWARD_INITIALIZE + _CLOSE),
    Replace(
        PYBIND,
        """  dict["te_act_lu_ffi"] = EncapsulateFFI(ActLuHandler);
  dict["te_dact_dbias_quantize_ffi"] = EncapsulateFFI(DActLuDBiasQuantizeHandler);
""",
        """  dict["te_act_lu_ffi"] =
      pybind11::dict(pybind11::arg("initialize") = EncapsulateFFI(ActLuInitializeHandler),
                     pybind11::arg("execute") = EncapsulateFFI(ActLuHandler));
  dict["te_dact_dbias_quantize_ffi"] = pybind11::dict(
      pybind11::arg("initialize") = EncapsulateFFI(DActLuDBiasQuantizeInitializeHandler),
      pybind11::arg("execute") = EncapsulateFFI(DActLuDBiasQuantizeHandler));
""",
    ),
    Replace(
        PYBIND,
        """  dict["te_norm_forward_ffi"] = EncapsulateFFI(NormForwardHandler);
  dict["te_norm_backward_ffi"] = EncapsulateFFI(NormBackwardHandler);
""",
        """  dict["te_norm_forward_ffi"] =
      pybind11::dict(pybind11::arg("initialize") = EncapsulateFFI(NormForwardInitializeHandler),
                     pybind11::arg("execute") = EncapsulateFFI(NormForwardHandler));
  dict["te_norm_backward_ffi"] =
      pybind11::dict(pybind11::arg("initialize") = EncapsulateFFI(NormBackwardInitializeHandler),
                     pybind11::arg("execute") = EncapsulateFFI(NormBackwardHandler));
""",
    ),
)

_CAPTURE_BODY = """  cudaGraph_t discarded{};
  NVTE_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));

  Error_Type status = func(stream, std::forward<Args>(args)...);

  NVTE_CHECK_CUDA(cudaStreamEndCapture(stream, &discarded));
  NVTE_CHECK_CUDA(cudaGraphDestroy(discarded));
"""

_FIX = (
    Replace(FFI_H, "#include <string>\n", "#include <map>\n#include <string>\n"),
    Replace(
        FFI_H,
        "// Calls an execute function so that nothing runs",
        """\
// A stream of ours to capture on, one per thread and device. Other threads know nothing of
// it, so the graph that is thrown away never holds work of theirs.
inline cudaStream_t captureStream() {
  thread_local std::map<int, cudaStream_t> streams;
  int device = 0;
  NVTE_CHECK_CUDA(cudaGetDevice(&device));
  cudaStream_t &stream = streams[device];
  if (stream == nullptr) {
    NVTE_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  return stream;
}

// Calls an execute function so that nothing runs""",
    ),
    Replace(
        FFI_H,
        "                               cudaStream_t stream, Args... args) {\n" + _CAPTURE_BODY,
        """                               cudaStream_t /*stream*/, Args... args) {
  cudaStream_t capture = captureStream();
  cudaGraph_t discarded{};
  NVTE_CHECK_CUDA(cudaStreamBeginCapture(capture, cudaStreamCaptureModeRelaxed));

  Error_Type status = func(capture, std::forward<Args>(args)...);

  NVTE_CHECK_CUDA(cudaStreamEndCapture(capture, &discarded));
  NVTE_CHECK_CUDA(cudaGraphDestroy(discarded));
""",
    ),
)

PULL_NUMBER = 7
PULL_BASE = "race"
"""The pull request's branch starts at the commit with this tag."""

PULL = (
    Commit(
        "Capture on a stream made for the call",
        (
            Replace(
                FFI_H,
                _CAPTURE_BODY,
                """  // XLA's stream is open to other threads: their work must not get in here.
  cudaStream_t own{};
  NVTE_CHECK_CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  cudaGraph_t discarded{};
  NVTE_CHECK_CUDA(cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed));

  Error_Type status = func(own, std::forward<Args>(args)...);

  NVTE_CHECK_CUDA(cudaStreamEndCapture(own, &discarded));
  NVTE_CHECK_CUDA(cudaGraphDestroy(discarded));
  NVTE_CHECK_CUDA(cudaStreamDestroy(own));
""",
            ),
            Replace(
                FFI_H,
                "                               cudaStream_t stream, Args... args) {",
                "                               cudaStream_t /*stream*/, Args... args) {",
            ),
        ),
    ),
    Commit(
        "Say in the documentation what the initialize stage does",
        (
            Write(
                "docs/initialize.rst",
                """Initialize
==========

Before its first execution a target's initialize stage loads the modules of its kernels. It
captures the execute stage on a stream of its own and throws the graph away.
""",
            ),
        ),
    ),
)

_TOPK_CHECK = """  (void)topk;  // the routing map already says which experts were chosen
"""

HISTORY: tuple[Commit | Merge, ...] = (
    Commit("Add the miniature"),
    Commit(
        "[Docs] List the FFI targets",
        (
            Append(
                DOCS,
                """
Targets
-------

Every target is called ``te_<operator>_ffi``.
""",
            ),
        ),
    ),
    Commit(
        "[JAX] Check the rank of a tensor before use",
        (
            Replace(
                f"{CSRC}/extensions/ffi.cpp",
                "  std::vector<size_t> shape;\n",
                "  NVTE_CHECK(buffer.dimensions().size() > 0, "
                '"Scalars are passed as one element.");\n'
                "  std::vector<size_t> shape;\n",
            ),
        ),
    ),
    Commit(
        "[JAX] Name the scaling modes in errors",
        (
            Replace(
                MISC_H,
                "inline bool is_low_precision",
                """inline const char *scaling_mode_name(JAXX_Scaling_Mode mode) {
  switch (mode) {
    case JAXX_Scaling_Mode::NO_SCALING:
      return "none";
    case JAXX_Scaling_Mode::DELAYED_TENSOR_SCALING:
      return "delayed tensor";
    case JAXX_Scaling_Mode::MXFP8_1D_SCALING:
      return "MXFP8";
    case JAXX_Scaling_Mode::CURRENT_TENSOR_SCALING:
      return "current tensor";
  }
  return "unknown";
}

inline bool is_low_precision""",
            ),
            Replace(
                QUANTIZATION,
                '"MXFP8 scales blocks, which this quantizer does not."',
                'scaling_mode_name(scaling_mode), " scales blocks, this quantizer does not."',
            ),
        ),
    ),
    Commit(
        "[Docs] Say what is rounded",
        (
            Append(
                DOCS,
                """
Precision
---------

In low precision the operands of a GEMM are rounded to a grid of 1/64.
""",
            ),
        ),
    ),
    Commit(
        "[Common] Walk the right operand of the GEMM row by row",
        (
            Replace(
                GEMM_CU,
                """    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (size_t l = 0; l < k; ++l) {
          float left = operand(lhs_transposed ? a[l * m + i] : a[i * k + l]);
          float right = operand(rhs_transposed ? b[j * k + l] : b[l * n + j]);
          sum += left * right;
        }
        c[i * n + j] = sum;
      }
    }
""",
                """    // Each sum takes its products in the order of l, so its bits stay.
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) c[i * n + j] = 0;
      for (size_t l = 0; l < k; ++l) {
        float left = operand(lhs_transposed ? a[l * m + i] : a[i * k + l]);
        for (size_t j = 0; j < n; ++j) {
          c[i * n + j] += left * operand(rhs_transposed ? b[j * k + l] : b[l * n + j]);
        }
      }
    }
""",
            ),
        ),
        body="The left operand is rounded once, and memory is read in order. No result changes.",
    ),
    Commit(
        "[JAX] Accept only the activations that there are",
        (
            Replace(
                ACTIVATION,
                "  nvte_act(input_tensor",
                '  NVTE_CHECK(act_enum == 0 || act_enum == 1, "Unknown activation: ", act_enum);\n'
                "  nvte_act(input_tensor",
            ),
        ),
    ),
    Commit(
        "Raise the version to 0.2.0", (Write("build_tools/VERSION.txt", "0.2.0\n"),), tag="before"
    ),
    Commit(
        "[JAX] Load modules in the initialize stage of norm and activation",
        _RACE,
        body="A module that is first loaded while XLA captures a command buffer fails\n"
        "the capture. Load them earlier: give these targets an initialize stage,\n"
        "which captures what they would execute.",
        tag="race",
    ),
    Commit(
        "[Docs] Mention the initialize stage",
        (
            Append(
                DOCS,
                """
Stages
------

Norm and activation have an initialize stage besides execute.
""",
            ),
        ),
    ),
    Commit(
        "[JAX] Check topk in the router's backward",
        (
            Replace(
                ROUTER,
                _TOPK_CHECK,
                '  NVTE_CHECK(topk > 0, "topk is out of range: ", topk);\n',
            ),
        ),
    ),
    Merge(
        "Merge branch 'softmax-checks'",
        (
            Commit(
                "[JAX] Refuse a softmax with no scale",
                (
                    Replace(
                        SOFTMAX,
                        "#define SOFTMAX_BACKWARD_COMMON_BLOCK ",
                        """float checked_scale(double scale) {
  NVTE_CHECK(scale > 0, "The scale must be positive: ", scale);
  return static_cast<float>(scale);
}

#define SOFTMAX_BACKWARD_COMMON_BLOCK """,
                    ),
                ),
            ),
            Commit(
                "[JAX] Check the scale in every softmax backward",
                (
                    Replace(
                        SOFTMAX,
                        "  auto dgrad_tensor = as_tensor(*dgrad_buf);                  \\\n"
                        "  float scale_factor = static_cast<float>(scale_factor_);",
                        "  auto dgrad_tensor = as_tensor(*dgrad_buf);                  \\\n"
                        "  float scale_factor = checked_scale(scale_factor_);",
                    ),
                ),
            ),
        ),
        since=2,
    ),
    Commit(
        "[JAX] Let the quantizer count what it saturates",
        (
            Replace(
                QUANTIZATION,
                "scale_inv_tensor.data(), stream);\n  if (is_dbias) {\n",
                "scale_inv_tensor.data(), stream);\n"
                "  count_saturated(output_tensor.data(), stream);\n"
                "  if (is_dbias) {\n",
            ),
        ),
        tag="broken",
    ),
    Commit(
        "[JAX] Take the saturation count out again",
        (
            Replace(
                QUANTIZATION,
                "  count_saturated(output_tensor.data(), stream);\n",
                "",
            ),
        ),
        body="Its kernel was never added, so the extension did not compile.",
    ),
    Commit(
        "[Docs] Fix a heading",
        (Replace(DOCS, "Targets\n-------", "FFI targets\n-----------"),),
    ),
    Commit(
        "[Common] Say how the quantizer rounds",
        (
            Replace(
                CAST_CU,
                "uint8_t to_byte(float value, float scale_inv) {\n",
                "// Rounds half to even.\nuint8_t to_byte(float value, float scale_inv) {\n",
            ),
        ),
    ),
    Commit(
        "[JAX] Check the shapes of a GEMM's operands",
        (
            Replace(
                GEMM,
                "  nvte_gemm(",
                "  NVTE_CHECK(lhs_buf.dimensions().size() == 2 && "
                "rhs_buf.dimensions().size() == 2,\n"
                '             "A GEMM takes matrices.");\n'
                "  nvte_gemm(",
            ),
        ),
    ),
    Commit(
        "Raise the version to 0.3.0",
        (Write("build_tools/VERSION.txt", "0.3.0\n"),),
    ),
    Commit(
        "[Docs] Explain the router",
        (
            Append(
                DOCS,
                """
Router
------

Each token goes to the experts with its k best scores; of equal scores the first wins.
""",
            ),
        ),
    ),
    Commit(
        "[JAX] Name the group that does not fit",
        (
            Replace(
                QUANTIZATION,
                "  for (int32_t size : sizes) rows += size;\n",
                "  for (int32_t size : sizes) {\n"
                '    NVTE_CHECK(size >= 0, "A group has a negative size: ", size);\n'
                "    rows += size;\n"
                "  }\n",
            ),
        ),
    ),
    Commit(
        "[JAX] Call the norms by name in errors",
        (
            Replace(
                NORMALIZATION,
                """Error_Type NormForwardFFI(cudaStream_t stream, Buffer_Type x_buf, """
                """Buffer_Type gamma_buf,
                          Buffer_Type beta_buf, Result_Type output_buf, Result_Type mu_buf,
                          Result_Type rsigma_buf, int64_t norm_type, double epsilon) {
  NVTE_CHECK(static_cast<NVTE_Norm_Type>(norm_type) == NVTE_Norm_Type::LayerNorm,
             "Unsupported norm type: ", norm_type);
""",
                """Error_Type NormForwardFFI(cudaStream_t stream, Buffer_Type x_buf, """
                """Buffer_Type gamma_buf,
                          Buffer_Type beta_buf, Result_Type output_buf, Result_Type mu_buf,
                          Result_Type rsigma_buf, int64_t norm_type, double epsilon) {
  NVTE_CHECK(static_cast<NVTE_Norm_Type>(norm_type) == NVTE_Norm_Type::LayerNorm,
             "Only layer norm is supported, not norm type ", norm_type);
""",
            ),
        ),
    ),
    Commit(
        "[JAX] Capture on a stream of our own in the initialize stage",
        _FIX,
        body="XLA's stream is shared by all host threads: whatever another one enqueued\n"
        "on it while the capture was open went into the discarded graph. Modules\n"
        "are loaded per context, so any stream serves.",
        tag="fix",
    ),
    Commit(
        "[Docs] Tell why the initialize stage has a stream of its own",
        (
            Append(
                DOCS,
                """
It captures on a stream that no other thread can reach.
""",
            ),
        ),
    ),
    Commit(
        "[JAX] Check the epsilon of a norm",
        (
            Replace(
                NORMALIZATION,
                "  auto gamma_tensor = as_tensor(gamma_buf);\n  auto beta_tensor",
                '  NVTE_CHECK(epsilon >= 0, "A norm\'s epsilon must not be negative: ", epsilon);\n'
                "  auto gamma_tensor = as_tensor(gamma_buf);\n  auto beta_tensor",
            ),
        ),
    ),
    Commit(
        "[Docs] Link the sections",
        (Replace(DOCS, ".. contents::\n", ".. contents::\n   :local:\n"),),
    ),
    Commit("Raise the version to 0.4.0", (Write("build_tools/VERSION.txt", "0.4.0\n"),)),
)
"""Main's first-parent history."""
