"""Text files and standard input, decoded by their mark, as UTF-8, or in a named encoding."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

# Longest line or field, in characters: an unclosed quote must not pull a file into memory.
MAX_CHARS = 2**24
# How many bytes of a file are examined, at most, before it is read.
SAMPLE_BYTES = 2**16

# UTF-32's marks come first: the little-endian one begins with UTF-16's.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8",
}
_GZIP_MAGIC = b"\x1f\x8b"
_UNDECODED = re.compile("[\udc80-\udcff]")
_ENCODING_REMEDY = "save it as UTF-8, or name its encoding, as encoding='{}'"
# Each of these decodes most bytes written in the other, so the user has to choose.
_BYTE_ENCODING_REMEDY = (
    f"{_ENCODING_REMEDY.format('gb18030')} (Chinese) or encoding='cp1252' (Western Europe)"
)
_WIDE_ENCODING_REMEDY = _ENCODING_REMEDY.format("utf-16-le")
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)

Cells = dict[str, Any]
"""The cells of a row by column."""

TableRow = tuple[str, Cells | str]
"""The place of a row, such as "line 3", and its cells, or why it cannot be read."""


def open_text(path: Path, encoding: str | None = None) -> TextIO:
    """Open a text file, or a file compressed by gzip, whose name must end in .gz.

    Raises:
        ValueError: It is not a regular file, or not text; or the encoding is not known.
    """
    check_encoding(encoding)
    if not path.is_file():
        raise ValueError(f"{path}: no regular file; give a file, or its lines on standard input")
    binary = _open_binary(path)
    try:
        return decode_stream(binary, str(path), encoding)
    except BaseException:
        binary.close()
        raise


def _open_binary(path: Path) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", SAMPLE_BYTES)


def decode_stream(binary: BinaryIO, name: str, encoding: str | None) -> TextIO:
    """Decode a stream of bytes. It is judged by one read: lines come as soon as they are there.

    A byte that is invalid in the encoding becomes a lone surrogate, see `decoding_fault`.

    Args:
        binary: The stream, which has ``peek``, as opened files and standard input do.
        name: Its name in messages.
        encoding: Of a stream without a byte order mark; None: UTF-8.
    """
    sample = binary.peek(SAMPLE_BYTES)  # type: ignore[attr-defined]
    encoding = _encoding_by_mark(sample) or encoding or "utf-8"
    if is_utf8(encoding):
        encoding = "utf-8-sig"
        _refuse_other_formats(sample, name)
    return io.TextIOWrapper(binary, encoding, errors="surrogateescape", newline="")


def _encoding_by_mark(sample: bytes) -> str | None:
    for byte_order_mark, encoding in _BYTE_ORDER_MARKS.items():
        if sample.startswith(byte_order_mark):
            return encoding
    return None


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Within the ``with`` block, errors of reading become ValueErrors with the file's name."""
    try:
        yield
    except GZIP_ERRORS as error:
        raise ValueError(f"{name}: {describe_gzip_error(error)}") from None
    except UnicodeError as error:
        raise ValueError(f"{name}: cannot be decoded ({error}); {_remedy_of(error)}") from None
    except ValueError as error:
        if str(error).startswith((name, "encoding=")):
            raise
        raise ValueError(f"{name}: {error}") from None


def _remedy_of(error: UnicodeError) -> str:
    if re.search("utf-(16|32)", str(error), re.IGNORECASE):
        return _WIDE_ENCODING_REMEDY
    return _BYTE_ENCODING_REMEDY


def check_encoding(encoding: str | None) -> None:
    """Raise a ValueError for an encoding that Python does not know, or that is not for text."""
    if encoding is None:
        return
    try:
        b"a".decode(encoding, "replace")
    except (LookupError, ValueError):
        raise ValueError(
            f"encoding={encoding!r:.60} is not known; name one of text, such as 'gb18030', 'utf-16-le' or 'cp1252'"
        ) from None


def is_utf8(encoding: str) -> bool:
    return encoding.lower() in ("utf-8", "utf8", "utf_8", "utf-8-sig")


def decoding_fault(text: str, encoding: str) -> str | None:
    """Why a decoded text shows that its encoding is wrong, with a remedy; None: it does not."""
    shown_encoding = "utf-8" if is_utf8(encoding) else encoding
    if "\0" in text:
        return f"not {shown_encoding}: a NUL, as UTF-16 has; {_WIDE_ENCODING_REMEDY}"
    if text.isascii():
        return None
    undecoded_byte = _UNDECODED.search(text)
    if undecoded_byte is None:
        return None
    byte = ord(undecoded_byte.group()) - 0xDC00
    return f"not {shown_encoding}: byte 0x{byte:02x}; {_BYTE_ENCODING_REMEDY}"


def read_lines(stream: TextIO) -> Iterator[str]:
    """The lines; a ValueError if one is so long that it would pull the file into memory."""
    line_number = 0
    while text_line := stream.readline(MAX_CHARS):
        line_number += 1
        if len(text_line) == MAX_CHARS and text_line[-1] != "\n":
            raise ValueError(
                f"line {line_number} has more than {MAX_CHARS:,} characters; split its text"
            )
        yield text_line


def read_text_lines(stream: TextIO) -> Iterator[TableRow]:
    """The text of each line that is not blank, as {"text": line}, or why it cannot be read."""
    for line_number, text_line in enumerate(read_lines(stream), 1):
        text = text_line.rstrip("\r\n").lstrip("\ufeff")  # files that are joined keep their marks
        if text and not text.isspace():
            yield f"line {line_number}", decoding_fault(text, stream.encoding) or {"text": text}


def describe_gzip_error(error: Exception) -> str:
    """What is wrong with a file whose name ends in .gz, with a remedy."""
    if isinstance(error, gzip.BadGzipFile) and str(error).startswith("Not a gzipped file"):
        return "the name ends in .gz, but gzip did not write it; compress it, or take .gz out of its name"
    return f"what gzip wrote is cut or damaged ({error}); compress or fetch it again"


def _refuse_other_formats(sample: bytes, name: str) -> None:
    """Raise for a gzip file, UTF-16 or binary data that would otherwise be read as UTF-8."""
    if sample.startswith(_GZIP_MAGIC):
        raise ValueError(f"{name}: compressed by gzip; let its name end in .gz, or unpack it")
    if b"\0" not in sample:
        return
    line_number = sample.count(b"\n", 0, sample.index(b"\0")) + 1
    remedy = _ENCODING_REMEDY.format(_guess_wide_encoding(sample))
    raise ValueError(
        f"{name}, line {line_number}: not utf-8: a NUL, as UTF-16 without a mark or a binary file has; {remedy}"
    )


def _guess_wide_encoding(sample: bytes) -> str:
    """The encoding of a text without a mark whose characters take two or four bytes each."""
    if 2 * sample.count(b"\0") > len(sample):
        return "utf-32-be" if sample.startswith(b"\0") else "utf-32-le"
    return "utf-16-le" if sample.index(b"\0") % 2 else "utf-16-be"
