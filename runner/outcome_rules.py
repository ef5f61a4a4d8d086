"""What real logs say when a trial or a build goes wrong: tables of error texts, one per meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runner.outcome_text import letters_of


@dataclass(frozen=True)
class Rule:
    """An error text in lower case. `signature` may name the pattern's groups as `{0}`, `{1}`.

    needles: a text holds one of them or the pattern cannot match (spares the search).
    """

    signature: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(signature: str, needles: str, pattern: str) -> Rule:
    return Rule(signature, tuple(needles.split("|")), re.compile(pattern))


@dataclass(frozen=True)
class CudaError:
    """One CUDA error in its four disguises: number, runtime name, driver name, prose.

    Names and sentences are those of cudaGetErrorName and cudaGetErrorString (CUDA 12 and 13).
    The sentence is empty where it is too common to mean this error.
    """

    number: int
    name: str
    driver: str
    prose: str = ""
    needles: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        texts = (self.name, self.driver, self.prose)
        needles = tuple(dict.fromkeys(letters_of(text) for text in texts if text))
        object.__setattr__(self, "needles", needles)


CAPTURE = (
    CudaError(
        900,
        "cudaErrorStreamCaptureUnsupported",
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing",
    ),
    CudaError(
        901,
        "cudaErrorStreamCaptureInvalidated",
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "operation failed due to a previous error during capture",
    ),
    CudaError(
        902,
        "cudaErrorStreamCaptureMerge",
        "CUDA_ERROR_STREAM_CAPTURE_MERGE",
        "operation would result in a merge of separate capture sequences",
    ),
    CudaError(
        903,
        "cudaErrorStreamCaptureUnmatched",
        "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        "capture was not ended in the same stream as it began",
    ),
    CudaError(
        904,
        "cudaErrorStreamCaptureUnjoined",
        "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        "capturing stream has unjoined work",
    ),
    CudaError(
        905,
        "cudaErrorStreamCaptureIsolation",
        "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        "dependency created on uncaptured work in another stream",
    ),
    CudaError(
        906,
        "cudaErrorStreamCaptureImplicit",
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    CudaError(
        907,
        "cudaErrorCapturedEvent",
        "CUDA_ERROR_CAPTURED_EVENT",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
    CudaError(
        908,
        "cudaErrorStreamCaptureWrongThread",
        "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "attempt to terminate a thread-local capture sequence from another thread",
    ),
)

# The device, its driver or its libraries cannot work; no program could have run here.
CUDA_INFRA = (
    CudaError(2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY"),
    CudaError(3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED"),
    CudaError(34, "cudaErrorStubLibrary", "CUDA_ERROR_STUB_LIBRARY"),
    CudaError(
        35,
        "cudaErrorInsufficientDriver",
        "",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    CudaError(
        36,
        "cudaErrorCallRequiresNewerDriver",
        "",
        "API call is not supported in the installed CUDA driver",
    ),
    CudaError(
        46,
        "cudaErrorDevicesUnavailable",
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "CUDA-capable device(s) is/are busy or unavailable",
    ),
    CudaError(
        98,
        "cudaErrorInvalidDeviceFunction",
        "",
        "invalid device function",
    ),
    CudaError(
        100,
        "cudaErrorNoDevice",
        "CUDA_ERROR_NO_DEVICE",
        "no CUDA-capable device is detected",
    ),
    CudaError(101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    CudaError(102, "cudaErrorDeviceNotLicensed", "CUDA_ERROR_DEVICE_NOT_LICENSED"),
    CudaError(
        200,
        "cudaErrorInvalidKernelImage",
        "CUDA_ERROR_INVALID_IMAGE",
        "device kernel image is invalid",
    ),
    # The build holds no code for this architecture: the build's fault, not the device's.
    CudaError(
        209,
        "cudaErrorNoKernelImageForDevice",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "no kernel image is available for execution on the device",
    ),
    CudaError(221, "cudaErrorJitCompilerNotFound", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"),
    CudaError(
        222,
        "cudaErrorUnsupportedPtxVersion",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the provided PTX was compiled with an unsupported toolchain",
    ),
    CudaError(
        302, "cudaErrorSharedObjectSymbolNotFound", "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"
    ),
    CudaError(303, "cudaErrorSharedObjectInitFailed", "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"),
    CudaError(304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM"),
    CudaError(
        802, "cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"
    ),
    CudaError(
        803,
        "cudaErrorSystemDriverMismatch",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "system has unsupported display driver / cuda driver combination",
    ),
    CudaError(
        804,
        "cudaErrorCompatNotSupportedOnDevice",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "forward compatibility was attempted on non supported HW",
    ),
    CudaError(805, "cudaErrorMpsConnectionFailed", "CUDA_ERROR_MPS_CONNECTION_FAILED"),
    CudaError(806, "cudaErrorMpsRpcFailure", "CUDA_ERROR_MPS_RPC_FAILURE"),
    CudaError(807, "cudaErrorMpsServerNotReady", "CUDA_ERROR_MPS_SERVER_NOT_READY"),
)

# A broken device explains the crash that reported it first, so these outrank a crash.
CUDA_HARDWARE = (
    CudaError(
        214,
        "cudaErrorECCUncorrectable",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "uncorrectable ECC error encountered",
    ),
    CudaError(
        220,
        "cudaErrorNvlinkUncorrectable",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "uncorrectable NVLink error detected during the execution",
    ),
)

# They leave the context unusable, so what fails after them fails because of them.
CUDA_CRASH = (
    CudaError(
        700,
        "cudaErrorIllegalAddress",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "an illegal memory access was encountered",
    ),
    CudaError(
        702,
        "cudaErrorLaunchTimeout",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "the launch timed out and was terminated",
    ),
    CudaError(710, "cudaErrorAssert", "CUDA_ERROR_ASSERT", "device-side assert triggered"),
    CudaError(
        714,
        "cudaErrorHardwareStackError",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "hardware stack error",
    ),
    CudaError(
        715,
        "cudaErrorIllegalInstruction",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "an illegal instruction was encountered",
    ),
    CudaError(
        716, "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"
    ),
    CudaError(
        717,
        "cudaErrorInvalidAddressSpace",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "operation not supported on global/shared address space",
    ),
    CudaError(718, "cudaErrorInvalidPc", "CUDA_ERROR_INVALID_PC", "invalid program counter"),
    CudaError(
        719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"
    ),
)

CUDA_UNSUPPORTED = (CudaError(801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED"),)

_LACKS = (
    r"(?:not (?:yet )?(?:supported|available|sufficient)|unsupported|requires?\b|required|needs?\b"
    r"|or (?:higher|newer|later|above|greater)|at least|minimum|only (?:supported|available)"
    r"|too (?:low|old)|lower than|below|insufficient|does not support)"
)
_ARCHITECTURE = (
    r"(?:sm[\W_]{0,3}\d|blackwell|hopper|ada\b|ada lovelace|ampere|rubin|[bh][123]00\b|gb[123]00\b)"
)
# `NVFP4 requires compute capability 10.0, using FP8` tells of a choice, not of an error.
_NO_CHOICE = r"(?!.{0,60}[,;:.] (?:so )?using \w)"
UNSUPPORTED = (
    _rule(
        "compute capability",
        "compute capabilit|compute_capabilit",
        rf"compute.capabilit\w*(?=.{{0,60}}?{_LACKS}){_NO_CHOICE}",
    ),
    _rule(
        "compute capability",
        "compute capabilit|compute_capabilit",
        rf"{_LACKS}.{{0,80}}?compute.capabilit{_NO_CHOICE}"
        r"|compute.capabilit\w*\W{1,3}[\d.]+ ?< ?\d",
    ),
    _rule(
        "architecture not supported",
        "unsupported",
        rf"unsupported (?:gpu |device |cuda )?(?:arch\w*)?:? \W?{_ARCHITECTURE}",
    ),
    _rule(
        "architecture required",
        "requires|require |only |needs ",
        r"(?:\brequires?|\bneeds|only (?:supported|available|works?|implemented) (?:on|for|with))"
        rf" (?:an? |the )?(?:nvidia )?(?:gpu with )?{_ARCHITECTURE}",
    ),
    _rule(
        "architecture not supported",
        "support|available|implemented",
        r"(?:not (?:yet )?(?:supported|available|implemented)|unsupported) (?:by|on|for) "
        r"(?:(?:the|this|your|current|gpu|device|arch\w*|devices|gpus|with|nvidia) )*\(?"
        rf"(?:{_ARCHITECTURE}|\d+\.\d\+? arch|this (?:gpu|device|arch|hardware))"
        r"|not (?:yet )?supported (?:by|on) (?:this|the|your)(?: current)? "
        r"(?:gpu|device|arch|hardware)"
        r"|\bsm_?\d+\w? (?:is )?(?:not (?:yet )?supported|unsupported)",
    ),
    _rule(
        "precision not supported",
        "fp8|fp4",
        r"\w*fp[48]\w*(?: \w+){0,3} (?:is |are )?(?:not supported|unsupported|not available)"
        r" (?:by|on)\b|does not support (?:\w+ )?\w*fp[48]",
    ),
    _rule(
        "{0}",
        "cudnn_status_|cublas_status_",
        r"\b(cudnn_status_not_supported\w*|cu(?:dnn|blas)_status_arch_mismatch"
        r"|cublas_status_not_supported)\b",
    ),
    _rule(
        "cudaErrorNotSupported",
        "operation not supported",
        r"\bcu(?:da)?\w*(?:\([^()]{0,80}\))?(?: \w+){0,3}:? operation not supported\b(?! on)",
    ),
)

MEMORY = (
    _rule(
        "RESOURCE_EXHAUSTED: out of memory",
        "resource_exhausted|resource exhausted",
        r"\bresource[_ ]exhausted\b(?!\W{0,3}shared memory)"
        r"(?!(?:(?!out of memory).){0,300}not a failure)",
    ),
    _rule(
        "out of memory",
        "out of memory|oom",
        r"\bout of memory\b(?!(?:(?!out of memory).){0,300}not a failure)"
        r"|\boom[-_ ]?kill|\boomkilled\b|\boom_reaper\b",
    ),
    _rule("std::bad_alloc", "bad_alloc", r"\bstd::bad_alloc\b"),
    _rule(
        "MemoryError",
        "memoryerror|cannot allocate memory|allocate memory",
        r"\bmemoryerror\b|\bcannot allocate memory\b|can't allocate memory|unable to allocate \d",
    ),
    _rule(
        "failed to allocate",
        "failed to alloc",
        r"\bfailed to alloc(?:ate)?(?: request for)? [\d.]+ ?(?:[kmgt]i?b|bytes|[kmgt])\b",
    ),
    _rule("{0}", "_alloc_failed", r"\b(cu(?:dnn|blas|solver|sparse)_status_alloc_failed)\b"),
    _rule(
        "no more processes, threads or files",
        "start new thread|temporarily unavailable|pthread_create|too many open files|shared memory",
        r"can't start new thread|resource temporarily unavailable|pthread_create\b.{0,20}fail"
        r"|\btoo many open files\b|\b(?:insufficient|out of) shared memory\b",
    ),
)

HARDWARE = (
    _rule(
        "Xid {0}",
        "xid",
        r"\bxid\b(?: errors?)?(?: ?\(pci:[^)]*\))?[:= ]+(?!(?:13|31|32|43|45|69)\b)(\d{2,3})\b",
    ),
    _rule("GPU has fallen off the bus", "fallen off", r"\bfallen off (?:of )?the bus\b"),
    _rule(
        "GPU is lost",
        "is lost|requires reset|uncorrectable|device handle for gpu",
        r"\b(?:gpu|device) is lost\b|\bgpu requires reset\b"
        r"|\buncorrectable (?:double.bit )?ecc\b|unable to determine the device handle for gpu",
    ),
)
XID_OF_A_PROGRAM = (
    _rule("Xid {0}", "xid", r"\bxid\b(?: errors?)?(?: ?\(pci:[^)]*\))?[:= ]+(13|31|32|43|45|69)\b"),
)

DEVICE = (
    _rule("no NVIDIA driver", "nvidia driver", r"\b(?:found )?no nvidia driver\b"),
    _rule("NVIDIA driver too old", "is too old", r"\bnvidia driver\b.{0,40} is too old\b"),
    _rule(
        "device busy",
        "busy or unavailable",
        r"\bdevices?(?:\(s\))? (?:is/)?are busy or unavailable",
    ),
    _rule(
        "unable to initialize backend cuda",
        "backend",
        r"unable to initialize backend \W{0,4}(?:cuda|gpu)\b"
        r"|\b(?:cuda|gpu)\W{0,2} backend failed to initialize"
        r"|backend \W{0,4}(?:cuda|gpu)\W{0,4} failed to initialize"
        r"|unknown backend:? \W{0,4}(?:cuda|gpu)\b",
    ),
    _rule(
        "no visible GPU",
        "no visible|no supported|no gpu|no nvidia gpu|no cuda gpus|not find any gpu",
        r"\bno (?:visible |supported |nvidia |available )?(?:cuda )?(?:gpus?|cuda)(?: devices?)?"
        r"(?: were| was| is| are)? (?:found|available|detected|visible)\b"
        r"|\bno visible (?:gpu|cuda)\b|no supported devices found for platform cuda",
    ),
    _rule(
        "NVIDIA driver does not answer",
        "nvidia",
        r"nvidia-smi has failed|couldn't communicate with the nvidia driver"
        r"|nvidia-container-cli: .{0,40}error|/dev/nvidia\w*\W{0,3}(?:no such|permission)"
        r"|could not select device driver",
    ),
    _rule(
        "failed call to cuInit", "cuinit", r"failed call to cuinit\b|\bcuinit(?:\(\w*\))? failed"
    ),
)

VERSIONS = (
    _rule(
        "driver/library version mismatch",
        "version mismatch|version_mismatch|older than|mismatches",
        r"driver/library version mismatch|lib_rm_version_mismatch"
        r"|\b(?:cuda|cudnn|nccl|cublas\w*|driver) (?:driver |runtime |library )?version\b"
        r".{0,40} (?:is )?(?:older than|mismatches)",
    ),
    _rule(
        "cuDNN version mismatch",
        "cudnn",
        r"loaded (?:runtime )?cudnn library\b.{0,60}\bcompiled with"
        r"|found cudnn version .{0,60}built against|cudnn version .{0,40}incompatib",
    ),
    _rule(
        "{0}",
        "cudnn_status_|cublas_status_|cusolver_status_|cusparse_status_",
        r"\b(cudnn_status_(?:\w*version_mismatch|\w*sublibrary_loading_failed|not_initialized"
        r"|runtime_prerequisite_missing)|cu(?:blas|solver|sparse)_status_not_initialized)\b",
    ),
    _rule(
        "could not create a CUDA library handle",
        "could not create cudnn|could not create cublas|failed to create cu",
        r"(?:could not|failed to) create (?:cudnn|cublas) handle",
    ),
    _rule("DNN library initialization failed", "dnn library", r"dnn library initialization failed"),
    _rule(
        "CUDA components too old",
        "unable to use cuda|installation found|was built against|or higher required",
        r"unable to use cuda because|outdated \w+ installation found"
        r"|found \w+ version \d+.{0,40}was built against"
        r"|(?:cuda|cublas\w*) version [\d.x]+ or higher (?:is )?required",
    ),
    _rule(
        "jax and jaxlib versions do not fit",
        "jaxlib|jax version|jax requires|has no attribute",
        r"jaxlib(?: version| is version)? \S+ ?.{0,20}(?:newer than and )?incompatible with jax"
        r"|jaxlib is version \S+ but this version of jax requires"
        r"|(?:installed )?jax version .{0,80}(?:incompatible|not compatible|mismatch)"
        r"|jaxlib version .{0,60}(?:incompatible|not compatible|mismatch|too old)"
        r"|requires jaxlib (?:version )?[<>=]"
        r"|module \W{0,3}jax(?:lib)?[\w.]*\W{0,3} has no attribute",
    ),
    _rule(
        "PJRT plugin version mismatch",
        "pjrt|check installed software versions|plugin",
        r"pjrt (?:c )?(?:plugin|api).{0,80}(?:mismatch|incompatib|not compatible|too old)"
        r"|mismatched pjrt|(?:mismatch|incompatib)\w*.{0,40}\bpjrt (?:plugin|api|c api)"
        r"|unexpected (?:pjrt|xla_ffi)_\w+ size|check installed software versions"
        r"|plugin (?:\w+ )?version .{0,80}(?:not compatible|incompatib|mismatch)",
    ),
    _rule(
        "XLA FFI API version mismatch",
        "ffi",
        r"\bffi api version.{0,80}(?:mismatch|incompatib|not compatible|not supported|newer|older)"
        r"|(?:mismatch\w*|incompatible|unsupported).{0,30}\bffi api version",
    ),
    _rule(
        "NumPy ABI mismatch",
        "numpy|binary incompatib|abi version",
        r"numpy\.\w+ size changed|module (?:was )?compiled against (?:abi|api) version",
    ),
    _rule(
        "build for another architecture",
        "not compatible with the current",
        r"is not compatible with the current \w+ installation",
    ),
    _rule(
        "CUDA toolchain missing at run time",
        "ptxas|libdevice|nvlink",
        r"(?:couldn't|could not|cannot) (?:find|get|locate) (?:a (?:suitable )?version of )?\W?"
        r"(?:ptxas|nvlink)|no ptxas|ptxas (?:is )?(?:not found|too old)|libdevice not found"
        r"|couldn't invoke ptxas|ptxas returned an error.{0,60}unsupported",
    ),
)

_LIBRARY = r"((?!libtpu|libnvinfer)[\w.+-]{1,120}\.so(?:\.\d+)*)"
LIBRARIES = (
    _rule(
        "{0}: cannot open shared object file",
        "cannot open shared object",
        rf"(?:\S*/)?{_LIBRARY}\W{{1,4}}cannot open shared object",
    ),
    _rule(
        "version {0} not found",
        "glibc|cxxabi|gcc_|libc|version",
        r"\bversion \W{0,2}((?:glibc(?:xx)?|cxxabi|gcc|omp|lib\w+\.so)[\w.]*)\W{0,3} "
        r"(?:not found|not defined)",
    ),
    _rule("{0}: not found", "=> not found", rf"{_LIBRARY} => not found"),
    _rule("undefined symbol: {0}", "undefined symbol", r"\bundefined symbol:? \W?(\w+)"),
    _rule(
        "symbol lookup error",
        "lookup error|load symbol|get symbol",
        r"\bsymbol lookup error\b|cannot load symbol \w+|(?:dlsym|get symbol).{0,40}undefined",
    ),
    _rule(
        "{0}: not loadable",
        ".so",
        rf"(?:\S*/)?{_LIBRARY}\W{{1,4}}(?:invalid elf header|file too short|wrong elf class"
        r"|cannot (?:apply|allocate|enable|restore|map|read|change)|failed to map segment"
        r"|elf load command)",
    ),
    _rule(
        "{0}: could not be loaded",
        "could not load|unable to load|could not find|could not open",
        rf"(?:could not|unable to) (?:load|open|find)(?: any of| (?:dynamic )?library)? \W?"
        rf"(?:\S*/)?{_LIBRARY}",
    ),
    _rule(
        "{0} library not installed",
        "unable to load c|could not load c",
        r"(?:unable to|could not) load (cuda|cudnn|cublas|cusparse|cusolver|cufft|cupti|nccl)\b",
    ),
)

# Imports come first; a program that has gone on past them did not die of one.
IMPORTS = (
    _rule(
        "ModuleNotFoundError: No module named {0}",
        "modulenotfounderror|no module named",
        r"(?:modulenotfounderror: )?\bno module named \W{0,2}([\w.]+)"
        r"(?!.{0,80}during handling of the above exception)",
    ),
    _rule(
        "ImportError",
        "importerror",
        r"\bimporterror: (?!.{0,200}(?:shared object|undefined symbol|\bversion \W?(?:glibc|cxxabi)"
        r"|file too short|invalid elf|wrong elf|failed to map|\.so\S{0,12} cannot "
        r"|during handling of the above exception))",
    ),
)

DISK = (
    _rule(
        "no space left on device",
        "no space left|enospc|quota exceeded|disk full|disk is full",
        r"\bno space left on device\b|\benospc\b|\bdisk quota exceeded\b|\bdisk (?:is )?full\b",
    ),
    _rule(
        "file system not usable",
        "read-only file|input/output error|stale file handle|[errno 5]|transport endpoint",
        r"\bread-only file ?system\b|\binput/output error\b|\bstale file handle\b|\[errno 5\]"
        r"|transport endpoint is not connected",
    ),
    _rule(
        "permission denied",
        "permissionerror|errno 13",
        r"\bpermissionerror: \[errno (?:1|13)\]|\[errno 13\] permission denied",
    ),
)

HOST = (
    _rule(
        "lost runner",
        "lost|node_fail|node fail|cancelled|preempt|docker daemon|time limit",
        r"\blost (?:the )?(?:runner|worker|connection to (?:the )?(?:runner|host|node))"
        r"|\brunner (?:was |is |has been )?lost\b|\bnode_?fail|due to node failure"
        r"|\bdue to time limit\b|\bdue to preemption\b|\*\*\* (?:step|job)\S* .{0,40}cancelled"
        r"|cannot connect to the docker daemon",
    ),
    _rule(
        "network unreachable",
        "resolve host|name resolution|connection refused|connection timed out|connection reset"
        "|unable to access|could not fetch|no matching distribution|early eof",
        r"could not resolve host|failure in name resolution|\bconnection (?:refused|timed out"
        r"|reset by peer)|unable to access \W?https?:|could not fetch|\bearly eof\b"
        r"|no matching distribution found",
    ),
)

# Told at any level, since JAX goes on after it; void where the device is known to be right.
FALLBACK = (
    _rule(
        "fell back to the CPU",
        "falling back to|fallback to|will not be used|no gpu/tpu|skipping registering|host",
        r"\bfall(?:ing|s)? ?back to (?:the )?(?:cpu|host)\b|\bgpus? will not be used\b"
        r"|so it will not be used|skipping registering gpu devices"
        r"|\b(?:implementation|handler|not implemented|custom call|target).{0,80}"
        r" (?:for|on) platform \W?(?:host|cpu)\b",
    ),
    _rule(
        "unable to initialize backend cuda",
        "backend",
        r"unable to initialize backend \W{0,4}(?:cuda|gpu)\b",
    ),
)

# Only why nothing could be compiled: a program that needs none of it races all the same.
COMPILER_FILES = (
    _rule(
        "no libdevice",
        "libdevice",
        r"can't find libdevice directory",
    ),
)

WRONG_OUTPUT = (
    _rule(
        "values differ",
        "not equal|mismatched elements|not almost equal|not close|bits differ|outputs differ",
        r"\bnot equal to tolerance\b|\barrays are not (?:almost )?equal\b|\bmismatched elements\b"
        r"|\btensor-likes are not (?:close|equal)\b|\b(?:bits|outputs?|digests?) differ\b",
    ),
    _rule(
        "NaN",
        "floatingpointerror|invalid value",
        r"\bfloatingpointerror\b.{0,60}\bnan\b|\binvalid value \(nan\) encountered",
    ),
)

DATA_LOSS = (
    _rule(
        "stale rows",
        "stale",
        r"\b[1-9]\d* (?:of \d+ )?(?:\w+ )?(?:stale rows|rows? (?:are |is |were |was )?stale)\b"
        r"|\bstale rows\W{1,3}[1-9]",
    ),
)

# XLA's own watch over its rendezvous and executions ends a process that makes no progress.
GAVE_UP = (
    _rule(
        "gave up waiting",
        "termination timeout|timeouterror|timeoutexpired|deadline_exceeded|hang watchdog"
        "|hangwatchdog|did not finish|did not join|did not complete",
        r"\btermination timeout\b.{0,120}\bexceeded|\btimeouterror\b|\btimeoutexpired\b"
        r"|\bdeadline_exceeded\b|\bhang ?watchdog\b.{0,120}\b(?:timed out|abort|expired|exceeded)"
        r"|\bdid not (?:finish|join|complete)\b",
    ),
)

# How a process ends, whatever the cause was.
FATAL = (
    _rule(
        "SIGSEGV",
        "segmentation fault|sigsegv|segfault",
        r"\bfatal python error: segmentation fault|\bsegmentation fault\b|\bsigsegv\b"
        r"|\bsegfault(?:ed)?\b(?! handler)",
    ),
    _rule(
        "SIGBUS", "bus error|sigbus", r"\bfatal python error: bus error|\bbus error\b|\bsigbus\b"
    ),
    _rule(
        "SIGFPE",
        "floating|sigfpe",
        r"\bfloating.point exception\b|\bsigfpe\b",
    ),
    _rule(
        "SIGILL",
        "illegal instruction|sigill",
        r"\bfatal python error: illegal instruction|\billegal instruction \(|\bsigill\b",
    ),
    _rule(
        "SIGABRT",
        "abort|terminate called|check failed|free(|corrupt|smash|assertion|virtual",
        r"\bfatal python error: aborted|\bsigabrt\b|\baborted \(core dumped\)"
        r"|\bterminate called\b|\bcheck failed: |\bfree\(\): |\bmalloc\(\): |\bcorrupted size vs"
        r"|\bdouble free or corruption|\bstack smashing detected|\bassertion `|\bpure virtual",
    ),
)

# They name a library's or a call's failure and no cause: heeded when nothing better is found.
CUDA_SYMPTOM = (
    _rule(
        "{0}",
        "cudaerror|cuda_error",
        r"\b(cudaerror(?!t\b|_t\b|notready|cudartunloading)[a-z]\w+"
        r"|cuda_error_(?!deinitialized|not_ready)\w+)",
    ),
    _rule(
        "CUDA error: {0}",
        "cuda",
        r"\bcuda (?:runtime |driver |api )?(?:error|failure)\b\W{1,3}([a-z][\w ,'-]{3,80})",
    ),
    _rule("{0}", "_status_", r"\b(cu(?:dnn|blas|solver|sparse|fft)_status_(?!success)\w+)"),
    _rule(
        "{0} error",
        "cudnn error|cublas error|nccl error",
        r"\b(cudnn|cublas|nccl) error\b",
    ),
)

_TOOL = (
    r"(?:nvcc|cicc|ptxas|cudafe\+\+|g\+\+|c\+\+|gcc|clang\+\+|clang|cc|cmake|ninja|make|git|cc1plus|cc1"
    r"|\S*-g(?:cc|\+\+))"
)
_HEADER = (
    r"(?:cuda(?:_\w+|typedefs)?\.h|cuda/[\w./+-]+|cudnn\w*\.h|cublas\w*\.h|curand\w*\.h|cusolver\w*\.h"
    r"|cusparse\w*\.h|cufft\w*\.h|nccl\w*\.h|nvml\.h|nvrtc\.h|nvtx3?/[\w./+-]+|nvtoolsext\w*\.h"
    r"|nvjitlink\.h|nvshmem\w*\.h|cupti\w*\.h|cutlass/[\w./+-]+|cute/[\w./+-]+|cub/[\w./+-]+|thrust/[\w./+-]+|crt/[\w./+-]+"
    r"|cooperative_groups[\w./]*|(?:vector|driver|device|host)_\w+\.h|library_types\.h|fatbinary\w*\.h"
    r"|pybind11/[\w./+-]+|python\.h|numpy/[\w./+-]+|xla/[\w./+-]+|mpi\.h|gtest/[\w./+-]+|bits/[\w./+-]+|sys/[\w./+-]+|linux/[\w./+-]+|asm/[\w./+-]+"
    r"|std\w+\.h|(?:string|math|assert|unistd|limits|errno|dlfcn|pthread|features|time)\.h|[a-z_]+)"
)
BUILD_INFRA = (
    _rule(
        "compiler out of memory",
        "kill|virtual memory exhausted|out of memory",
        r"\bkilled signal terminated program\b|\binternal compiler error: killed\b"
        r"|\bdied due to signal 9\b|\bvirtual memory exhausted\b"
        rf"|\bkilled(?: +(?:\S*/)?{_TOOL}\b|$)|\bsignal 9\b.{{0,20}}\bkill|\bout of memory\b",
    ),
    _rule(
        "{0} not found",
        "not found|no such file|could not|couldn't|cannot|failed to|on path|in path",
        rf"(?:^|[\s:/'\"])({_TOOL})['\"]?: (?:command )?not found"
        rf"|no such file or directory: ['\"]?(?:\S*/)?({_TOOL})['\"]?(?:\s|$)"
        rf"|(?:command|execute) ['\"](?:\S*/)?({_TOOL})['\"](?: failed)?: no such file"
        rf"|(?:could not|cannot|failed to|couldn't) (?:find|locate|execute) (?:the )?['\"]?"
        rf"({_TOOL})\b(?! package)|\b({_TOOL})['\"]?: no such file or directory"
        rf"|\bexec\w* ['\"]({_TOOL})['\"]: execvp"
        rf"|\b({_TOOL}) (?:was |is |executable )?not (?:found|on path|in path)\b",
    ),
    _rule(
        "no compiler",
        "cmake_|compiler|build program|cuda_home",
        r"no cmake_\w+_compiler could be found|cmake_\w+_compiler:? .{0,80}not a full path"
        r"|(?:could not|cannot) find (?:a |the |any )?(?:\w+ )?compiler\b"
        r"|unable to find a build program"
        r"|\bcompiler requires the cuda toolkit|not able to compile a simple test program"
        r"|failed to find (?:a )?(?:working )?(?:nvcc|compiler)"
        r"|no (?:working )?compiler (?:was )?found|cuda_home .{0,40}(?:not set|is unset)",
    ),
    _rule(
        "toolchain does not fit",
        "unsupported g|unrecognized command|is not defined for option|or higher is required"
        "|unknown option|unsupported gpu architecture|unsupported microsoft",
        r"unsupported (?:gnu|clang|microsoft visual studio) version|unsupported gpu architecture"
        r"|unrecognized command.line option|is not defined for option"
        r"|\bcmake [\d.]+ or higher is required|nvcc fatal *: unknown option",
    ),
    _rule(
        "{0} missing",
        "could not find|failed to find",
        r"\bcould not find (?:a package configuration file provided by )?\W?"
        r"(cuda\w*|cudnn\w*|nccl\w*|python\w*|pybind11|openmp|mpi|threads|nvtx\w*|\w+_library|ninja)\b"
        r"|could not find (cudnn frontend|cutlass)|failed to find (cuda\w*|cudnn\w*|nccl\w*)",
    ),
    _rule(
        "{0}: no such header",
        "no such file|file not found|source file",
        rf"\b(?:fatal )?error: ['\"<]?({_HEADER})['\">]?:? (?:no such file|file not found)"
        rf"|(?:cannot|could not) open source file ['\"<]({_HEADER})['\">]",
    ),
    _rule(
        "cannot find -l{0}",
        "cannot find -l|unable to find library -l|library not found",
        r"(?:cannot find|unable to find library|library not found for) -l:?(\S+?):?(?:\s|$)",
    ),
    _rule(
        "submodule missing",
        "submodule",
        r"\bgit submodule update\b|submodule .{0,60}(?:missing|not (?:found|initiali[sz]ed))",
    ),
)

COMPILE_ERROR = (
    _rule(
        "{0}",
        "error",
        r"((?:fatal )?\berror *(?:#?[\w-]{1,12} ?)?: ?(?!command |subprocess-exited"
        r"|ld returned|linker command failed|metadata-generation|failed)[^:].{2,200})",
    ),
    _rule("undefined reference to {0}", "undefined reference", r"undefined reference to \W?(\w+)"),
    _rule("undefined symbol: {0}", "undefined symbol", r"\bundefined symbol:? \W?(\w+)"),
    _rule("multiple definition of {0}", "multiple definition", r"multiple definition of \W?(\w+)"),
    _rule("CMake Error", "cmake error", r"\bcmake error\b"),
    _rule("no rule to make target", "no rule to make", r"no rule to make target"),
)
