"""Every error that Racewatch raises on purpose: one tree with one root, each a clear sentence."""


class RacewatchError(Exception):
    """Root of the tree: `str(error)` is a sentence naming the thing, the value, the way out."""

    exit_code = 3


class InputError(RacewatchError):
    """The user asked for something that is not there or not valid (exit 2)."""

    exit_code = 2


class MatrixError(InputError):
    """A matrix file, or a cell in it, is not valid."""


class ResultError(InputError):
    """A line or a file is no event or result of a run."""


class ToolchainError(InputError):
    """A toolchain file is not valid."""


class RefError(InputError):
    """A ref, a pull request or a version names nothing in the subject's source."""


class SubjectError(InputError):
    """A subject is unknown, or a repository is not that subject."""


class BisectionError(InputError):
    """There is nothing to bisect between the two commits, or a record of it cannot be read."""


class VariantError(RacewatchError):
    """A transform does not apply to this tree; the message is the reason shown as `unsupported`."""


class InfrastructureError(RacewatchError):
    """The host cannot do the work: no compiler, no device, no space, no network (exit 3)."""


class StoreError(InfrastructureError):
    """An artifact could not be read from or written to the store."""


class BuildError(RacewatchError):
    """The subject's own source does not build; `log` holds the compiler's output, `first_error` its
    first error line."""

    exit_code = 1

    def __init__(self, message: str, *, log: str = "", first_error: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.first_error = first_error
