"""The command line: the only room that prints. Commands, and what they need, are imported when they are used."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Sequence

import click

from autoplan.errors import AutoplanError, InputError, NoPlanError
from autoplan.version import __version__

COMMANDS = ("plan", "estimate", "explain", "check", "models", "clusters", "schema")
INTERNAL_ERROR, INTERRUPTED, BROKEN_PIPE = 70, 130, 141


class _Commands(click.Group):
    """Loads each command from the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command `cmd_name`, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"autoplan.cli.{cmd_name}").command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="autoplan")
def cli() -> None:
    """Find the fastest parallel plan that fits: how to train a model on a cluster.

    Exit codes: 0 a plan; 1 nothing fits, or the plan is unsound; 2 bad input.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Every error is one line on stderr, and with --json an object on stdout too."""
    arguments = list(sys.argv[1:] if args is None else args)
    gc.set_threshold(50_000, 20, 20)  # a plan's tables live until it's printed: looking for garbage finds none
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    as_json = "--json" in arguments
    try:
        code = int(cli.main(arguments, prog_name="autoplan", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except (BrokenPipeError, SystemExit):  # the reader went away (`autoplan … | head`); click exits where it notices
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context else ""
        return _fail(error.format_message() + hint, "usage", error.exit_code, {}, as_json)
    except AutoplanError as error:
        return _fail(str(error), _kind(error), error.exit_code, _details(error), as_json)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("AUTOPLAN_TRACEBACK"):
            raise
        text = (f"internal {type(error).__name__}: {error}; please report it with the output of the same command under "
                "AUTOPLAN_TRACEBACK=1")
        return _fail(text, "internal", INTERNAL_ERROR, {}, as_json)


def _fail(message: str, kind: str, code: int, details: dict[str, object], as_json: bool) -> int:
    click.echo("error: " + " ".join(message.split("\n")), err=True)
    if as_json:
        report = {"error": {"kind": kind, "exit_code": code, "message": message, **details}}
        click.echo(json.dumps(report, indent=2, default=str))
    return code


def _kind(error: AutoplanError) -> str:
    return "no_plan" if isinstance(error, NoPlanError) else "input"


def _details(error: AutoplanError) -> dict[str, object]:
    if isinstance(error, NoPlanError):
        return {"diagnosis": error.diagnosis}
    if isinstance(error, InputError):
        parts = {"where": error.where, "key": error.key, "found": error.found, "allowed": error.allowed}
        return {name: value for name, value in parts.items() if value is not None}
    return {}
