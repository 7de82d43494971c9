"""``python -m cellgen``: the command line."""

from cellgen.cli.main import main

if __name__ == "__main__":
    main()
