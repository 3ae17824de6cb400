"""What is said of exceptions on their way between threads, whatever they do when they are asked."""

from __future__ import annotations

from typing import Any

_LONGEST = 2000  # characters: an exception may hold the bytes that it could not read


def describe_exception(error: BaseException) -> str:
    """Type and text of an exception, which any encoder takes, cut off where they are long.

    An exception of its own text's is swallowed where it is an ``Exception``; others, as Ctrl-C in
    the middle, are raised.

    >>> describe_exception(ValueError("name \\udcff"))
    'ValueError: name \\\\udcff'
    """
    name = exception_name(error)
    try:
        text = str.__getitem__(str(error), slice(_LONGEST))
        encoded: bytes = str.encode(f"{name}: {text}", "utf-8", "backslashreplace")
        return encoded.decode()
    except Exception:
        return name


def exception_name(error: BaseException) -> str:
    """The name of its class, where its metaclass does not get in the way."""
    try:
        name: str = type.__dict__["__name__"].__get__(type(error))
        return str.encode(name, "utf-8", "backslashreplace").decode()
    except Exception:
        return "an exception"


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is Ctrl-C's, or was raised from that.

    JAX raises a ValueError from one that comes while it compares the static parts of arguments.

    >>> is_interrupt(KeyboardInterrupt()), is_interrupt(ValueError())
    (True, False)
    """
    cause: BaseException | None = error
    for _ in range(10):  # causes may go in circles
        if cause is None or isinstance(cause, KeyboardInterrupt):
            break
        cause = cause.__cause__
    return isinstance(cause, KeyboardInterrupt)


def note(error: BaseException, text: str, *about: Any) -> None:
    """Adds a note, ``text.format(*about)``, unless it has it or takes none.

    >>> error = ValueError("x")
    >>> note(error, "in batch {}", 3)
    >>> error.__notes__
    ['in batch 3']
    """
    try:
        said = text.format(*about)
        if said not in notes_of(error):
            BaseException.add_note(error, said)
    except Exception:  # the error itself matters more
        pass


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception."""
    try:
        return [text for text in error.__notes__ if isinstance(text, str)]
    except Exception:
        return []
