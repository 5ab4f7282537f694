"""Foreign text: what other programs and users wrote, made harmless before a person sees or pastes it.

Foreign are titles and environments of processes, names of files and units, lines of the journal, and the words of NVML,
of systemd and of the control daemon. Whoever wrote one may have meant it to look like a line of ours.
"""

from __future__ import annotations

MOST = 200
"""How many characters of a foreign text a sentence holds."""

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str, most: int = MOST) -> str:
    """A foreign text for a sentence: on one line, in at most ``most`` characters and how many more there were.

    Whatever does not print is written as Python writes it: ``\\n``, ``\\x1b``, ``\\u202e``. That covers control
    characters, line separators, blanks other than the space, marks that turn the direction of writing, and bytes that
    are no text. A backslash stays one backslash: the text is for reading; for a shell there is ``pasted``.
    """
    if len(text) <= most and text.isprintable():
        return text
    pieces: list[str] = []
    room = most
    for sign in text:
        piece = _printable(sign)
        room -= len(piece)
        if room < 0:
            break
        pieces.append(piece)
    left_out = len(text) - len(pieces)
    return "".join(pieces) + (f"… ({left_out} more characters)" if left_out else "")


def line(text: str) -> str:
    """A line that is about to be printed: as ``shown`` writes it, and nothing is cut.

    The last defence: whoever quotes a foreign text uses ``shown``.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def written(value: object) -> str:
    """A value of a variable as text. Of an integer that Python refuses to write out (4,300 digits, 3.11) the size."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        digits = f" of about {int(value.bit_length() * 0.30103) + 1:,} digits" if isinstance(value, int) else ""
        return f"<{type(value).__name__}{digits}>"


def quoted(value: object) -> str:
    """A value of a variable for a sentence: as it was given, on one line, and cut."""
    if value is None:
        return "null"
    if isinstance(value, (str, bytes, list, tuple, dict, set)):
        try:
            return shown(repr(value))
        except (ValueError, RecursionError):
            return f"a {type(value).__name__} with something in it that cannot be written out"
    return shown(written(value))


def pasted(text: str) -> str:
    """A foreign text as one word of a command that a person pastes into a POSIX shell: quoted where it must be.

    A text with characters that do not print becomes ``$'…'``, with its bytes in octal (POSIX.1-2024, bash, dash from
    0.5.13, busybox): so the command stays one line, and the word is the exact text. A NUL byte cannot be part of a
    word; it is left out.
    """
    text = text.replace("\0", "")
    if text.isprintable():
        import shlex  # seldom needed

        return shlex.quote(text)
    return f"$'{''.join(map(_in_quotes, text))}'"


def _printable(sign: str) -> str:
    if sign.isprintable():
        return sign
    if sign in _NAMED:
        return _NAMED[sign]
    code = ord(sign)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _in_quotes(sign: str) -> str:
    """One character inside ``$'…'``. Three octal digits always: a fourth character is none of theirs."""
    if sign.isprintable() and sign not in "\\'":
        return sign
    try:
        data = sign.encode("utf-8", "surrogateescape")  # a name of a file that is no UTF-8: its very bytes
    except UnicodeEncodeError:
        data = sign.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in data)
