"""``python -m st_reba``: the command line, where the program ``st-reba`` is not on the path."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
