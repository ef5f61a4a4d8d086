"""What bundles and images carry verbatim needs nothing but the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

from runner.bundle import HARNESS_FILES

ROOT = Path(__file__).parents[2]
CARRIED = sorted(
    {
        path.relative_to(ROOT)
        .with_suffix("")
        .as_posix()
        .replace("/", ".")
        .removesuffix(".__init__")
        for pattern in HARNESS_FILES
        for path in (ROOT / "runner").glob(pattern)
        if path.suffix == ".py"
    }
)


@pytest.mark.parametrize("module", CARRIED)
def test_a_carried_module_imports_the_standard_library_only(module: str, tmp_path: Path) -> None:
    # A copy of what is carried, so that nothing else of the repository can be imported.
    for pattern in HARNESS_FILES:
        for source in (ROOT / "runner").glob(pattern):
            target = tmp_path / "runner" / source.relative_to(ROOT / "runner")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (tmp_path / "runner" / "variants" / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
