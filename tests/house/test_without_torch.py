"""cellgen without torch, JAX and onnx: what needs one says what to install; none comes unasked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_importing_cellgen_imports_no_framework() -> None:
    done = run(
        "import sys; sys.modules['torch'] = sys.modules['jax'] = sys.modules['onnx'] = None\n"
        "import cellgen, cellgen.api, cellgen.compat\n"
        "cellgen.load('elman').build()"
    )
    assert done.returncode == 0, done.stderr


def test_the_functions_of_jax_say_what_to_install() -> None:
    done = run("import sys; sys.modules['jax'] = None\nimport cellgen.jax")
    assert "pip install 'cellgen-compiler[jax]'" in done.stderr.splitlines()[-1]
    assert done.returncode == 1


def test_the_layers_of_torch_say_what_to_install() -> None:
    done = run("import sys; sys.modules['torch'] = None\nimport cellgen.torch")
    assert "pip install 'cellgen-compiler[torch]'" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1
    assert done.returncode == 1


def test_models_of_onnx_say_what_to_install() -> None:
    done = run("import sys; sys.modules['onnx'] = None\nimport cellgen.onnx")
    assert "pip install 'cellgen-compiler[onnx]'" in done.stderr.splitlines()[-1]
    assert done.returncode == 1


def test_a_framework_that_is_there_and_broken_says_so_itself(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import a_part_that_is_missing")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport cellgen.torch"
    done = run(code)
    assert done.stderr.splitlines()[-1].endswith("No module named 'a_part_that_is_missing'")
    assert "pip install" not in done.stderr
