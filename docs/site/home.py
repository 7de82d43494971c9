"""The first page of the site: what stands first in the README, with the equations and the picture.

Input: ``README.md`` and the cell of ``examples/own_cell.py``. Output: Markdown and an SVG. Nothing
is typed twice.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = "home.svg"
DOCUMENTS = "documents.md"
CHANGES = "changelog.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = """pip install 'cellgen-compiler[torch]'   # or [jax], or nothing: NumPy alone"""
NEXT = (
    ("tutorial/first-cell.md", "A first cell", "from a paper's equations to training"),
    ("how-to/installation.md", "Installation", "compilers, extras, what each is for"),
    ("how-to/sequences.md", "Whole sequences", "one call for all steps, and its options"),
    ("how-to/torch.md", "PyTorch", "any cell as a layer"),
    ("how-to/jax.md", "JAX", "any cell as a pure function"),
    ("how-to/deployment.md", "Deployment", "containers, servers, small machines"),
    ("gallery/README.md", "Gallery", "every cell that ships, compared"),
    (DOCUMENTS, "All documents", "a line on each"),
)


def files() -> dict[str, str]:
    """Pages behind the first one, and its picture, by place in the site."""
    from cellgen.views.graph import draw

    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    table = index[index.index("| kind |") :].partition("\n\n")[0]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        DOCUMENTS: f"# All documents\n\n{table}\n",
        CHANGES: re.sub(r"\]\(docs/", "](", changes),
        PICTURE: draw(_cell().definition),
    }


def page() -> str:
    """The first page.

    Raises:
        ValueError: the README has no longer what stands first here.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lead = _between(readme, "# cellgen\n", "\n## ").strip()
    code = BLOCK.search(readme)
    if code is None or "cellgen.compile(" not in code[1]:
        raise ValueError("README.md: the first block of Python declares and compiles no cell")
    speed = _between(readme, "## Speed\n", "\n## ").strip().replace("](docs/", "](")
    blocks = [
        "# cellgen",
        lead,
        "## A cell of your own, in ten lines",
        f"```python\n{code[1]}```",
        "## What you wrote, and what is derived",
        *_equations(),
        f"![The dataflow of a step of the minimal gated unit]({PICTURE})",
        "## Install",
        f"```sh\n{INSTALL}\n```",
        "Python 3.11 or newer, on Linux with a C compiler; where there is none, "
        "`cellgen-compiler[zig]` brings one. [Platforms](reference/platforms.md) says what ran "
        "where.",
        "## Speed",
        speed,
        "## Where next",
        "\n".join(f"- [{title}]({link}): {about}" for link, title, about in NEXT),
    ]
    return "\n\n".join(blocks) + "\n"


def _between(text: str, start: str, end: str) -> str:
    _, mark, rest = text.partition(start)
    if not mark:
        raise ValueError(f"README.md has no {start.strip()!r}")
    return rest.partition(end)[0]


@cache
def _cell() -> type:
    from cellgen.views.find import find_one

    return find_one(str(ROOT / "examples" / "own_cell.py"))


def _equations() -> list[str]:
    """The author's equations, and those of the backward pass."""
    from cellgen.pipeline import programs_of
    from cellgen.views.show import as_latex_forward, section_latex, sections

    programs = programs_of(_cell())
    backward = next(one for one in sections(programs) if one.name == "backward")
    return [
        f"```math\n{as_latex_forward(programs)}\n```",
        "From these, by differentiation and simplification, come the gradients:",
        f"```math\n{section_latex(backward).partition(chr(10))[2]}\n```",
    ]
