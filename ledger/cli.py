"""The command ``kvledger``: arguments in, an exit code out, trouble on one line.

Invariants: this module and the declaration of the arguments need the standard library only, so that the bare
install answers ``--help`` and ``--version`` and says which install a command wants; a command's own module is
imported when it runs. Exit codes: 0 done; 1 something is wrong with what is stored (a breach, a refusal);
2 an argument or a setting cannot be used; 3 the world did not do its part (a file, the database); 130 Ctrl-C.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ledger import config
from ledger.commands import arguments
from ledger.errors import LedgerError, UsageError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

OK, FOUND, USAGE, WORLD, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141

INSTALLS = {
    **dict.fromkeys(
        ("alembic", "apscheduler", "fastapi", "msgspec", "prometheus_client", "rich", "sqlalchemy", "uvicorn"),
        "service",
    ),
    "psycopg": "postgres",
    "pynvml": "agent",
}
"""Which extra brings a package that the bare install does without."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Ctrl-C and a closed pipe end it quietly, a bug with a traceback."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        _say("interrupted before anything was done")
        return INTERRUPTED
    except UsageError as error:
        _say(str(error))
        return USAGE
    except LedgerError as error:
        _say(str(error))
        return WORLD
    except OSError as error:
        _say(f"{error.filename or 'output'}: {error.strerror or error}; free some space or choose another place")
        return WORLD
    return code


def settings_of(args: Namespace) -> config.Settings:
    """The settings under the arguments that every command with a ledger takes."""
    given = {
        name: config.Given(text=text, where=f"--{name.replace('_', '-')}")
        for name in ("database", "state_dir")
        if (text := getattr(args, name)) is not None
    }
    return config.load(environ=os.environ, file=Path(args.config) if args.config else None, arguments=given)


def _run(argv: Sequence[str]) -> int:
    try:
        args = arguments.parser().parse_args(argv)
    except SystemExit as done:  # --help and --version have printed what they have to say
        return int(done.code or 0)
    run = _command(args.handler, args.command)
    try:
        return run(args)
    except KeyboardInterrupt:
        _say(f"interrupted; {args.interrupted}")
        return INTERRUPTED


def _command(handler: str, command: str) -> Callable[[Namespace], int]:
    """The function ``module:name``, or a sentence about the install that has what it needs."""
    module, _, name = handler.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        extra = INSTALLS.get((missing.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(
            f"`kvledger {command}` needs {missing.name}, which the bare install goes without: "
            f"pip install '.[{extra}]' in a clone of the repository (docs/operating.md)"
        ) from missing
    return cast("Callable[[Namespace], int]", found)


def _say(message: str) -> None:
    # One line whatever happened: drivers like to answer in paragraphs.
    print("kvledger:", " ".join(message.split()), file=sys.stderr)
