"""The group of all commands, and how errors are reported: in one line, without a traceback."""

from __future__ import annotations

import os
import warnings

import click

import replan
from replan.cli import compare, evaluate, explore, export, fit, levers, new, simulate, solve, study
from replan.errors import ArgumentError, IntegrationError, SolveError, renamed

_LONGEST = 450  # characters of a message


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--import",
    "imports",
    metavar="MODULE_OR_FILE",
    multiple=True,
    help="A module or a .py file with your models, strategies or solvers; repeat for more. "
    f"Adds to the environment variable REPLAN_IMPORT (entries separated by '{os.pathsep}').",
)
@click.version_option(package_name="replan", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, imports: tuple[str, ...]) -> None:
    """Plan how to train on several tasks without forgetting.

    \b
    Examples:
      replan new problem.toml
      replan compare problem.toml
      replan solve problem.toml --json plan.json --plot plan.png
      replan evaluate problem.toml --strategy interleaved --json out.json
      replan fit pilots.csv --out law.toml
    """
    for entry in imports:
        if not entry or os.pathsep in entry:
            raise ArgumentError(
                "--import", f"a module or a file without {os.pathsep!r} in its name", f"{entry!r}"
            )
    if imports:  # in the environment, where worker processes find them too
        before = os.environ.get("REPLAN_IMPORT")
        os.environ["REPLAN_IMPORT"] = os.pathsep.join([*([before] if before else []), *imports])
    if os.environ.get("REPLAN_IMPORT"):  # first, so that errors in them are not taken for others
        from replan.models.registry import IMPORTS, import_named

        with renamed({IMPORTS: "--import"} if imports else {}):
            import_named()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for module in (new, explore, evaluate, compare, solve, simulate, levers, study, fit, export):
    app.add_command(module.command)


def run() -> int:
    """Run the command line and return its exit code; every error is one line.

    Ctrl-C raises KeyboardInterrupt.
    """
    warnings.showwarning = lambda *about: _warn(*about[:4])
    code = 2
    try:
        return app.main(prog_name="replan", standalone_mode=False) or 0
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        message = error.format_message()
        if isinstance(error, click.NoSuchOption) and error.option_name == "--import":
            message = "`--import` goes before the command: replan --import FILE COMMAND …"
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except ValueError as error:
        message = str(error)
    except (IntegrationError, SolveError) as error:
        message, code = str(error), 1
    except MemoryError as error:
        message, code = f"not enough memory: {str(error) or 'try smaller sizes'}", 1
    except Exception as error:
        if "REPLAN_DEBUG" in os.environ:
            raise
        what = f"{type(error).__name__}: {error}"
        own = os.environ.get("REPLAN_IMPORT")
        whose = f"replan or in {own}" if own else "replan"
        message = f"internal error, a bug in {whose}: {what} (REPLAN_DEBUG=1 shows where)"
        code = 70
    _say(message)
    return code


def _warn(message: Warning | str, category: type[Warning], path: str, line: int) -> None:
    """Say a warning of replan, or one of other code with its place."""
    own = path.startswith(os.path.dirname(replan.__file__))
    place = "" if own else f"{category.__name__} in {click.format_filename(path)}:{line}: "
    _say(f"warning: {place}{message}")


def _say(message: str) -> None:
    line = " ".join(message.split())
    if len(line) > _LONGEST:  # such as one with a name of a thousand letters in it
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    shown = line.encode("utf-8", "backslashreplace").decode()  # names of files may be any bytes
    click.echo(f"replan: {shown}", err=True)
