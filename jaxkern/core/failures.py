"""Text and notes of exceptions that travel between threads, robust against broken exceptions."""

from __future__ import annotations

from typing import Any

_MAX_CHARACTERS = 2000  # an exception's text may contain the bytes that could not be read


def describe_exception(error: BaseException) -> str:
    r"""Return the type and text of an exception, encodable and truncated.

    An ``Exception`` raised by ``str(error)`` is suppressed; others, such as KeyboardInterrupt, are
    raised.

    >>> describe_exception(ValueError("name \udcff"))
    'ValueError: name \\udcff'
    """
    name = exception_name(error)
    try:
        text = str.__getitem__(str(error), slice(_MAX_CHARACTERS))
        encoded: bytes = str.encode(f"{name}: {text}", "utf-8", "backslashreplace")
        return encoded.decode()
    except Exception:
        return name


def exception_name(error: BaseException) -> str:
    """Return the name of its class; "an exception" if the metaclass prevents that."""
    try:
        name: str = type.__dict__["__name__"].__get__(type(error))
        return str.encode(name, "utf-8", "backslashreplace").decode()
    except Exception:
        return "an exception"


def is_interrupt(error: BaseException) -> bool:
    """True for a KeyboardInterrupt and for exceptions that were raised from one.

    JAX raises a ValueError from an interrupt during the comparison of static arguments.

    >>> is_interrupt(KeyboardInterrupt()), is_interrupt(ValueError())
    (True, False)
    """
    cause: BaseException | None = error
    for _ in range(10):  # causes may form a cycle
        if cause is None or isinstance(cause, KeyboardInterrupt):
            break
        cause = cause.__cause__
    return isinstance(cause, KeyboardInterrupt)


def note(error: BaseException, text: str, *about: Any) -> None:
    """Add the note ``text.format(*about)`` once; do nothing if the exception rejects notes.

    >>> error = ValueError("x")
    >>> note(error, "in batch {}", 3)
    >>> error.__notes__
    ['in batch 3']
    """
    try:
        formatted = text.format(*about)
        if formatted not in notes_of(error):
            BaseException.add_note(error, formatted)
    except Exception:  # a failure here must not hide the original error
        pass


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an exception."""
    try:
        return [text for text in error.__notes__ if isinstance(text, str)]
    except Exception:
        return []
