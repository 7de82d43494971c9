"""``python -m cellgen``: the command line."""

from cellgen.cli import main

if __name__ == "__main__":
    main()
