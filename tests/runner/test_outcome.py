"""One outcome per trial or build, from whatever evidence a dead process leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.outcome import FAILURES, Classification, Evidence, Outcome, classify
from runner.outcome_rules import CAPTURE

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "ab" * 32

PREVIOUS_ERROR = "operation failed due to a previous error during capture"
TE_CAPTURE_ERROR = (
    "XLA FFI call failed: /src/transformer_engine/common/util/vectorized_pointwise.h:367 in "
    f"function VectorizedUnaryKernelLauncher: CUDA Error: {PREVIOUS_ERROR}"
)
OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."
STUCK = (
    "W1130 12:00:21.000000  4242 rendezvous.cc:88] This thread has been waiting for 20 seconds "
    "and may be stuck: Expected 8 threads to join the rendezvous, but only 7 of them arrived"
)
RECOVERED = (
    "W1130 12:00:00.000000  4242 bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of memory "
    "trying to allocate 2.25GiB with freed_by_count=0. The caller indicates that this is not a "
    "failure, but this may mean that there could be performance gains if more memory were available"
)


def finished(**facts: object) -> Evidence:
    """A trial that ended clean on a GPU with exact values, but for what `facts` says."""
    clean: dict[str, object] = {
        "exit_status": 0,
        "finished": True,
        "stage": "done",
        "platform": "cuda",
        "expected_platform": "cuda",
        "stale_rows": 0,
        "digest": DIGEST,
        "reference_digest": DIGEST,
    }
    return Evidence(**(clean | facts))  # type: ignore[arg-type]


def failed(output: str = "", **facts: object) -> Evidence:
    """A trial that ended with status 1 while it executed on a GPU, but for what `facts` says."""
    given_facts: dict[str, object] = {
        "output": output,
        "exit_status": 1,
        "stage": "execute",
        "platform": "cuda",
        "expected_platform": "cuda",
    }
    return Evidence(**(given_facts | facts))  # type: ignore[arg-type]


def died(number: int, output: str = "", **facts: object) -> Evidence:
    return failed(output, **({"exit_status": None, "signal": number} | facts))


def stuck(output: str = "", **facts: object) -> Evidence:
    return died(9, output, **({"killed": True} | facts))


def build(output: str = "", **facts: object) -> Evidence:
    return Evidence(kind="build", output=output, **({"exit_status": 1} | facts))  # type: ignore[arg-type]


def outcome(evidence: Evidence) -> Outcome:
    return classify(evidence).outcome


CODES = [pytest.param(error, id=f"{error.number}-{error.name}") for error in CAPTURE]


class TestEveryCaptureError:
    """900 to 908, in each form in which CUDA, XLA, TE, NCCL and PyTorch print them."""

    def test_the_table_holds_exactly_900_to_908(self) -> None:
        assert [error.number for error in CAPTURE] == list(range(900, 909))

    @pytest.mark.parametrize("error", CODES)
    @pytest.mark.parametrize(
        "form",
        [
            pytest.param("{name}", id="by-runtime-name"),
            pytest.param("{driver}", id="by-driver-name"),
            pytest.param("{prose}", id="by-prose"),
            pytest.param("CUDA error: {number}", id="by-number-after-CUDA-error"),
            pytest.param("CUDA error {number} in cudaStreamEndCapture", id="by-bare-number"),
            pytest.param("cudaStreamEndCapture failed with error {number}", id="by-call-and-error"),
            pytest.param("cuStreamEndCapture returned {number}", id="by-call-that-returned"),
            pytest.param("CUDA call failed ({number})", id="by-number-in-brackets"),
            pytest.param("cudaError_t({number})", id="by-type-and-number"),
            pytest.param("CUDA failure {number}: '{prose}'", id="as-NCCL-says-it"),
            pytest.param("CUDA error: {prose} (code {number}, x)", id="as-CUDA.jl-says-it"),
            pytest.param(
                "INTERNAL: CUDA error: Failed to end stream capture: {driver}: {prose}",
                id="as-XLA-says-it",
            ),
        ],
    )
    def test_is_found(self, error: object, form: str) -> None:
        text = form.format(**{k: getattr(error, k) for k in ("name", "driver", "prose", "number")})
        found = classify(failed(error=text))
        assert (found.outcome, found.signature) == (
            Outcome.CAPTURE_ERROR,
            getattr(error, "name"),  # noqa: B009
        )

    @pytest.mark.parametrize("error", CODES)
    def test_is_found_however_a_terminal_cut_its_words(self, error: object) -> None:
        text = f"RuntimeError: CUDA Error: {getattr(error, 'prose')}"  # noqa: B009
        cut = "\n".join(text[i : i + 17] for i in range(0, len(text), 17))
        assert outcome(failed(cut)) is Outcome.CAPTURE_ERROR

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(TE_CAPTURE_ERROR, id="TE's-own-line"),
            pytest.param(PREVIOUS_ERROR.upper(), id="upper-case"),
            pytest.param(PREVIOUS_ERROR.title(), id="title-case"),
            pytest.param(PREVIOUS_ERROR.replace(" ", "\n"), id="one-word-a-line"),
            pytest.param(PREVIOUS_ERROR.replace(" ", "   \t"), id="wide-blanks"),
            pytest.param(
                PREVIOUS_ERROR.replace("a previous", "a\\nprevious"), id="escaped-newline"
            ),
            pytest.param(PREVIOUS_ERROR.replace(" ", "\r\n"), id="windows-newlines"),
            pytest.param(
                "\x1b[1;31moperation failed\x1b[0m due to a \x1b[4mprevious error\x1b[24m during "
                "capture",
                id="colours",
            ),
            pytest.param(
                "\\x1b[31moperation failed\\x1b[0m due to a previous error during capture",
                id="escaped-colours",
            ),
            pytest.param(
                "E   jaxlib.xla_extension.XlaRuntimeError: INTERNAL: operation failed due to a\n"
                "E   previous error during capture",
                id="pytest-prefixes",
            ),
            pytest.param(
                "E1130 12:00:00.000000 1234 gpu.cc:12] CUDA error: operation failed due\n"
                "E1130 12:00:00.000001 1234 gpu.cc:12] to a previous error during capture",
                id="absl-prefix-on-both-lines",
            ),
            pytest.param(
                "2026-11-30 12:00:00.123456: E external/xla/xla/stream.cc:9] operation failed due\n"
                "2026-11-30 12:00:00.123457: E external/xla/xla/stream.cc:9] to a previous error "
                "during capture",
                id="timestamp-and-level-on-both-lines",
            ),
            pytest.param(
                "[rank0]: operation failed due to a previous\n[rank0]: error during capture",
                id="rank-prefixes",
            ),
            pytest.param(
                "trial-1  | operation failed due to a previous\ntrial-1  | error during capture",
                id="compose-prefixes",
            ),
            pytest.param(
                "2026-11-30T12:00:00.123456789Z operation failed due to a\n"
                "2026-11-30T12:00:00.123456790Z previous error during capture",
                id="container-timestamps",
            ),
            pytest.param(
                "ERROR:racewatch:operation failed due to a previous\n"
                "ERROR:racewatch:error during capture",
                id="logging-prefixes",
            ),
            pytest.param(
                "│ operation failed due to a   │\n│ previous error during capture │", id="boxed"
            ),
            pytest.param("CUDA_ERR OR_STREAM_CAPTURE_INVALIDATED", id="a-name-cut-by-a-blank"),
            pytest.param("cudaErrorStreamCapture\nInvalidated", id="a-name-cut-by-a-newline"),
            pytest.param("CUresult.CUDA_ERROR_STREAM_CAPTURE_MERGE", id="as-cuda-python-names-it"),
            pytest.param("CUDA\nerror:\n901", id="a-number-on-a-line-of-its-own"),
            pytest.param("Warp CUDA error 900: (in function x)", id="warp"),
            pytest.param("cudaGetLastError() = 904", id="a-call's-value"),
            pytest.param("cudaStreamEndCapture(stream, &graph) -> 901", id="an-arrow"),
            pytest.param("CUDA_ERROR: (error 905)", id="error-in-brackets"),
            pytest.param("{'message': \"CUDA Error: 'error 903'\"}", id="quoted"),
            pytest.param(
                "terminate called after throwing an instance of 'std::runtime_error'\n"
                f"  what():  cudaStreamEndCapture(s, &g) failed: {PREVIOUS_ERROR}",
                id="what-of-an-uncaught-exception",
            ),
            pytest.param(
                "host:12:34 [0] transport.cc:12 NCCL WARN Cuda failure 900 'operation not permitted"
                " when stream is capturing'",
                id="NCCL-calls-its-errors-warnings",
            ),
            pytest.param(
                "W0000 00:00:1731500000.123456  12 support.cc:58] Intercepted XLA runtime error:\n"
                "INTERNAL: CaptureGpuGraph failed (CUDA_ERROR_STREAM_CAPTURE_UNJOINED)",
                id="an-error-after-a-warning's-line",
            ),
        ],
    )
    def test_is_found_in_this_shape(self, text: str) -> None:
        assert outcome(failed(text)) is Outcome.CAPTURE_ERROR

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("capturing screenshots of the error page failed", id="screenshots"),
            pytest.param("CUDA graph capture is enabled", id="capture-is-enabled"),
            pytest.param("test_capture FAILED", id="a-test's-name"),
            pytest.param("XLA_FLAGS=--xla_gpu_enable_command_buffer=FUSION", id="command-buffer"),
            pytest.param(
                "failed to capture the stream's output to a file", id="stream-and-capture"
            ),
            pytest.param("graph operation error in capture stream event", id="all-the-words"),
            pytest.param("connection on port 901 closed, CUDA enabled", id="a-port"),
            pytest.param("cuda_kernels.cu:901: here", id="a-line"),
            pytest.param("CUDA error at line 904 of kernels.cu", id="a-line-in-words"),
            pytest.param("CUDA error: check kernels.cu(905)", id="a-line-in-brackets"),
            pytest.param("cuda:0 f32[901,4096] error", id="a-shape"),
            pytest.param("CUDA status 901 ms", id="a-time"),
            pytest.param("CUDA error: 901 of 1000 trials", id="a-count"),
            pytest.param("CUDA wheel: HTTP error 903", id="an-HTTP-status"),
            pytest.param("error 901", id="a-number-with-no-CUDA-about"),
            pytest.param("cuda driver 908.12 returned error 1", id="a-version"),
            pytest.param("no cudaErrorStreamCaptureInvalidated was seen", id="a-denial"),
            pytest.param("CUDA errors so far: 901", id="a-total"),
            pytest.param(f"I1130 12:00:00.000 12 doc.cc:1] {PREVIOUS_ERROR}", id="information"),
            pytest.param(f"W1130 12:00:00.000 12 doc.cc:1] {PREVIOUS_ERROR}", id="a-warning"),
            pytest.param(f"UserWarning: {PREVIOUS_ERROR}, retrying", id="a-Python-warning"),
            pytest.param(f"{PREVIOUS_ERROR}; retrying on another stream", id="a-retry"),
        ],
    )
    def test_is_not_seen_in(self, text: str) -> None:
        assert outcome(failed(text)) is Outcome.CRASH

    def test_in_a_stack_alone_is_a_crash(self) -> None:
        found = classify(died(11, "    @     0x7f0012345678  cudaStreamEndCapture"))
        assert (found.outcome, found.signature) == (
            Outcome.CRASH,
            "SIGSEGV in cudaStreamEndCapture",
        )


class TestTheFirstErrorCounts:
    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            pytest.param(failed(OOM, error=TE_CAPTURE_ERROR), "infra_error", id="OOM-then-capture"),
            pytest.param(
                failed(f"{TE_CAPTURE_ERROR}\n{OOM}", error=TE_CAPTURE_ERROR),
                "capture_error",
                id="capture-then-OOM",
            ),
            pytest.param(died(6, TE_CAPTURE_ERROR), "capture_error", id="capture-then-abort"),
            pytest.param(died(11, TE_CAPTURE_ERROR), "capture_error", id="capture-then-SIGSEGV"),
            pytest.param(stuck(TE_CAPTURE_ERROR), "capture_error", id="capture-then-hang"),
            pytest.param(
                stuck(error=TE_CAPTURE_ERROR, threads_alive=("background",)),
                "capture_error",
                id="capture-then-the-other-thread-hangs",
            ),
            pytest.param(died(6, OOM), "infra_error", id="OOM-then-abort"),
            pytest.param(stuck(OOM), "infra_error", id="OOM-then-hang"),
            pytest.param(
                failed(f"Failed to destroy CUDA graph: CUDA_ERROR_INVALID_VALUE\n{PREVIOUS_ERROR}"),
                "capture_error",
                id="a-symptom-before-its-cause",
            ),
            pytest.param(
                failed(f"CUBLAS_STATUS_EXECUTION_FAILED\nCUDA Error: {PREVIOUS_ERROR}"),
                "capture_error",
                id="a-library's-failure-before-its-cause",
            ),
            pytest.param(
                failed(f"CUDA_ERROR_ILLEGAL_ADDRESS\n{PREVIOUS_ERROR}"),
                "crash",
                id="illegal-address-then-capture",
            ),
            pytest.param(
                failed("unspecified launch failure\nNVRM: Xid (PCI:0000:3b:00): 79, pid=12"),
                "infra_error",
                id="a-crash-that-a-lost-GPU-explains",
            ),
            pytest.param(
                failed(f"{RECOVERED}\n{TE_CAPTURE_ERROR}"),
                "capture_error",
                id="a-recovered-allocation-then-capture",
            ),
            pytest.param(
                failed(f"{RECOVERED}\n{OOM}"), "infra_error", id="a-recovered-allocation-then-OOM"
            ),
            pytest.param(
                failed(f"{OOM} Retrying with a smaller buffer.\n{TE_CAPTURE_ERROR}"),
                "capture_error",
                id="a-retried-OOM-then-capture",
            ),
            pytest.param(
                finished(stale_rows=12, output=TE_CAPTURE_ERROR),
                "capture_error",
                id="capture-then-stale-rows",
            ),
            pytest.param(
                failed(stale_rows=12, output=TE_CAPTURE_ERROR),
                "capture_error",
                id="capture-then-stale-rows-and-exit-1",
            ),
            pytest.param(
                finished(stale_rows=12, output=OOM), "infra_error", id="OOM-then-stale-rows"
            ),
            pytest.param(
                died(
                    6,
                    "F1130 12:00:00.000 12 x.cc:1] Check failed: Device compute capability 10.0 or "
                    "higher required for NVFP4 execution.",
                ),
                "unsupported",
                id="an-assertion-about-the-device-then-abort",
            ),
        ],
    )
    def test_of(self, evidence: Evidence, expected: str) -> None:
        assert outcome(evidence) == expected


class TestCrash:
    @pytest.mark.parametrize(
        ("evidence", "signature"),
        [
            pytest.param(died(11), "SIGSEGV", id="signal-11"),
            pytest.param(died(6), "SIGABRT", id="signal-6"),
            pytest.param(died(7), "SIGBUS", id="signal-7"),
            pytest.param(died(8), "SIGFPE", id="signal-8"),
            pytest.param(died(4), "SIGILL", id="signal-4"),
            pytest.param(failed(exit_status=139), "SIGSEGV", id="status-139"),
            pytest.param(failed(exit_status=134), "SIGABRT", id="status-134"),
            pytest.param(failed(exit_status=135), "SIGBUS", id="status-135"),
            pytest.param(failed(exit_status=136), "SIGFPE", id="status-136"),
            pytest.param(failed(exit_status=132), "SIGILL", id="status-132"),
            pytest.param(failed(exit_status=-11), "SIGSEGV", id="status-minus-11"),
            pytest.param(failed(exit_status=-6), "SIGABRT", id="status-minus-6"),
            pytest.param(
                failed("Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent"),
                "SIGSEGV",
                id="faulthandler-segmentation-fault",
            ),
            pytest.param(failed("Fatal Python error: Aborted"), "SIGABRT", id="faulthandler-abort"),
            pytest.param(failed("Fatal Python error: Bus error"), "SIGBUS", id="faulthandler-bus"),
            pytest.param(
                failed("*** SIGSEGV received at time=1764500000 on cpu 3 ***"),
                "SIGSEGV",
                id="absl-failure-handler",
            ),
            pytest.param(failed("Segmentation fault (core dumped)"), "SIGSEGV", id="shell"),
            pytest.param(
                failed("Signal: Segmentation fault (11)", exit_status=None), "SIGSEGV", id="MPI"
            ),
            pytest.param(failed("double free or corruption (!prev)"), "SIGABRT", id="glibc"),
            pytest.param(
                died(
                    11,
                    "PC: @     0x7f12ab34cd56  (unknown)  cuEventRecord\n"
                    "    @     0x7f12ab34cd57  xla::CopyRawHostToDeviceAndReturnEvent()\n"
                    "    @     0x7f12ab34cd58  xla::GetEventForComputeStreamSyncPoint()",
                ),
                "SIGSEGV in cuEventRecord",
                id="a-stack-that-names-cuEventRecord",
            ),
            pytest.param(
                failed(
                    "#0  0x00007f12ab34cd56 in cuEventRecord () from /lib/libcuda.so.1\n"
                    "#1  0x00007f12ab34cd57 in CopyRawHostToDeviceAndReturnEvent ()",
                    exit_status=139,
                ),
                "SIGSEGV in cuEventRecord",
                id="a-gdb-stack-that-names-cuEventRecord",
            ),
            pytest.param(
                died(6, "E1130 12:00:00.000 12 x.cc:1] CUDA_ERROR_INVALID_HANDLE"),
                "SIGABRT",
                id="an-abort-after-an-error-without-a-cause",
            ),
            pytest.param(
                failed(error="XlaRuntimeError: INTERNAL: an illegal memory access was encountered"),
                "cudaErrorIllegalAddress",
                id="illegal-memory-access",
            ),
            pytest.param(
                failed(error="CUDA error: 700"), "cudaErrorIllegalAddress", id="number-700"
            ),
            pytest.param(
                failed(error="CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"),
                "cudaErrorLaunchFailure",
                id="unspecified-launch-failure",
            ),
            pytest.param(
                failed(error="CUDA Error: misaligned address"),
                "cudaErrorMisalignedAddress",
                id="misaligned-address",
            ),
            pytest.param(
                failed("NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, name=python, MMU Fault"),
                "Xid 31",
                id="an-Xid-that-a-program-causes",
            ),
            pytest.param(
                failed(error="XlaRuntimeError: INTERNAL: CUDA_ERROR_INVALID_HANDLE: invalid"),
                "CUDA_ERROR_INVALID_HANDLE",
                id="another-CUDA-error",
            ),
            pytest.param(
                failed(error="TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
                "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
                id="an-exception-of-the-subject",
            ),
            pytest.param(
                failed(
                    "Traceback (most recent call last):\n"
                    '  File "/src/te/x.py", line 12, in f\n    raise ValueError("no")\n'
                    "ValueError: bad layout at 0x7f00deadbeef"
                ),
                "ValueError: bad layout at",
                id="a-traceback-in-the-log",
            ),
            pytest.param(failed(exit_status=3), "exit 3", id="a-bare-status"),
            pytest.param(
                finished(exit_status=None, signal=11), "SIGSEGV", id="SIGSEGV-after-the-last-step"
            ),
            pytest.param(
                stuck("Fatal Python error: Segmentation fault"),
                "SIGSEGV",
                id="a-reported-fault-that-then-stayed",
            ),
            pytest.param(
                stuck(error="ValueError: bad layout"),
                "ValueError: bad layout",
                id="an-exception-that-then-stayed",
            ),
        ],
    )
    def test_by(self, evidence: Evidence, signature: str) -> None:
        found = classify(evidence)
        assert (found.outcome, found.signature) == (Outcome.CRASH, signature)


class TestHang:
    @pytest.mark.parametrize(
        ("evidence", "signature"),
        [
            pytest.param(stuck(), "hang in execute", id="no-progress"),
            pytest.param(stuck(stage=""), "hang", id="no-progress-and-no-stage"),
            pytest.param(
                stuck(threads_alive=("background",)), "hang: background", id="the-background-thread"
            ),
            pytest.param(
                stuck(threads_alive=("main", "Thread-12 (loop)")),
                "hang: Thread (loop), main",
                id="threads-by-name-without-their-numbers",
            ),
            pytest.param(
                finished(threads_alive=("background",)),
                "hang: background",
                id="finished-but-for-a-thread",
            ),
            pytest.param(
                failed(exit_status=None, threads_alive=("background",)),
                "hang: background",
                id="judged-while-a-thread-lives",
            ),
            pytest.param(stuck(STUCK), "hang in execute", id="it-may-be-stuck-and-is"),
            pytest.param(
                stuck("Fatal Python error: Aborted\nThread 0x00007f12 (most recent call first):"),
                "hang in execute",
                id="stacks-dumped-by-the-supervisor's-abort",
            ),
            pytest.param(
                stuck("    @     0x7f12ab34cd56  cuStreamSynchronize"),
                "hang in execute",
                id="stacks-of-a-live-process",
            ),
            pytest.param(stuck(stage="compile"), "hang in compile", id="while-compiling"),
            pytest.param(
                stuck(exit_status=137, signal=None), "hang in execute", id="status-137-by-us"
            ),
            pytest.param(stuck(signal=15), "hang in execute", id="SIGTERM-by-us"),
            pytest.param(
                stuck(error="KeyboardInterrupt"), "hang in execute", id="interrupted-by-us"
            ),
            pytest.param(
                died(
                    6,
                    "F1130 12:01:00.000 12 rendezvous.cc:99] Termination timeout for `init` of 40 "
                    "seconds exceeded. Exiting to ensure a consistent program state.",
                ),
                "hang in execute",
                id="XLA's-own-watch-gave-up",
            ),
            pytest.param(
                failed(
                    error="TimeoutError: the background thread did not finish",
                    threads_alive=("background",),
                ),
                "hang: background",
                id="the-harness-gave-up",
            ),
        ],
    )
    def test_by(self, evidence: Evidence, signature: str) -> None:
        found = classify(evidence)
        assert (found.outcome, found.signature) == (Outcome.HANG, signature)

    @pytest.mark.parametrize("stage", ["start", "import", "device"])
    def test_is_not_blamed_on_the_subject_before_it_compiles(self, stage: str) -> None:
        assert outcome(stuck(stage=stage, platform=None)) is Outcome.INFRA_ERROR


class TestStaleDataAndWrongOutput:
    @pytest.mark.parametrize(
        ("evidence", "expected", "signature"),
        [
            pytest.param(finished(stale_rows=1), "data_loss", "stale rows", id="one-stale-row"),
            pytest.param(finished(stale_rows=33), "data_loss", "stale rows", id="many-stale-rows"),
            pytest.param(
                finished(stale_rows=3, digest="cd" * 32),
                "data_loss",
                "stale rows",
                id="stale-rows-before-wrong-bits",
            ),
            pytest.param(
                failed(stale_rows=3), "data_loss", "stale rows", id="a-check-that-exits-with-1"
            ),
            pytest.param(
                failed(error="AssertionError: 3 of 64 rows are stale"),
                "data_loss",
                "stale rows",
                id="a-check-in-words",
            ),
            pytest.param(
                finished(stale_rows=3, exit_status=None, signal=11),
                "data_loss",
                "stale rows",
                id="stale-rows-then-a-crash-at-exit",
            ),
            pytest.param(
                died(11, stale_rows=3), "crash", "SIGSEGV", id="a-crash-before-the-last-step"
            ),
            pytest.param(
                finished(stale_rows=3, output="NVFP4 requires compute capability 10.0"),
                "data_loss",
                "stale rows",
                id="what-a-device-cannot-do-explains-nothing",
            ),
            pytest.param(
                finished(stale_rows=3, output="ModuleNotFoundError: No module named 'tensorrt'"),
                "data_loss",
                "stale rows",
                id="an-optional-import-explains-nothing",
            ),
            pytest.param(
                finished(digest="cd" * 32), "wrong_output", "digest differs", id="other-bits"
            ),
            pytest.param(
                failed(digest="cd" * 32, reference_digest=DIGEST),
                "wrong_output",
                "digest differs",
                id="other-bits-and-exit-1",
            ),
            pytest.param(
                failed(error="AssertionError: \nNot equal to tolerance rtol=1e-07, atol=0"),
                "wrong_output",
                "values differ",
                id="a-failed-comparison",
            ),
            pytest.param(
                failed(error="FloatingPointError: invalid value (nan) encountered in mul"),
                "wrong_output",
                "NaN",
                id="NaN-caught-by-jax_debug_nans",
            ),
        ],
    )
    def test_of(self, evidence: Evidence, expected: str, signature: str) -> None:
        found = classify(evidence)
        assert (found.outcome, found.signature) == (expected, signature)


class TestUnsupported:
    @pytest.mark.parametrize(
        "text",
        [
            "Device compute capability 9.9 or higher required for MXFP8 execution.",
            "Device compute capability 10.0 or higher required for NVFP4 execution.",
            "Device compute capability 8.9 or higher required for FP8 execution.",
            "Device compute capability 9.x required for FP8 execution.",
            "NVFP4 requires compute capability 10.0",
            "MXFP8 block scaling is not supported by compute capability 9.0",
            "quantize requires compute capability >= 10.0 (Blackwell), got 9.0",
            "f8e4m3nv is only supported on compute capability >= 90",
            "not supported with IS_DBIAS=true on GPU with compute capability < 10.0.",
            "Gated FWD NVTE_MXFP8_1D_SCALING is only supported on SM 10.0+",
            "RHT fusion is only supported on Blackwell.",
            "Packed MXFP8 dequantization requires Blackwell hardware.",
            "Grouped FP8 quantize is only supported on Hopper (SM90-SM99); ",
            "NCCL EP requires SM_90+ (Hopper or later), but current device is SM_80",
            "MXFP8 (for all gemm layouts) is not supported on 12.0+ architectures yet.",
            "FP8 is not supported on this GPU",
            "This GPU does not support FP8",
            "cuDNN Error: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH",
            "cuBLAS Error: CUBLAS_STATUS_NOT_SUPPORTED",
            "CUDA error: operation not supported",
            "CUDA_ERROR_NOT_SUPPORTED: operation not supported",
        ],
    )
    def test_when_an_assertion_says(self, text: str) -> None:
        assert outcome(failed(error=f"AssertionError: {text}")) is Outcome.UNSUPPORTED
        assert outcome(died(6, text.replace(" ", "\n", 3))) is Outcome.UNSUPPORTED

    def test_when_an_expected_handler_was_not_reached(self) -> None:
        found = classify(finished(missing_handlers=("ScaledSoftmaxForwardInitialize",)))
        assert (found.outcome, found.signature) == (Outcome.UNSUPPORTED, "handler not reached")
        assert "ScaledSoftmaxForwardInitialize" in found.reason

    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            pytest.param(died(11), Outcome.CRASH, id="a-crash"),
            pytest.param(finished(stale_rows=4), Outcome.DATA_LOSS, id="stale-rows"),
            pytest.param(stuck(), Outcome.HANG, id="a-hang"),
        ],
    )
    def test_a_handler_not_reached_hides_no_failure(
        self, evidence: Evidence, expected: Outcome
    ) -> None:
        unreached = Evidence(**(vars(evidence) | {"missing_handlers": ("A",)}))
        assert outcome(unreached) is expected

    @pytest.mark.parametrize(
        "text",
        [
            "I1130 12:00:00.000 12 service.cc:1] StreamExecutor device (0): H200, Compute "
            "Capability 9.0",
            "GPU 0: NVIDIA H200, compute capability 9.0, VMM: yes",
            "UserWarning: MXFP8 is not supported by compute capability 9.0, using bf16",
        ],
        ids=["XLA's-device-line", "a-device-list", "a-warning"],
    )
    def test_is_not_seen_in(self, text: str) -> None:
        assert outcome(died(11, text)) is Outcome.CRASH


class TestInfrastructure:
    @pytest.mark.parametrize(
        ("text", "signature"),
        [
            # memory
            (OOM, "RESOURCE_EXHAUSTED: out of memory"),
            ("cudaErrorMemoryAllocation: out of memory", "cudaErrorMemoryAllocation"),
            ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "cudaErrorMemoryAllocation"),
            ("CUDA error: out of memory", "cudaErrorMemoryAllocation"),
            ("CUDA error 2", "cudaErrorMemoryAllocation"),
            (
                "E1130 12:00:00.000 12 cuda_driver.cc:8] failed to allocate 3.39G (3640655872 "
                "bytes) from device",
                "failed to allocate",
            ),
            ("terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"),
            ("MemoryError", "MemoryError"),
            ("OSError: [Errno 12] Cannot allocate memory", "MemoryError"),
            ("Out of memory: Killed process 4242 (python)", "out of memory"),
            ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED"),
            ("RuntimeError: can't start new thread", "no more processes, threads or files"),
            # no device
            ("no CUDA-capable device is detected", "cudaErrorNoDevice"),
            ("cudaErrorNoDevice(100)", "cudaErrorNoDevice"),
            ("CUDA error: 100", "cudaErrorNoDevice"),
            ("failed call to cuInit: CUDA_ERROR_NO_DEVICE", "failed call to cuInit"),
            ("failed call to cuInit: UNKNOWN ERROR (303)", "failed call to cuInit"),
            ("RuntimeError: Found no NVIDIA driver on your system.", "no NVIDIA driver"),
            (
                "RuntimeError: Unable to initialize backend 'cuda': no devices",
                "unable to initialize backend cuda",
            ),
            (
                "RuntimeError: Backend 'cuda' failed to initialize: x",
                "unable to initialize backend cuda",
            ),
            ("FAILED_PRECONDITION: No visible GPU devices.", "no visible GPU"),
            ("NVIDIA-SMI has failed because it", "NVIDIA driver does not answer"),
            ("cudaErrorInvalidDevice: invalid device ordinal", "cudaErrorInvalidDevice"),
            # versions
            (
                "CUDA driver version is insufficient for CUDA runtime version",
                "cudaErrorInsufficientDriver",
            ),
            (
                "E1130 12:00:00.000 12 cuda_dnn.cc:456] Loaded runtime CuDNN library: 9.1.0 but "
                "source was compiled with: 9.8.0.",
                "cuDNN version mismatch",
            ),
            ("CUDNN_STATUS_VERSION_MISMATCH", "CUDNN_STATUS_VERSION_MISMATCH"),
            (
                "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
                "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            ),
            ("CUDNN_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
            (
                "Error 803: system has unsupported display driver / cuda driver combination",
                "cudaErrorSystemDriverMismatch",
            ),
            ("CUDA error (803)", "cudaErrorSystemDriverMismatch"),
            (
                "CUDA failure 804: forward compatibility was attempted on non supported HW",
                "cudaErrorCompatNotSupportedOnDevice",
            ),
            (
                "Failed to initialize NVML: Driver/library version mismatch",
                "driver/library version mismatch",
            ),
            (
                "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the "
                "device",
                "cudaErrorNoKernelImageForDevice",
            ),
            (
                "the provided PTX was compiled with an unsupported toolchain.",
                "cudaErrorUnsupportedPtxVersion",
            ),
            (
                "RuntimeError: Unable to use CUDA because of the following issues:\n"
                "Outdated cuDNN installation found.",
                "CUDA components too old",
            ),
            (
                "RuntimeError: jaxlib version 0.5.1 is newer than and incompatible with jax "
                "version 0.4.30. Please update your jax and/or jaxlib packages.",
                "jax and jaxlib versions do not fit",
            ),
            (
                "The installed jax version 0.4.30 is incompatible with jaxlib 0.5.1",
                "jax and jaxlib versions do not fit",
            ),
            (
                "AttributeError: module 'jax.core' has no attribute 'Primitive'",
                "jax and jaxlib versions do not fit",
            ),
            (
                "INVALID_ARGUMENT: Mismatched PJRT plugin PJRT API version (0.54) and framework "
                "PJRT API version 0.51).",
                "PJRT plugin version mismatch",
            ),
            ("PJRT plugin cuda: version mismatch", "PJRT plugin version mismatch"),
            (
                "Unexpected XLA_FFI_ExecuteContext size: expected 104, got 96. Check installed "
                "software versions.",
                "PJRT plugin version mismatch",
            ),
            # libraries
            (
                "ImportError: libcudnn.so.9: cannot open shared object file: No such file or "
                "directory",
                "libcudnn.so.9: cannot open shared object file",
            ),
            (
                "OSError: /opt/te/libnccl.so.2: cannot open shared object file",
                "libnccl.so.2: cannot open shared object file",
            ),
            (
                "/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by x.so)",
                "version GLIBCXX_3.4.32 not found",
            ),
            (
                "/lib/libc.so.6: version 'GLIBC_2.38' not found",
                "version GLIBC_2.38 not found",
            ),
            (
                "ImportError: /opt/transformer_engine_jax.so: undefined symbol: nvte_layernorm_bwd",
                "undefined symbol: nvte_layernorm_bwd",
            ),
            (
                "python: symbol lookup error: /opt/x.so",
                "symbol lookup error",
            ),
            (
                "Could not load library libcudnn_cnn.so.9. Error: x",
                "libcudnn_cnn.so.9: could not be loaded",
            ),
            ("ImportError: /opt/x.so: file too short", "x.so: not loadable"),
            (
                "ModuleNotFoundError: No module named 'transformer_engine'",
                "ModuleNotFoundError: No module named transformer_engine",
            ),
            ("ImportError: cannot import name 'linear_util' from 'jax'", "ImportError"),
            # hardware
            ("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.", "Xid 79"),
            ("Xid 48", "Xid 48"),
            ("GPU has fallen off the bus", "GPU has fallen off the bus"),
            ("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable"),
            ("CUDA error: 214", "cudaErrorECCUncorrectable"),
            ("nvidia-smi: GPU is lost. Reboot the system", "GPU is lost"),
            (
                "CUDA-capable device(s) is/are busy or unavailable",
                "cudaErrorDevicesUnavailable",
            ),
            # host
            ("OSError: [Errno 28] No space left on device", "no space left on device"),
            ("write: ENOSPC", "no space left on device"),
            ("OSError: [Errno 30] Read-only file system: 'x'", "file system not usable"),
            ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT x", "lost runner"),
            ("lost connection to the runner", "lost runner"),
        ],
    )
    def test_by_text(self, text: str, signature: str) -> None:
        found = classify(failed(text, stage="", platform=None, expected_platform=None))
        assert (found.outcome, found.signature) == (Outcome.INFRA_ERROR, signature)
        aborted = died(6, f"{text}\nFatal Python error: Aborted", stage="", platform=None)
        assert outcome(aborted) is Outcome.INFRA_ERROR

    @pytest.mark.parametrize(
        ("evidence", "signature"),
        [
            pytest.param(died(9), "killed by SIGKILL", id="SIGKILL-not-by-us"),
            pytest.param(failed(exit_status=137), "killed by SIGKILL", id="status-137"),
            pytest.param(failed(exit_status=-9), "killed by SIGKILL", id="status-minus-9"),
            pytest.param(died(15), "killed by SIGTERM", id="SIGTERM-not-by-us"),
            pytest.param(failed(exit_status=143), "killed by SIGTERM", id="status-143"),
            pytest.param(Evidence(), "lost", id="nothing-left-at-all"),
            pytest.param(failed(exit_status=None), "lost", id="no-status-no-signal"),
            pytest.param(failed(exit_status=127), "exit 127", id="a-command-not-found"),
            pytest.param(failed(error="KeyboardInterrupt"), "interrupted", id="interrupted"),
            pytest.param(
                finished(platform="cpu"), "ran on cpu, not cuda", id="exact-values-on-the-CPU"
            ),
            pytest.param(
                failed(platform="cpu", error=TE_CAPTURE_ERROR),
                "ran on cpu, not cuda",
                id="a-failure-on-the-CPU",
            ),
            pytest.param(
                finished(platform="emulated"), "ran on emulated, not cuda", id="the-emulation"
            ),
            pytest.param(
                finished(platform=None), "platform unknown", id="exact-values-nobody-knows-where"
            ),
            pytest.param(
                finished(
                    platform=None,
                    expected_platform=None,
                    output="WARNING:2026-11-30 12:00:00,123:jax._src.xla_bridge:794: An NVIDIA GPU "
                    "may be present on this machine, but a CUDA-enabled jaxlib is not installed. "
                    "Falling back to cpu.",
                ),
                "fell back to the CPU",
                id="a-fallback-in-the-log",
            ),
            pytest.param(
                failed("No GPU/TPU found, falling back to CPU.", platform=None),
                "fell back to the CPU",
                id="a-fallback-then-a-failure",
            ),
            pytest.param(
                finished(exit_status=0, finished=False, stage="execute"),
                "exit 0 before its end",
                id="status-0-before-the-last-step",
            ),
            pytest.param(
                finished(digest=None), "output not compared", id="an-output-never-compared"
            ),
        ],
    )
    def test_by_fact(self, evidence: Evidence, signature: str) -> None:
        found = classify(evidence)
        assert (found.outcome, found.signature) == (Outcome.INFRA_ERROR, signature)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param(
                "INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': INTERNAL: Failed to "
                "open libtpu.so: libtpu.so: cannot open shared object file",
                Outcome.CRASH,
                id="a-TPU-that-nobody-asked-for",
            ),
            pytest.param(
                "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded (cannot open "
                "shared object file): ignored.",
                Outcome.CRASH,
                id="a-preload-that-is-ignored",
            ),
            pytest.param(
                "I1130 12:00:00.000 12 service.cc:1] XLA service 0x55 initialized for platform Host"
                " (this does not guarantee that XLA will be used)",
                Outcome.CRASH,
                id="XLA-always-has-a-host-platform",
            ),
            pytest.param(
                "W1130 12:00:00.000 12 gemm.cc:1] RESOURCE_EXHAUSTED: Out of memory in autotuning",
                Outcome.CRASH,
                id="an-autotuning-warning",
            ),
            pytest.param(
                "ModuleNotFoundError: No module named 'tensorrt'",
                Outcome.CRASH,
                id="an-optional-import",
            ),
        ],
    )
    def test_is_not_seen_in_what_a_crashed_trial_went_on_after(
        self, text: str, expected: Outcome
    ) -> None:
        assert outcome(died(11, text)) is expected


class TestPass:
    def test_finished_on_cuda_with_exact_values(self) -> None:
        assert classify(finished()) == Classification(
            Outcome.PASS, "", "it finished, and its values are exact"
        )

    @pytest.mark.parametrize(
        "facts",
        [
            pytest.param({"stale_rows": None}, id="no-resident-buffer"),
            pytest.param({"reference_digest": None}, id="the-first-to-give-a-digest"),
            pytest.param({"expected_platform": None, "platform": None}, id="any-platform"),
            pytest.param({"platform": "gpu"}, id="JAX's-other-name-for-cuda"),
            pytest.param(
                {"platform": "emulated", "expected_platform": "emulated"}, id="the-emulation"
            ),
            pytest.param({"digest": DIGEST.upper()}, id="a-digest-in-upper-case"),
        ],
    )
    def test_also_with(self, facts: dict[str, object]) -> None:
        assert outcome(finished(**facts)) is Outcome.PASS

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param(TE_CAPTURE_ERROR, id="a-capture-error"),
            pytest.param(OOM, id="out-of-memory"),
            pytest.param(RECOVERED, id="a-recovered-allocation"),
            pytest.param(STUCK, id="may-be-stuck"),
            pytest.param("Segmentation fault", id="a-crash"),
            pytest.param("Falling back to cpu", id="a-fallback"),
            pytest.param("Delay kernel timed out: measured time is not accurate", id="slow-timer"),
            pytest.param("None of the algorithms provided by cuDNN worked", id="autotuning"),
            pytest.param("Device compute capability 9.9 or higher required", id="capability"),
        ],
    )
    def test_whatever_its_log_mentions(self, text: str) -> None:
        assert outcome(finished(output=text)) is Outcome.PASS


class TestBuild:
    def test_status_0_passes_whatever_its_log_says(self) -> None:
        assert outcome(build("x.cpp:1:1: error: none", exit_status=0)) is Outcome.PASS

    @pytest.mark.parametrize(
        ("text", "signature"),
        [
            pytest.param(
                "/src/csrc/extensions/ffi.h:12:5: error: 'foo' was not declared in this scope",
                "error: 'foo' was not declared in this scope",
                id="gcc",
            ),
            pytest.param(
                '/src/common/a.cu(123): error: identifier "bar" is undefined',
                'error: identifier "bar" is undefined',
                id="nvcc",
            ),
            pytest.param(
                "ptxas error   : Entry function 'k' uses too much shared data",
                "error : Entry function 'k' uses too much shared data",
                id="ptxas",
            ),
            pytest.param(
                "/src/a.cpp:3:10: fatal error: te/gone.h: No such file or directory",
                "fatal error: gone.h: No such file or directory",
                id="a-header-of-the-subject",
            ),
            pytest.param(
                "a.cpp:(.text+0x1f): undefined reference to `nvte_gone'",
                "undefined reference to nvte_gone",
                id="a-symbol-that-is-nowhere",
            ),
            pytest.param(
                "a.cpp:1:1: error: 'std::bad_alloc' has not been declared",
                "error: 'std::bad_alloc' has not been declared",
                id="an-error-that-mentions-bad_alloc",
            ),
            pytest.param(
                "a.cpp:1:1: warning: unused variable\na.cpp:2:1: error: expected ';'\n"
                "ninja: build stopped: subcommand failed.",
                "error: expected ';'",
                id="a-warning-before-the-error",
            ),
            pytest.param(
                "a.cpp:2:1: error: expected ';'\ncc1plus: out of memory allocating 65536 bytes",
                "error: expected ';'",
                id="an-error-before-the-memory-ran-out",
            ),
            pytest.param("make: *** [all] Error 2", "exit 1", id="only-make's-summary"),
        ],
    )
    def test_error_of_the_subject(self, text: str, signature: str) -> None:
        found = classify(build(text))
        assert (found.outcome, found.signature) == (Outcome.BUILD_ERROR, signature)

    @pytest.mark.parametrize(
        ("text", "signature"),
        [
            ("/bin/sh: 1: nvcc: not found", "nvcc not found"),
            ("bash: line 1: g++: command not found", "g++ not found"),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'g++'", "g++ not found"),
            ("error: command 'g++' failed: No such file or directory", "g++ not found"),
            ("CMake Error: No CMAKE_CUDA_COMPILER could be found.", "no compiler"),
            (
                "c++: fatal error: Killed signal terminated program cc1plus\n"
                "compilation terminated.",
                "compiler out of memory",
            ),
            (
                "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
                "compiler out of memory",
            ),
            ("cc1plus: out of memory allocating 65536 bytes", "compiler out of memory"),
            ("/tmp/x.s: fatal error: No space left on device", "no space left on device"),
            (
                "a.cpp:1:10: fatal error: cudnn.h: No such file or directory",
                "cudnn.h: no such header",
            ),
            (
                "a.cpp:1:10: fatal error: cuda_runtime.h: No such file or directory",
                "cuda_runtime.h: no such header",
            ),
            ("a.cpp:1:10: fatal error: 'nvml.h' file not found", "nvml.h: no such header"),
            (
                'a.cu(1): catastrophic error: cannot open source file "cublasLt.h"',
                "cublasLt.h: no such header",
            ),
            (
                "a.cpp:1:10: fatal error: pybind11/pybind11.h: No such file or directory",
                "pybind11.h: no such header",
            ),
            ("/usr/bin/ld: cannot find -lcudnn: No such file or directory", "cannot find -lcudnn"),
            ("nvcc fatal   : Unsupported gpu architecture 'compute_103'", "toolchain does not fit"),
            (
                "host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later "
                "than 14 are not supported!",
                "toolchain does not fit",
            ),
            ("ModuleNotFoundError: No module named 'pybind11'", None),
            ("fatal: unable to access 'https://example.org/': Could not resolve host: x", None),
            ("Could not find cuDNN frontend API. Try running 'git submodule update'", None),
            (
                "g++: error while loading shared libraries: libmpc.so.3: cannot open shared object "
                "file: No such file or directory",
                None,
            ),
        ],
    )
    def test_fault_of_the_environment(self, text: str, signature: str | None) -> None:
        found = classify(build(text))
        assert found.outcome is Outcome.INFRA_ERROR
        assert signature is None or found.signature == signature

    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            pytest.param(build(exit_status=None, signal=9), "infra_error", id="SIGKILL-not-by-us"),
            pytest.param(build(exit_status=137), "infra_error", id="status-137"),
            pytest.param(build(exit_status=None), "infra_error", id="lost"),
            pytest.param(
                build(exit_status=None, signal=9, killed=True),
                "infra_error",
                id="past-its-deadline",
            ),
            pytest.param(build(exit_status=127), "infra_error", id="status-127"),
            pytest.param(build(), "build_error", id="without-a-word"),
            pytest.param(build(exit_status=139), "build_error", id="a-compiler-that-crashed"),
        ],
    )
    def test_by_fact(self, evidence: Evidence, expected: str) -> None:
        assert outcome(evidence) == expected


class TestSignature:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            pytest.param(
                failed(error="ValueError: buffer 0x7f00aa of pid 12 in /a/b/c.py:12"),
                failed(error="ValueError: buffer 0x55ffbb of pid 99 in /x/c.py:34"),
                id="addresses-ids-paths-lines",
            ),
            pytest.param(
                failed(error="KeyError: 1764500000123 at 12:00:01.5"),
                failed(error="KeyError: 1764500999456 at 13:07:59.1"),
                id="times",
            ),
        ],
    )
    def test_is_stable_under_changing(self, one: Evidence, other: Evidence) -> None:
        assert classify(one).signature == classify(other).signature

    def test_is_short(self) -> None:
        assert len(classify(failed(error="ValueError: " + "long " * 500)).signature) <= 160


class TestHardCases:
    """Texts that an easier reading would take for something else."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            # numbers: an error's, or not
            ("NCCL error: unhandled cuda error, cudaError=901", "capture_error"),
            ("CUDA: Check failed: e == cudaSuccess (901 vs. 0)", "capture_error"),
            ("status: 901, function: cudaStreamEndCapture", "capture_error"),
            ("cudaGetErrorString(901)", "capture_error"),
            ("CUDA API error: cudaGraphLaunch returned (0x385)", "capture_error"),
            ("XLA FFI call failed: x.h:12 in function f: error 901", "capture_error"),
            ("CUDA error: 901, CUDA_VISIBLE_DEVICES=0", "capture_error"),
            ("CUDA kernel failed at index (903, 12)", "crash"),
            ("cuda worker exit status 905", "crash"),
            ("error in cuda_graph.py:907", "crash"),
            ("ValueError: CUDA graph batch size 904 too large", "crash"),
            ("AssertionError: expected 901 rows but got 902; device cuda:0", "crash"),
            ("error code 12901 from cuda", "crash"),
            ("RuntimeError: CUDA error: invalid argument (1) on port (901)", "crash"),
            # words
            ("XLA command buffer capture failed for stream 901", "crash"),
            ("The capture failed: device or resource busy (webcam)", "crash"),
            ("rank 0 operation not permitted when stream is capturing", "capture_error"),
            (
                "Attempt to terminate a thread local capture sequence from another thread",
                "capture_error",
            ),
            # prefixes on the lines of one sentence
            (
                "12:00:01.1 [trial 3] capturing stream has\n12:00:01.2 [trial 3] unjoined work",
                "capture_error",
            ),
            (
                "2026-11-30 12:00:00,1 ERROR te: capturing stream has\n"
                "2026-11-30 12:00:00,2 ERROR te: unjoined work",
                "capture_error",
            ),
            ("> capturing stream\n> has unjoined\n> work", "capture_error"),
            (
                "[2026-11-30 12:00:00] [ERROR] capturing stream has\n"
                "[2026-11-30 12:00:00] [ERROR] unjoined work",
                "capture_error",
            ),
            # which error is the first
            (f"{PREVIOUS_ERROR}\nModuleNotFoundError: No module named 'x'", "capture_error"),
            (f"Exception ignored in: <function x>\n{PREVIOUS_ERROR}", "capture_error"),
            (
                "ModuleNotFoundError: No module named 'a'\n\n"
                "During handling of the above exception, "
                f"another exception occurred:\n\nRuntimeError: {PREVIOUS_ERROR}",
                "capture_error",
            ),
            (
                "an illegal memory access was encountered\nuncorrectable ECC error encountered",
                "infra_error",
            ),
            ("GPU 0 out of memory", "infra_error"),
            ("Bus error: insufficient shared memory (shm)", "infra_error"),
            # a choice of the program's own is no refusal
            ("NVFP4 requires compute capability 10.0, using FP8\nSegmentation fault", "crash"),
            # a refusal however it is put
            ("AssertionError: compute capability 9.0 < 10.0", "unsupported"),
            ("minimum compute capability is 10.0, got 9.0", "unsupported"),
            ("Unsupported compute capability: 9.0", "unsupported"),
            ("NVTE error: Unsupported architecture sm_90", "unsupported"),
            ("Assertion failed: sm >= 100. requires Hopper (SM90) or Blackwell.", "unsupported"),
            # the installation
            ("CUDA driver version (12.2) is older than the runtime version", "infra_error"),
            ("The NVIDIA driver on your system is too old (found version 11040)", "infra_error"),
            ("all CUDA-capable devices are busy or unavailable", "infra_error"),
            ("device kernel image is invalid", "infra_error"),
            ("libcudart.so.13 => not found", "infra_error"),
            ("RuntimeError: NVML_ERROR_LIB_RM_VERSION_MISMATCH", "infra_error"),
            (
                "Loaded runtime CuDNN library: 9.1.0\nbut source was\ncompiled with: 9.8.0.",
                "infra_error",
            ),
        ],
    )
    def test_trial(self, text: str, expected: str) -> None:
        assert outcome(failed(text)) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "a.cpp:1:10: fatal error: common/cudnn_utils.h: No such file or directory",
                "build_error",
            ),
            (
                "a.cpp:5: error: static assertion failed: requires compute capability 9.0",
                "build_error",
            ),
            ("ld.lld: error: undefined symbol: nvte_gone", "build_error"),
            (
                "a.cpp:1:2: \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kexpected ';' before '}' token",
                "build_error",
            ),
            ("SyntaxError: invalid syntax", "build_error"),
            (
                "{standard input}: Assembler messages:\n{standard input}:1: Error: end of file\n"
                "g++: fatal error: Killed signal terminated program cc1plus",
                "infra_error",
            ),
            ("collect2: fatal error: ld terminated with signal 9 [Killed]", "infra_error"),
            ("LLVM ERROR: out of memory", "infra_error"),
            ("make[2]: *** [a.o] Killed\nmake: *** [all] Error 2", "infra_error"),
            ("gcc: fatal error: cannot execute 'cc1plus': execvp: No such file", "infra_error"),
            ("a.cpp:1:10: fatal error: cuda/barrier: No such file or directory", "infra_error"),
            ("OSError: CUDA_HOME environment variable is not set.", "infra_error"),
            ("no compiler: g++ is not on PATH", "infra_error"),
            ("ninja: error: failed recompaction: No space left on device", "infra_error"),
        ],
    )
    def test_build(self, text: str, expected: str) -> None:
        assert outcome(build(text)) == expected


NOISE = st.sampled_from(
    [
        "",
        STUCK,
        RECOVERED,
        "I1130 12:00:00.000000 1 a.cc:1] XLA service initialized for platform CUDA",
        "CUDA graph capture is enabled",
        "WARNING:jax._src.xla_bridge:Something is experimental and may change.",
        "step 3 of 10: loss 0.901, 904 ms",
        "UserWarning: donated buffers were not usable: f32[901,4096]",
        "Delay kernel timed out: measured time has sub-optimal accuracy.",
        "listening on port 903",
    ]
)
CAUSES = st.sampled_from(
    [
        (Outcome.CAPTURE_ERROR, TE_CAPTURE_ERROR),
        *((Outcome.CAPTURE_ERROR, error.prose) for error in CAPTURE),
        *((Outcome.CAPTURE_ERROR, error.driver) for error in CAPTURE),
        (Outcome.INFRA_ERROR, OOM),
        (Outcome.INFRA_ERROR, "CUDA driver version is insufficient for CUDA runtime version"),
        (Outcome.INFRA_ERROR, "jaxlib version 0.5 is newer than and incompatible with jax version"),
        (Outcome.UNSUPPORTED, "Device compute capability 9.9 or higher required for MXFP8"),
        (Outcome.CRASH, "CUDA Error: an illegal memory access was encountered"),
    ]
)
WORDS = st.sampled_from(
    [
        *("capture", "captured", "capturing", "graph", "stream", "error", "failed", "operation"),
        *("event", "merge", "unjoined", "work", "901", "904", "(905)", "900:", "code", "status"),
        *("legacy", "thread", "isolation", "previous", "during", "when", "is", "not", "permitted"),
        *("port", "line", "and", "the", "a", "to", "in", "of"),
    ]
)


class TestProperties:
    @given(st.lists(WORDS, max_size=40))
    def test_prose_without_cuda_names_is_never_a_capture_error(self, words: list[str]) -> None:
        text = " ".join(words)
        if not any(error.prose.replace("-", " ") in text for error in CAPTURE):
            assert outcome(failed(text)) is not Outcome.CAPTURE_ERROR

    @given(st.lists(NOISE, max_size=6), CAUSES, st.lists(NOISE, max_size=6))
    def test_noise_around_an_error_changes_nothing(
        self, before: list[str], cause: tuple[Outcome, str], after: list[str]
    ) -> None:
        expected, text = cause
        assert classify(failed("\n".join([*before, text, *after]))) == classify(failed(text))
        assert outcome(failed(text)) is expected

    @given(CAUSES, st.data())
    def test_a_wrap_at_any_blank_changes_nothing(
        self, cause: tuple[Outcome, str], data: st.DataObject
    ) -> None:
        expected, text = cause
        words = text.split(" ")
        joints = data.draw(
            st.lists(
                st.sampled_from([" ", "\n", "\n    ", "\\n", "\r\n"]),
                min_size=len(words) - 1,
                max_size=len(words) - 1,
            )
        )
        wrapped = "".join(word + joint for word, joint in zip(words, [*joints, ""], strict=True))
        assert outcome(failed(wrapped)) is expected

    @given(
        st.builds(
            Evidence,
            kind=st.sampled_from(["trial", "build"]),
            exit_status=st.none() | st.integers(-300, 300),
            signal=st.none() | st.integers(-1, 70),
            killed=st.booleans(),
            finished=st.booleans(),
            stage=st.sampled_from(["", "start", "compile", "execute", "done", "?"]),
            output=st.text(max_size=300),
            error=st.text(max_size=100),
            stale_rows=st.none() | st.integers(-1, 5),
            threads_alive=st.lists(st.text(max_size=8), max_size=2).map(tuple),
            platform=st.sampled_from([None, "", "cuda", "cpu", "emulated"]),
            expected_platform=st.sampled_from([None, "cuda", "emulated"]),
            digest=st.none() | st.text(max_size=4),
            reference_digest=st.none() | st.text(max_size=4),
            missing_handlers=st.lists(st.text(max_size=4), max_size=2).map(tuple),
        )
    )
    def test_it_never_raises_and_a_pass_is_proven(self, evidence: Evidence) -> None:
        found = classify(evidence)
        assert len(found.signature) <= 160
        assert found.reason
        if found.outcome is Outcome.PASS and evidence.kind == "trial":
            assert evidence.exit_status == 0
            assert not evidence.killed
            assert not evidence.stale_rows or evidence.stale_rows < 0
        if found.outcome in FAILURES:
            assert found.signature


class TestCost:
    @pytest.mark.parametrize(
        "log",
        [
            pytest.param(f"{STUCK}\n" * 5000, id="a-million-characters-of-warnings"),
            pytest.param("x" * 1_000_000, id="one-long-word"),
            pytest.param("word " * 200_000, id="one-long-line"),
            pytest.param("\n" * 1_000_000, id="only-newlines"),
            pytest.param("out of memory, retrying\n" * 40_000, id="nothing-but-retries"),
            pytest.param("CUDA error requires sm 90 (1) " * 33_000, id="nearly-everything"),
            pytest.param("a:" * 500_000, id="colons"),
            pytest.param("/a" * 500_000, id="slashes"),
        ],
    )
    def test_a_large_log_takes_no_more_than_seconds(self, log: str) -> None:
        began = time.thread_time()  # what other processes do does not count
        classify(failed(log))
        assert time.thread_time() - began < 5

    def test_it_needs_the_standard_library_only(self) -> None:
        code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from runner.outcome import classify"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


class TestBeforeTheFirstExecution:
    @pytest.mark.parametrize("stage", ["import", "device", "compile"])
    def test_an_exception_of_the_program_itself_is_unsupported(self, stage: str) -> None:
        evidence = Evidence(
            exit_status=1, stage=stage, error="TypeError: quantize() got an unexpected argument"
        )
        assert classify(evidence).outcome is Outcome.UNSUPPORTED

    def test_the_same_exception_once_it_executes_is_a_crash(self) -> None:
        evidence = Evidence(exit_status=1, stage="execute", error="TypeError: bad argument")
        assert classify(evidence).outcome is Outcome.CRASH

    def test_a_capture_error_while_compiling_is_still_one(self) -> None:
        evidence = Evidence(
            exit_status=1, stage="compile", error="CUDA Error: capturing stream has unjoined work"
        )
        assert classify(evidence).outcome is Outcome.CAPTURE_ERROR

    @pytest.mark.parametrize(
        ("stage", "error", "outcome"),
        [
            ("compile", "JaxRuntimeError: INTERNAL: Failed to get configs", Outcome.INFRA_ERROR),
            # What needs none of these files races, or fails, all the same.
            ("execute", "JaxRuntimeError: INTERNAL: Failed to launch", Outcome.CRASH),
            ("execute", "CUDA Error: capturing stream has unjoined work", Outcome.CAPTURE_ERROR),
        ],
    )
    def test_an_image_without_libdevice_is_no_fault_of_a_commit(
        self, stage: str, error: str, outcome: Outcome
    ) -> None:
        """The warning is XLA's own, of a container whose image had no CUDA in it."""
        output = (
            "W1130 23:21:41.549607      68 nvptx_libdevice_path.cc:41] Can't find libdevice "
            "directory ${CUDA_DIR}/nvvm/libdevice. This may result in compilation or runtime "
            "failures, if the program we try to run uses routines from libdevice.\n"
        )
        found = classify(Evidence(exit_status=1, stage=stage, error=error, output=output))
        assert found.outcome is outcome
        if outcome is Outcome.INFRA_ERROR:
            assert found.signature == "no libdevice"
            assert "install jax[cuda13]" in found.reason
