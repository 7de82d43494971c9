"""Releases: equal bytes from equal sources; recipe and constraints follow ``pyproject.toml``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
PINNED_ELSEWHERE = {"torch", "tensorflow-cpu", "ziglang", "epynn"}
"""Of the extras: what .ci/suites pins, or no run of CI installs."""


def project() -> dict:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=! ]", requirement)[0]).lower()


def tools_of_a_release() -> list[str]:
    """The packages that the release workflow installs by name, with the constraints."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    (line,) = re.findall(r"python -m pip install -c \.ci/constraints\.txt (.+)", text)
    return line.split()


def test_what_ci_installs_is_pinned() -> None:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pins = {name_of(line) for line in lines if line and not line.startswith("#")}
    pin = re.compile(r"[\w.-]+==[\w.]+")
    assert all(pin.fullmatch(line) for line in lines if line[:1] not in ("", "#"))
    extras = project()["optional-dependencies"]
    needs = [*project()["dependencies"], *extras["dev"], *extras["docs"], *extras["jax"]]
    needs += ["hatchling", *extras["onnx"], *tools_of_a_release()]
    assert set(map(name_of, needs)) - pins - PINNED_ELSEWHERE == set()


def test_the_recipe_needs_what_the_project_needs() -> None:
    recipe = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    run = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    listed = {re.sub(r"\s+", "", line.strip(" -")) for line in run.splitlines() if line.strip()}
    assert listed == {"python>=3.11", "c-compiler", *project()["dependencies"]}
    assert f'version = "{project()["version"]}"' in recipe


def test_nothing_is_released_that_a_job_of_checks_did_not_pass() -> None:
    """What landings are checked by, and the least versions that are allowed."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)*)", text.partition("jobs:\n")[2], re.M))
    assert "- run: .ci/run\n" in jobs["check"]
    assert "- run: .ci/lowest\n" in jobs["lowest"]
    lowest = project()["requires-python"].removeprefix(">=")
    assert f'python-version: "{lowest}"' in jobs["lowest"]
    assert "needs: [build, check, lowest]" in jobs["attest"]
    assert "needs: attest" in jobs["publish"]


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """Of the wheel and of the source archive, from two folders whose files have other dates."""
    pytest.importorskip("hatchling")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for folder in ("one", "two"):
        for name in filter(None, tracked):
            place = tmp_path / folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", f"../{folder}-dist"]
        subprocess.run([*command, "."], cwd=tmp_path / folder, check=True, capture_output=True)
    files = sorted(path.name for path in (tmp_path / "one-dist").iterdir())
    assert [Path(name).suffix for name in files] == [".whl", ".gz"]
    for name in files:
        one, two = (tmp_path / f"{folder}-dist" / name for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), name
