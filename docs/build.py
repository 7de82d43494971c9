"""Build the documentation as a site: ``python -m docs.build``.

Needs ``pip install -e '.[docs]'`` and no network. The site stands in ``site/`` and opens from
there, ``site/index.html``, without a server. A link that leads nowhere, or a page that cannot be
made, is an error.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(out: Path, *, is_strict: bool = True) -> None:
    """Write the site to a folder, which is emptied before.

    Raises:
        mkdocs.exceptions.Abort: a page is wrong; the log says which and why.
    """
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config

    os.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out), strict=is_strict)
    config.plugins.on_startup(command="build", dirty=False)
    build_site(config)


def main() -> int:
    """Build as the command line says; 2 where the tools are missing."""
    parser = argparse.ArgumentParser(prog="python -m docs.build", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="where to; else site/")
    parser.add_argument("--lenient", action="store_true", help="go on after a warning")
    options = parser.parse_args()
    try:
        import mkdocs.exceptions
        import mkdocstrings_handlers.python  # noqa: F401
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is missing: pip install -e '.[docs]'", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    out = options.out.resolve()
    try:
        build(out, is_strict=not options.lenient)
    except mkdocs.exceptions.Abort as error:
        print(f"the site is not whole: {error}", file=sys.stderr)
        return 1
    print(out / "index.html")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
