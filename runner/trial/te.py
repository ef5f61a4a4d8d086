"""TransformerEngine as the program of a trial: standard library, JAX and TE only."""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from runner.detector import record
from runner.matrix import Program, Recipe, resolve_recipe
from runner.trial import handlers
from runner.trial.program import DeviceFacts, ParentConfig

ROWS, WIDTH = 64, 4096
"""Shape of the resident float32 buffer that the background thread updates row by row."""
TOKENS, HIDDEN = 2048, 1024
"""Shape of the input of `norm-act-gemm`, as measured for TE issue 3863."""
INJECTION = "CUDA_INJECTION64_PATH"
"""Names the one library that the CUDA driver loads at its initialisation; profilers set it too."""


def prepare(config: ParentConfig) -> Mapping[str, str]:
    """Import JAX and TE without touching a device; returns their versions."""
    os.environ.setdefault("JAX_PLATFORMS", "cuda")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("NVTE_FRAMEWORK", "jax")
    os.environ["CUDA_VISIBLE_DEVICES"] = config.device
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        # By default JAX keeps only what took a second to compile.
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    # TE imports its PyTorch side where PyTorch is installed: time and threads no trial needs.
    sys.modules["transformer_engine.pytorch"] = None  # type: ignore[assignment]
    sys.path.insert(0, config.build_dir)
    if config.detector:
        os.environ["RACEWATCH_CUPTI"] = os.pathsep.join(_cupti_libraries())
    import jax

    if config.registration == "unregistered":
        _drop_initialize(jax.ffi)
    _load_nccl()
    import transformer_engine.jax as te

    if not hasattr(te, "autocast") and not hasattr(te, "fp8_autocast"):
        raise ImportError(f"{te.__file__} is no transformer_engine.jax")
    versions = {"jax": jax.__version__, "te": importlib.metadata.version("transformer_engine")}
    versions["jaxlib"] = importlib.metadata.version("jaxlib")
    return versions


def _drop_initialize(ffi: Any) -> None:
    """Register TE's FFI targets without their initialize stage.

    TE registers when it is imported, so this comes before that.
    """
    register = ffi.register_ffi_target

    def without_initialize(name: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, dict):
            target = {stage: fn for stage, fn in target.items() if stage != "initialize"}
        return register(name, target, *args, **kwargs)

    ffi.register_ffi_target = without_initialize


def _load_nccl() -> None:
    """Load NCCL where this interpreter's packages have it.

    TE's core library is linked with it; of CUDA's other libraries TE loads those that packages
    hold, and JAX loads NCCL only with its backend. Elsewhere the loader finds it, or TE's import
    says that it did not.
    """
    for folder in sys.path:
        for library in glob.glob(f"{glob.escape(folder)}/nvidia/nccl/lib/libnccl.so.2"):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            return


def _cupti_libraries() -> list[str]:
    """CUPTI where this interpreter's packages have it, then where a CUDA toolkit does."""
    found: list[str] = []
    for folder in sys.path:
        found += sorted(glob.glob(f"{glob.escape(folder)}/nvidia/*/lib/libcupti.so.1?"))[::-1]
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    for home in filter(None, homes):
        found += glob.glob(f"{glob.escape(home)}/extras/CUPTI/lib64/libcupti.so")
    return list(dict.fromkeys(found))


def _watch(library: str, path: str) -> None:
    """Have the CUDA driver load the detector when it is initialised, or record why it shall not."""
    taken = os.environ.get(INJECTION)
    if taken:
        record.refuse(path, f"a profiler is here already: {INJECTION} is {taken}")
        return
    try:
        ctypes.CDLL(library)  # the driver says nothing of a library that it cannot load
    except OSError as error:
        record.refuse(path, f"the detector cannot be loaded: {error}")
        return
    os.environ[INJECTION] = library


def environment() -> dict[str, str]:
    """What a trial's environment holds besides.

    CUDA creates a context's channels one by one under a lock of the whole host: with one connection
    instead of eight a context takes 0.10 s of it instead of 0.23 s on an H200, and that bounds how
    many trials a host runs. Failure rates and output bits are the same (docs/results-h200.md). A
    CUDA_DEVICE_MAX_CONNECTIONS of the user's own wins.
    """
    return {"CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "1")}


def expected_handlers(
    program: Program, recipe: Recipe, compute_capability: tuple[int, int]
) -> tuple[str, ...]:
    """The initialize functions that the program enters, where the commit has them."""
    if program is Program.NORM_ACT_GEMM:
        rht = ("RHTAmaxCalculation",) if recipe is Recipe.NVFP4 else ()
        return (*handlers.NORM_ACT_GEMM, *rht)
    names = [*handlers.SOFTMAX, *handlers.ROUTER]
    if compute_capability >= (8, 9):
        names += handlers.QUANTIZE
    if compute_capability >= (10, 0):
        names += handlers.GROUPED
    return tuple(names)


def open_program(config: ParentConfig) -> TeProgram:
    """A new program in this process, watched by the detector where that is asked for."""
    path = os.environ.get(record.VARIABLE)
    if config.detector and path:
        _watch(config.detector, path)
    return TeProgram()


class TeProgram:
    """See `runner.trial.program.Program`."""

    def __init__(self) -> None:
        self._background: _Background | None = None
        self._capability = (0, 0)
        self._compiled: Any = None
        self._arguments: tuple[Any, ...] = ()

    def open_device(self) -> DeviceFacts:
        """The first device JAX sees (the parent was given one)."""
        import jax

        device = jax.devices()[0]
        platform = "cuda" if device.platform == "gpu" else device.platform
        capability = str(getattr(device, "compute_capability", "0.0"))
        major, _, minor = capability.partition(".")
        self._capability = (int(major), int(minor or 0))
        return DeviceFacts(platform, device.device_kind, self._capability)

    def compile(self, program: str, recipe: str) -> str:
        """Trace, lower and compile the program ahead of its first execution."""
        import jax

        chosen = resolve_recipe(Recipe(recipe), self._capability)
        build = {"norm-act-gemm": _norm_act_gemm, "softmax-quantize-router": _softmax_router}
        function, arguments = build[program](str(chosen), self._capability)
        self._arguments = tuple(jax.block_until_ready(jax.device_put(a)) for a in arguments)
        self._compiled = jax.jit(function).lower(*self._arguments).compile()
        return str(chosen)

    def start_background(self, period_ms: float) -> None:
        """Start updating the resident buffer; returns after one round over all its rows."""
        self._background = _Background(period_ms)
        self._background.start()

    def execute(self) -> bytes:
        """Execute, wait, and return the bytes of every output in order."""
        import jax
        import numpy as np

        outputs = jax.block_until_ready(self._compiled(*self._arguments))
        return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(outputs))

    def stop_background(self, timeout_s: float) -> bool:
        """See Program."""
        return self._background is None or self._background.stop(timeout_s)

    def background_updates(self) -> int:
        """See Program."""
        return self._background.updates if self._background else 0

    def background_error(self) -> str:
        """See Program."""
        return self._background.error if self._background else ""

    def compare_resident(self) -> int:
        """See Program."""
        return self._background.stale_rows() if self._background else 0


class _Background:
    """A data loader: `device_put` of a row and a jitted, donated update of a resident buffer."""

    def __init__(self, period_ms: float) -> None:
        self.updates = 0
        self.error = ""
        self._period_s = period_ms / 1000
        self._stop = threading.Event()
        self._first_round = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._resident: Any = None

    def start(self) -> None:
        self._thread.start()
        self._first_round.wait()
        if self.error:
            raise RuntimeError(self.error)

    def stop(self, timeout_s: float) -> bool:
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        record.name_thread("background")
        try:
            self._update_until_stopped()
        except Exception:
            self.error = traceback.format_exc()
        finally:
            self._first_round.set()

    def _update_until_stopped(self) -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        def put(resident: Any, row: Any, at: Any) -> Any:
            return jax.lax.dynamic_update_slice(resident, row, (at, 0))

        update = jax.jit(put, donate_argnums=0)
        self._resident = jnp.zeros((ROWS, WIDTH), jnp.float32)
        while not (self._stop.is_set() and self.updates % ROWS == 0):
            row = np.full((1, WIDTH), self.updates + 1, np.float32)
            self._resident = update(self._resident, jax.device_put(row), self.updates % ROWS)
            self.updates += 1
            if self.updates % ROWS == 0:
                self._resident.block_until_ready()
                self._first_round.set()
            if self._period_s:
                self._stop.wait(self._period_s)

    def stale_rows(self) -> int:
        import numpy as np

        last = np.arange(self.updates - ROWS, self.updates) + 1
        must = np.empty(ROWS, np.float32)
        must[(last - 1) % ROWS] = last
        return int((np.asarray(self._resident) != must[:, None]).any(axis=1).sum())


Function = Callable[..., Any]


def _values(shape: tuple[int, ...], seed: int, dtype: Any) -> Any:
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(dtype)


def _integers(shape: tuple[int, ...], seed: int, below: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).integers(below, size=shape)


def _norm_act_gemm(recipe: str, capability: tuple[int, int]) -> tuple[Function, list[Any]]:
    """Layernorm, gelu, low-precision GEMM, forward and backward: the program of TE issue 3863."""
    import jax
    import jax.numpy as jnp
    from transformer_engine.jax.activation import activation
    from transformer_engine.jax.dense import dense
    from transformer_engine.jax.layernorm import layernorm

    quantizers = {} if recipe == "bf16" else {"quantizer_set": _quantizer_set(recipe)}

    def forward(x: Any, gamma: Any, beta: Any, kernel: Any) -> Any:
        normed = layernorm(x, gamma, beta, norm_type="layernorm")
        active = activation(normed[:, None, :], ("gelu",))
        return dense(active, kernel, contracting_dims=((1,), (0,)), **quantizers)

    def both(x: Any, gamma: Any, beta: Any, kernel: Any, cotangent: Any) -> Any:
        output, pull = jax.vjp(forward, x, gamma, beta, kernel)
        return output, pull(cotangent.astype(output.dtype))

    bf16 = jnp.bfloat16
    return both, [
        _values((TOKENS, HIDDEN), 1, bf16),
        _values((HIDDEN,), 2, bf16),
        _values((HIDDEN,), 3, bf16),
        _values((HIDDEN, HIDDEN), 4, bf16),
        _values((TOKENS, HIDDEN), 5, bf16),
    ]


def _quantizer_set(recipe: str) -> Any:
    """A quantizer set of TE for that recipe; TE refuses by an assertion what the device lacks."""
    import jax.numpy as jnp
    from transformer_engine.jax.quantize import QuantizerFactory, ScalingMode, helper

    mode = {
        "fp8-current-scaling": "CURRENT_TENSOR_SCALING",
        "mxfp8": "MXFP8_1D_SCALING",
        "nvfp4": "NVFP4_1D_SCALING",
    }[recipe]
    if not hasattr(ScalingMode, mode):
        raise NotImplementedError(f"this commit of TE has no recipe {recipe}")
    supported, reason = helper.is_scaling_mode_supported(getattr(ScalingMode, mode))
    if not supported:
        raise AssertionError(reason)
    if recipe == "nvfp4":
        from transformer_engine.common.recipe import NVFP4BlockScaling
        from transformer_engine.jax.quantize import QuantizeMeta, QuantizeMetaSet

        return QuantizerFactory.create_set(
            fp8_recipe=NVFP4BlockScaling(disable_stochastic_rounding=True),
            quantize_meta_set=QuantizeMetaSet(
                x=QuantizeMeta(use_rht=True),
                kernel=QuantizeMeta(use_rht=False),
                grad=QuantizeMeta(use_rht=True),
            ),
        )
    backward = jnp.float8_e4m3fn if recipe == "mxfp8" else jnp.float8_e5m2
    return QuantizerFactory.create_set(
        scaling_mode=getattr(ScalingMode, mode),
        fwd_dtype=jnp.float8_e4m3fn,
        bwd_dtype=backward,
        is_2x2x=True,
    )


def _softmax_router(recipe: str, capability: tuple[int, int]) -> tuple[Function, list[Any]]:
    """What PR 2800 adds initialize stages to: softmax, quantize and router, as far as they exist.

    Of the thirteen, GroupedQuantizeV2 needs MXFP8 (compute capability 10.0), and a commit before
    the router existed has no FusedTopk and no FusedMoEAuxLoss.
    """
    import jax
    import jax.numpy as jnp
    from transformer_engine.jax import cpp_extensions as tex
    from transformer_engine.jax.quantize import QuantizeLayout, QuantizerFactory, ScalingMode
    from transformer_engine.jax.softmax import SoftmaxFusionType, softmax

    fp8 = capability >= (8, 9)
    try:
        from transformer_engine.jax import router
    except ImportError:
        router = None

    def softmaxes(logits: Any, mask: Any) -> Any:
        plain = softmax(logits, None, 0.5, SoftmaxFusionType.SCALED)
        masked = softmax(logits, mask, 0.5, SoftmaxFusionType.SCALED_MASKED)
        causal = softmax(logits, None, 0.5, SoftmaxFusionType.SCALED_UPPER_TRIANG_MASKED)
        return plain, masked, causal

    def routed(logits: Any, probs: Any, tokens_per_expert: Any) -> Any:
        # The loss adds up with atomics, in any order: its bits are only fixed where every partial
        # sum is exact, which quarters, small counts and a coefficient of 2**-7 make it.
        chosen, _ = router.fused_topk_with_score_function(logits, 4)
        return chosen, router.fused_moe_aux_loss(probs, tokens_per_expert, 4, 2.0**-7)

    def quantized(x: Any) -> Any:
        quantizer = QuantizerFactory.create(
            1, ScalingMode.CURRENT_TENSOR_SCALING, jnp.float8_e4m3fn, QuantizeLayout.ROWWISE_COLWISE
        )
        tensor, dbias = tex.quantize_dbias(x, quantizer=quantizer)
        rowwise = tensor.rowwise_tensor
        scale = rowwise.scale_inv.astype(jnp.float32).reshape((1,))
        # TE's Python side dequantizes without this FFI; the handler is still registered and tested.
        back = jax.ffi.ffi_call("te_dequantize_ffi", jax.ShapeDtypeStruct(x.shape, x.dtype))(
            rowwise.data, jnp.zeros((1,), jnp.float32), 1 / scale, scale
        )
        return rowwise.data.astype(jnp.float32), dbias, back

    def grouped(x: Any) -> Any:
        quantizer = QuantizerFactory.create(
            1, ScalingMode.MXFP8_1D_SCALING, jnp.float8_e4m3fn, QuantizeLayout.ROWWISE, n_groups=2
        )
        sizes = jnp.full((2,), x.shape[0] // 2, jnp.int32)
        return tex.grouped_quantize(x, quantizer, sizes).data.astype(jnp.float32)

    def everything(logits: Any, mask: Any, x: Any, gate: Any, probs: Any, experts: Any) -> Any:
        outputs, pull = jax.vjp(lambda value: softmaxes(value, mask), logits)
        results = [outputs, pull(outputs)]
        if router is not None:
            outputs, pull = jax.vjp(lambda a, b: routed(a, b, experts), gate, probs)
            results += [outputs, pull(outputs)]
        if fp8:
            results.append(quantized(x))
        if capability >= (10, 0) and hasattr(tex, "grouped_quantize"):
            results.append(grouped(x))
        return results

    bf16 = jnp.bfloat16
    return everything, [
        _values((2, 4, 128, 128), 1, bf16),
        (_values((2, 1, 128, 128), 2, jnp.float32) > 1).astype(jnp.uint8),
        _values((TOKENS, HIDDEN), 3, bf16),
        _values((TOKENS, 32), 4, jnp.float32),
        _integers((TOKENS, 32), 5, 4).astype("float32") / 4,
        _integers((32,), 6, 8).astype("int32"),
    ]
