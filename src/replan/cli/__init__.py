"""The command line, one file for each command: parse, call the library, show."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with one line, even while Python imports."""
    try:
        from replan.cli._app import run  # here, so that Ctrl-C is handled from the first import on

        code = run()
    except KeyboardInterrupt:
        print("replan: stopped", file=sys.stderr)
        code = 130
    sys.exit(code)
