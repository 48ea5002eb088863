"""Where output goes: the terminal, a file, a progress bar."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from autoplan.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100
STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def console() -> Console:
    """Return a console on stdout: coloured on a terminal, plain and `PIPED_WIDTH` wide when piped."""
    from rich.console import Console

    class Quiet(Console):
        """Leaves a broken pipe to the caller."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return Quiet(width=wide, highlight=False, emoji=False, markup=False)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """Give a function `(what, done, total)` that draws a bar on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@contextmanager
def output_file(path: str | None, option: str = "--output") -> Iterator[Callable[[str], None]]:
    """Give a function that writes `path` whole or not at all; nothing is written where `path` is None.

    option: which option gave the path.
    Raises InputError, before anything else is done, where the file can't be written.
    """
    if path is None:
        yield lambda text: None
        return
    if path == "-" or os.path.normpath(path) in STDOUT:
        raise InputError("is no file; --json prints to stdout", where=option, found=path)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("is a directory", where=option, found=path)
    with _writing(path, option):
        special = not target.is_file() and os.path.exists(path)  # a device or a pipe: nothing to put in its place
        if special:
            stream = open(path, "w", encoding="utf-8")  # noqa: SIM115 (opened here to be refused before planning)
    if special:
        try:
            yield lambda text: _write(stream, text, path, option)
        finally:
            with suppress(OSError):  # closing tries again what `_write` has said can't be written
                stream.close()
        return
    with _writing(path, option):
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        tempfile.TemporaryFile(dir=target.parent).close()
    yield lambda text: _finish(target, text, path, option)


@contextmanager
def _writing(path: str, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", where=option, found=path) from None


def _write(stream: IO[str], text: str, path: str, option: str) -> None:
    with _writing(path, option):
        stream.write(text)
        stream.flush()


def _finish(target: Path, text: str, path: str, option: str) -> None:
    """Write the text beside the target, give it the permissions a new file gets, and put it in the target's place."""
    mask = os.umask(0)
    os.umask(mask)
    with _writing(path, option), _terminable():
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
        part = Path(temporary)
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            part.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~mask)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that what is half done is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
