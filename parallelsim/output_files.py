"""Files that commands write: whole or not at all, and nothing replaced unasked."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from parallelsim.errors import OutputError
from parallelsim.yaml_io import shown_file


def check_writable(
    path: str | Path, *, force: bool = False, inputs: Iterable[str | Path] = ()
) -> None:
    """Refuse early, before a search, what :func:`write_text` would refuse.

    Args:
        path: where to write.
        force: an existing file may be replaced.
        inputs: files that the same command reads, which even ``force`` never replaces.

    Raises:
        OutputError: the file exists (without ``force``) or is an input, is read-only, its folder
            does not exist, or no permission.
    """
    shown = shown_file(path)
    if not str(path):
        raise OutputError(f"{shown}: expected a file name")
    if not is_unicode(str(path)):
        raise OutputError(f"{shown}: the name is not UTF-8; plan files could not name it")
    target = _target(path)
    folder = os.path.dirname(target)
    if os.path.isdir(target):
        raise OutputError(f"{shown}: is a folder, expected a file name")
    if os.path.exists(target):
        if not (_is_regular(target) or stat.S_ISCHR(os.stat(target).st_mode)):
            raise OutputError(f"{shown}: is a pipe, socket or disk, expected a file name")
        if any(os.path.exists(name) and os.path.samefile(name, target) for name in inputs):
            raise OutputError(f"{shown}: is an input of this command; use another name")
        if _is_regular(target) and not force:
            raise OutputError(
                f"{shown}: exists already; use --force to replace it, or another name"
            )
        if _is_regular(target) and _is_read_only(target):
            raise OutputError(f"{shown}: the file is read-only; make it writable or use another")
    elif not os.path.isdir(folder):
        raise OutputError(f"{shown}: the folder does not exist")
    if not os.access(
        target if os.path.exists(target) and not _is_regular(target) else folder, os.W_OK
    ):
        raise OutputError(f"{shown}: no permission to write there")


def write_text(
    path: str | Path, text: str | bytes, *, force: bool = False, executable: bool = False
) -> None:
    """Write a file whole or not at all.

    The text goes to a temporary file beside the target, which then takes the target's place;
    without ``force`` the last step itself fails where a file exists, however recently it came. A
    character device (``/dev/null``) is written to directly; pipes and the like are refused.

    Raises:
        OutputError: what is wrong; an existing file is then as it was.
    """
    check_writable(path, force=force)
    target = _target(path)
    content = text if isinstance(text, bytes) else text.encode(errors="backslashreplace")
    try:
        if os.path.exists(target) and not _is_regular(target):
            with open(target, "wb") as stream:
                stream.write(content)
            return
        temporary = f"{target}.{os.getpid()}.tmp"
        mode = 0o777 if executable else 0o666
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            _put_in_place(temporary, target, force=force)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except FileExistsError:
        raise OutputError(
            f"{shown_file(path)}: exists already; use --force to replace it, or another name"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{shown_file(path)}: cannot write: {reason}") from None


def _put_in_place(temporary: str, target: str, *, force: bool) -> None:
    if force:
        if os.path.exists(target):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.exists(target):
            raise FileExistsError(target) from None
        os.replace(temporary, target)


def _target(path: str | Path) -> str:
    """The file behind links, so that replacing it keeps the link."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"{shown_file(path)}: cannot write: {error}") from None


def _is_read_only(target: str) -> bool:
    """Nobody, or not this user, may write to it; a superuser's access alone does not tell."""
    return not (os.stat(target).st_mode & 0o222 and os.access(target, os.W_OK))


def _is_regular(target: str) -> bool:
    return stat.S_ISREG(os.stat(target).st_mode)


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8: bytes of another encoding arrive as surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
