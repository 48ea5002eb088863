"""The command line: the only room that prints. Commands, and what they need, are imported when they are used."""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from autoplan.errors import AutoplanError, InputError, NoPlanError
from autoplan.version import __version__

COMMANDS = ("plan", "estimate", "explain", "simulate", "check", "export", "verify", "calibrate", "solve", "models",
            "clusters", "schema")
INTERNAL_ERROR, SIGNAL, INTERRUPTED, BROKEN_PIPE = 70, 128, 130, 141


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

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Abort on an interrupt, before click prints an empty line for it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


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
    """Run the command line and return the exit code, also where stdout can't be written."""
    as_json = "--json" in arguments
    if sys.stdout is None:
        return _fail("can't write to stdout: it is closed", "output", InputError.exit_code, {}, as_json=False)
    try:
        code = _answer(arguments, as_json)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader went away: `autoplan … | head`
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:
        _drop_stdout()
        return _fail(f"can't write to stdout: {error.strerror or error}", "output", InputError.exit_code, {},
                     as_json=False)


def _drop_stdout() -> None:
    """Let nothing more come out, so that the interpreter's last flush doesn't fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _answer(arguments: list[str], as_json: bool) -> int:
    """Run the command line and return the exit code. Raises OSError where stdout can't be written."""
    try:
        return int(cli.main(arguments, prog_name="autoplan", standalone_mode=False) or 0)
    except SystemExit as stop:  # click's, where the reader went away, or that of a signal
        if isinstance(stop.code, int) and stop.code > SIGNAL:
            return stop.code
        raise BrokenPipeError from None
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
        click.echo("\n" * sys.stderr.isatty() + "interrupted", err=True)  # below the terminal's ^C
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:  # of a stream, not a file: every file names itself
            raise
        if os.environ.get("AUTOPLAN_TRACEBACK"):
            raise
        text = (f"internal {type(error).__name__}: {error}; please report it with the output of the same command under "
                "AUTOPLAN_TRACEBACK=1")
        return _fail(text, "internal", INTERNAL_ERROR, {}, as_json)


def _fail(message: str, kind: str, code: int, details: dict[str, object], as_json: bool) -> int:
    message = _clean(message)
    click.echo("error: " + message, err=True)
    if as_json:
        report = {"error": {"kind": kind, "exit_code": code, "message": message, **details}}
        click.echo(json.dumps(report, indent=2, default=str))
    return code


def _clean(message: str) -> str:
    """Return a message on one line, with its other control characters as escapes."""
    line = re.sub(r"\s*[\n\r\t]\s*", " ", message)
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", line)


def _kind(error: AutoplanError) -> str:
    return "no_plan" if isinstance(error, NoPlanError) else "input"


def _details(error: AutoplanError) -> dict[str, object]:
    if isinstance(error, NoPlanError):
        return {"diagnosis": error.diagnosis}
    if isinstance(error, InputError):
        parts = {"where": error.where, "key": error.key, "found": error.found, "allowed": error.allowed}
        return {name: value for name, value in parts.items() if value is not None}
    return {}
