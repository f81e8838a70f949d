"""Private paths: those at which no other user can put something of their own.

    path --its folder--> of this user or root? --may others write there?--> no:  private
      ^                       '-- no: not private       '-- yes, and it is sticky, as /tmp: whose is the entry?
      '----------- the entry, or its folder, is a link: the same questions again, at its target

A socket, and the file of a token, are trusted for where they lie. The agent asks before it binds or reads there, and
its clients ask before they speak to what they find: both by this one function, so that neither refuses what the other
one made.

Kubernetes shows a secret as a link (`token -> ..data/token`) in a sticky folder of root. Both are root's, so that is
private. Folders further up are not looked at: in containers they belong to all sorts of users, and to put another
folder in the place of a private one, one would have to own such a folder.
"""

import os
import stat
from collections.abc import Container

__all__ = ["intrusion"]

LINKS_MAX = 40
"""As many as the kernel follows."""


def intrusion(path: str | os.PathLike[str], trusted: Container[int] | None = None) -> str:
    """How another user can put something at `path`; empty if only those can whose numbers are `trusted`.

    By default those are this user and root. Raises OSError if a folder on the way cannot be looked at.
    """
    trusted = {os.geteuid(), 0} if trusted is None else trusted
    entries = [os.fspath(path)]  # Texts, because clients ask before each request, and Path takes three times as long.
    for entry in entries:
        if len(entries) > LINKS_MAX:
            return "there are too many links on the way to it"
        folder = os.path.dirname(entry) or "."  # noqa: PTH120 - as above, and all that follows.
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
