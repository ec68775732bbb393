"""The one error that a user sees as a sentence, and the check that most settings share."""

from __future__ import annotations

from numbers import Integral, Real


class ArenaError(ValueError):
    """A mistake in the input or the machine that the user can mend.

    The message names the value, what was expected and the remedy; command line and page print it as
    one line, without a traceback.
    """


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command as Ctrl-C does, so that what is done is kept."""


def in_words(error: BaseException) -> str:
    """What an error says; the system's without its number, behind the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def check_kind(value: object, kind: type, what: str) -> None:
    """Raises ArenaError unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        wanted = "True or False" if kind is bool else f"a {kind.__name__}"
        raise ArenaError(f"{what} must be {wanted}; got {value!r:.60} ({type(value).__name__})")


def check_number(value: object, what: str, *, whole: bool = False) -> None:
    """Raises ArenaError unless ``value`` is a number, a whole one (an int) if asked; numpy's count
    too.
    """
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        wanted = "a whole number, an int" if whole else "a number"
        raise ArenaError(f"{what} must be {wanted}; got {value!r:.60} ({type(value).__name__})")
