"""How large a setting may be: a repository is data from elsewhere, and its numbers become memory and time."""

from __future__ import annotations

# Far beyond what either paper uses (k = 2 to 4), and what a batch can still hold.
MOST_COPIES = 64
# Templates that one text stands in.
MOST_PROMPTS = 64
# Of a template, an instruction or a separator: more than most models have positions.
MOST_CHARACTERS = 1 << 16
# Converted, added or named layers, and sink tokens.
MOST_LAYERS = 1024
MOST_SINK_TOKENS = 1024
# Content tokens of a piece, and numbers of a vector.
MOST_TOKENS = 1 << 24
MOST_DIMENSIONS = 1 << 20


def check_whole(name: str, value: object, most: int, *, least: int = 1, also: str = "") -> None:
    """Raise unless a setting is a whole number within its limits.

    Args:
        name: The setting.
        value: Its value.
        most: The largest that is allowed.
        least: The smallest that is allowed.
        also: What else would be allowed, for the message, as ``", or None"``.

    Raises:
        ValueError: It is no such number; the message names the setting, its value and what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={shown(value)} must be a whole number from {least} on{also}.")
    if value > most:
        raise ValueError(f"{name}={shown(value)} is too large: the most that st_reba takes is {most}. Give less.")


def check_text(name: str, value: object) -> None:
    """Raise unless a setting is a string of at most ``MOST_CHARACTERS``."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)} must be a string.")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(
            f"{name}={shown(value)} has {len(value)} characters: the most that st_reba takes is {MOST_CHARACTERS}. "
            "Shorten it."
        )


def shown(value: object) -> str:
    """A value as an error shows it: whole where it is short, else its beginning."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"(a number of {value.bit_length()} bits)"
    # A long string or list is cut before it is written out.
    short = value[:200] if isinstance(value, (str, bytes, list, tuple)) else value
    text = repr(short)
    return text if len(text) <= 200 and short == value else f"{text[:80]}…"
