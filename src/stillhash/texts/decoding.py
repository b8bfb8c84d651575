"""Read text files: UTF-8, and UTF-16 with a byte order mark. All else is refused rather than guessed."""

import codecs
import stat
from pathlib import Path

from stillhash.errors import InvalidInput, NotFound, TooLarge, shortage
from stillhash.numeric.validation import check_choice

MAX_TEXT_BYTES = 16 << 20  # of a file, or of a line of a table
TEXT_ENCODINGS = ("utf-8", "latin-1")
UTF_32_MARK = codecs.BOM_UTF32_LE  # begins like that of UTF-16


def read_text(path: Path, *, encoding: str = "utf-8", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a regular file of at most `max_bytes` and decode it, as `decode_text` does."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise InvalidInput(f"{path}: expected a file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: does not exist") from None
    except OSError as error:
        if (lack := shortage(error)) is not None:
            raise lack from None
        raise InvalidInput(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > max_bytes:
        raise TooLarge(f"{path}: expected at most {max_bytes:,} bytes, got {max(status.st_size, len(data)):,}")
    return decode_text(data, str(path), encoding=encoding)


def decode_text(data: bytes, name: str, *, encoding: str = "utf-8") -> str:
    """Decode UTF-8, with or without a byte order mark, or UTF-16 with one.

    encoding : "latin-1" decodes what is neither of them as Latin-1, in which every byte is a character.

    Text with the character 0 is a binary file, and refused.
    """
    check_choice(encoding, "encoding", choices=TEXT_ENCODINGS)
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not data.startswith(UTF_32_MARK):
            text = data.decode("utf-16")
        else:
            text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if encoding != "latin-1":
            expected = "expected UTF-8, or UTF-16 with a byte order mark"
            raise InvalidInput(f"{name}: {expected}; byte {error.start:,} is neither") from None
        text = data.decode("latin-1")
    if "\0" in text:
        raise InvalidInput(f"{name}: expected text, got a binary file: it has the character 0")
    return text
