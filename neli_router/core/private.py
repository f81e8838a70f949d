"""Private paths and files: paths where no other user can put anything, and files that no other user can read.

    path --its folder--> of this user or root? --may others write there?--> no:  private
      ^                       '-- no: not private       '-- yes, and it is sticky, as /tmp: whose is the entry?
      '----------- the entry, or its folder, is a link: the same questions again, at its target

A socket and a token file are trusted because of where they are. The agent checks before it binds or reads there, and
its clients check before they talk to what they find. Both use this one function, so neither refuses what the other one
created.

Kubernetes mounts a secret as a link (`token -> ..data/token`) in a sticky folder of root. Both belong to root, so the
path is private. Folders further up are not checked: in containers they belong to all sorts of users, and an attacker
would have to own such a folder to replace a private folder inside it.

The file of a secret (an agent's token, the key of a group's peers) must belong to this user or root, be closed to
others, and be at a private path. A group may read it: Kubernetes gives users other than root access to a secret through
the volume's group (`fsGroup`, and `defaultMode: 0440`). The group may not write it, because a process that can write a
secret knows it.
"""

import errno
import os
import stat
from collections.abc import Container

__all__ = ["Unreadable", "intrusion", "read_checked", "read_secret"]

LINKS_MAX = 40
"""The number of links that the kernel follows."""


class Unreadable(ValueError):
    """The file cannot be used. The text says why and what to do, and quotes nothing from the file."""


def intrusion(path: str | os.PathLike[str], trusted: Container[int] | None = None) -> str:
    """How another user can put something at `path`; empty if only the user ids in `trusted` can.

    By default, this user and root are trusted. Raises OSError if a folder on the way cannot be examined.
    """
    trusted = {os.geteuid(), 0} if trusted is None else trusted
    entries = [os.fspath(path)]  # Strings: clients check before each request, and Path takes three times as long.
    for entry in entries:
        if len(entries) > LINKS_MAX:
            return "there are too many links on the way to it"
        folder = os.path.dirname(entry) or "."  # noqa: PTH120 - as above, also on the lines below.
        found = os.stat(folder)  # noqa: PTH116
        if found.st_uid not in trusted:
            return f"its folder {folder} belongs to another user, number {found.st_uid}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            return f"others may write into its folder {folder} (mode {stat.S_IMODE(found.st_mode):04o})"
        entries += [folder] if os.path.islink(folder) else []  # noqa: PTH114
        try:
            mine = os.lstat(entry)
        except FileNotFoundError:
            continue
        if mine.st_uid not in trusted:
            return f"{entry} belongs to another user, number {mine.st_uid}"
        entries += [os.path.join(folder, os.readlink(entry))] if stat.S_ISLNK(mine.st_mode) else []  # noqa: PTH115, PTH118
    return ""


def read_secret(path: str, what: str, size_max: int) -> bytes:
    """The bytes of a file that no other user can read, change or replace.

    Raises Unreadable. Its text begins with `what` and contains neither the path nor the content: people sometimes
    write the secret itself where its file should be named.
    """
    content, status = read_checked(path, what, size_max)
    if status.st_uid not in {os.geteuid(), 0}:
        remedy = "chown it to this user, or to root with a group that may read it"
        raise Unreadable(f"{what} belongs to another user, number {status.st_uid}, who knows what is in it: {remedy}")
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        mode = stat.S_IMODE(status.st_mode)
        remedy = "chmod 600 it; for a secret of Kubernetes, set defaultMode: 0440 and fsGroup"
        raise Unreadable(f"{what} has mode {mode:04o}, so others can read or change it: {remedy}")
    if intrusion(path):
        remedy = "take a folder that belongs to this user or root, with mode 0700 or 0755"
        raise Unreadable(f"{what} lies where other users can put another one: {remedy}")
    return content


def read_checked(path: str, what: str, size_max: int) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file of at most `size_max` bytes, and the status of the file that was actually read.

    Raises Unreadable; its text begins with `what`.
    """
    try:
        # Non-blocking: opening a named pipe would hang until another process writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise Unreadable(f"{what} cannot be read: {_reason(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise Unreadable(f"{what} is {kind}: name a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(size_max + 1)
    except OSError as error:
        raise Unreadable(f"{what} cannot be read: {_reason(error)}") from None
    finally:
        os.close(descriptor)
    if len(content) > size_max:
        raise Unreadable(f"{what} is larger than {size_max} bytes: name another file")
    return content, status


def _reason(error: OSError | ValueError) -> str:
    # Never the error's own text: it repeats the path, which the caller may want to hide.
    match error:
        case FileNotFoundError():
            return "there is no such file; correct the path"
        case PermissionError():
            return "this user may not read it; change its mode or its owner"
        case OSError(errno=errno.ENAMETOOLONG | errno.ENOTDIR | errno.ELOOP):
            return "a file cannot have that name; correct the path"
        case OSError(errno=number) if number is not None:
            return os.strerror(number)
        case _:
            return "that is not a path; correct it"
