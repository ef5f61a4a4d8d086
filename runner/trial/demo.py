"""The emulated miniature of TransformerEngine as the program of a trial: standard library only.

Read from the environment of a trial:
EMULATION_BACKGROUND  what the background thread does: `mix` (as JAX does it, the default), or one
                      that makes one kind of failure all but sure where the race is: `copy`
                      (data_loss), `synchronize` (capture_error), `record` (crash), `wait` (hang),
                      `feed` (wrong_output); or `refresh`, which writes every row again and again
                      and so repairs what a capture swallows: trials pass with foreign work.
EMULATION_ONCE        the share of the updates of `refresh` that come with something which nothing
                      repeats (0): where a capture swallows that, the trial fails (data_loss).
EMULATION_RATE        the share of first executions that meet the race, about: the background
                      thread's period is drawn out so far that its next update, at a random moment,
                      falls into a capture that often.
EMULATION_FAULT       the share of trials in which the device loses the background thread's first
                      update, whatever the commit (0): a failure rate that no commit brought.
EMULATION_LOAD_MS     how long a kernel's module takes to load at its first launch (4).
EMULATION_DEVICES     how many devices there are (1).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from runner.detector import record
from runner.matrix import Program, Recipe, resolve_recipe
from runner.trial import handlers
from runner.trial.program import DeviceFacts, ParentConfig

LIBRARY = "transformer_engine_jax.so"
COMPUTE_CAPABILITY = (9, 0)
_LOAD_MS = 4.0
_KERNELS_IN_CAPTURES = 6
"""Kernels whose modules `norm-act-gemm` loads in its four captures: two of each backward one."""
_REGISTRATIONS = ("registered", "unregistered")
_WORKS = ("mix", "copy", "synchronize", "record", "wait", "feed", "refresh")


class EmulatedRuntimeError(RuntimeError):
    """An error of the emulated runtime, in the words of XLA and CUDA."""


def prepare(config: ParentConfig) -> Mapping[str, str]:
    """Load the build's library, which starts no thread and opens no device."""
    _load(config.build_dir)
    return {"te": "demo"}


def expected_handlers(
    program: Program, recipe: Recipe, compute_capability: tuple[int, int]
) -> tuple[str, ...]:
    """The initialize functions that the program enters, where the commit has them."""
    if program is Program.NORM_ACT_GEMM:
        return handlers.NORM_ACT_GEMM
    return (*handlers.SOFTMAX, *handlers.ROUTER, *handlers.QUANTIZE, *handlers.GROUPED)


def open_program(config: ParentConfig) -> DemoProgram:
    """A new program in this process."""
    _one_of("registration", config.registration, _REGISTRATIONS)
    for name in ("EMULATION_RATE", "EMULATION_LOAD_MS", "EMULATION_ONCE", "EMULATION_FAULT"):
        _number(name, 0.0)
    return DemoProgram(
        _load(config.build_dir), config.registration == "registered", int(config.device)
    )


class DemoProgram:
    """One process's program on the emulated device; see runner.trial.program.Program."""

    def __init__(self, library: ctypes.CDLL, initialize: bool, device: int) -> None:
        self._library = library
        self._initialize = initialize
        self._device = device
        self._background: threading.Thread | None = None
        self._background_error = ""

    def open_device(self) -> DeviceFacts:
        """Register the extension's handlers and open the device."""
        registrations = self._library.emulation_registrations()
        if registrations is None:
            raise self._error()
        for line in registrations.decode().splitlines():
            target, stage = line.split()
            if stage != "initialize" or self._initialize:
                self._check(self._library.emulation_register(target.encode(), stage.encode()))
        self._check(self._library.emulation_open(self._device))
        return DeviceFacts(
            platform="emulated",
            name=self._library.emulation_device_name().decode(),
            compute_capability=COMPUTE_CAPABILITY,
            driver="emulated",
        )

    def compile(self, program: str, recipe: str) -> str:
        """Make a fresh program; returns the recipe that `auto` stands for."""
        chosen = resolve_recipe(Recipe(recipe), COMPUTE_CAPABILITY)
        if chosen in (Recipe.NVFP4, Recipe.MXFP8):
            raise EmulatedRuntimeError(
                f"Assertion failed: Device compute capability 10.0 or higher required for {chosen} "
                "execution, got 9.0."
            )
        self._check(self._library.emulation_compile(program.encode(), chosen.encode()))
        return str(chosen)

    def start_background(self, period_ms: float) -> None:
        """Start the thread that updates the resident buffer; returns after its first update."""
        work = os.environ.get("EMULATION_BACKGROUND", "") or "mix"
        _one_of("EMULATION_BACKGROUND", work, _WORKS)
        rate = _number("EMULATION_RATE", 0.0)
        if rate > 0:
            period_ms = _KERNELS_IN_CAPTURES * _number("EMULATION_LOAD_MS", _LOAD_MS) / rate
        self._background = threading.Thread(
            target=self._run_background,
            args=(work, period_ms, rate > 0),
            name="background",
            daemon=True,
        )
        self._background.start()
        self._library.emulation_background_await_first()

    def _run_background(self, work: str, period_ms: float, random_phase: bool) -> None:
        record.name_thread("background")
        # ctypes lets go of the interpreter's lock, so this runs beside the main thread.
        failed = self._library.emulation_background_run(work.encode(), period_ms, random_phase)
        if failed:
            self._background_error = str(self._error())

    def execute(self) -> bytes:
        """Execute the program and return its outputs, one after the other."""
        self._check(self._library.emulation_execute())
        return ctypes.string_at(
            self._library.emulation_output(), self._library.emulation_output_size()
        )

    def stop_background(self, timeout_s: float) -> bool:
        """Ask the background thread to stop; True if it ended in time (or never ran)."""
        if self._background is None:
            return True
        self._library.emulation_background_stop()
        self._background.join(timeout_s)
        return not self._background.is_alive()

    def background_updates(self) -> int:
        """Updates that the background thread has made so far."""
        return int(self._library.emulation_background_updates())

    def background_error(self) -> str:
        """The text of the error that ended the background thread, empty if none did."""
        return self._background_error

    def compare_resident(self) -> int:
        """Rows of the resident buffer that lack an update."""
        stale = int(self._library.emulation_stale_rows())
        if stale < 0:
            raise self._error()
        return stale

    def _check(self, status: int) -> None:
        if status != 0:
            raise self._error()

    def _error(self) -> EmulatedRuntimeError:
        return EmulatedRuntimeError(f"INTERNAL: {self._library.emulation_error().decode()}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a number >= 0, got {text!r}")
    return value


def _load(build_dir: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(build_dir) / LIBRARY))
    text, number = ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[object, list[object]]] = {
        "error": (text, []),
        "registrations": (text, []),
        "register": (number, [text, text]),
        "open": (number, [number]),
        "device_name": (text, []),
        "compile": (number, [text, text]),
        "execute": (number, []),
        "output": (ctypes.c_void_p, []),
        "output_size": (ctypes.c_uint64, []),
        "background_run": (number, [text, ctypes.c_double, number]),
        "background_await_first": (None, []),
        "background_stop": (None, []),
        "background_updates": (ctypes.c_uint64, []),
        "stale_rows": (number, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"emulation_{name}")
        function.restype, function.argtypes = result, arguments
    return library
