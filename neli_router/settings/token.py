"""The token: the one secret of an agent, which clients over TCP must show. Its rules, for both ends.

    agent     flag --token-file  >  environment NELI_TOKEN  >  NELI_TOKEN_FILE  >  [agent] token_file
    clients   flag --token-file  >  environment NELI_TOKEN

There is no `--token`, which every user of the host would see in the list of processes, and no `token` in `neli.toml`,
which people print, copy and commit. The environment is where containers are given secrets, so it may hold one.

Its file must be this user's or root's, closed to others, and in a folder in which they can put no other one. A group
may read it: Kubernetes shows a secret to a user who is not root by the group of the volume (`fsGroup`, and
`defaultMode: 0440`). The group may not write it, because a process that can write a token knows the token.
"""

import os
import re
import stat

from neli_router.settings.file import Unreadable, read_checked
from neli_router.settings.private import intrusion

__all__ = ["TOKEN_MAX", "TOKEN_MIN", "read_token", "token_problem"]

TOKEN_MIN = 16
"""Characters. Shorter ones can be guessed; `openssl rand -hex 16` makes one of 32."""

TOKEN_MAX = 4096
"""Characters, within the limit that servers have for a header."""

_CHARACTERS = re.compile(r"[!-~]+", re.ASCII)


def read_token(path: str, source: str) -> str:
    """The token in the file at `path`. Raises Unreadable, whose text has neither the path nor the content.

    Not the path, because people make the mistake to write the token where its file should be named.
    """
    what = f"the token's file ({source})"
    content, status = read_checked(path, what, TOKEN_MAX)
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
    token = content.decode("latin-1").rstrip("\r\n")
    if problem := token_problem(token):
        raise Unreadable(f"{what} {problem}")
    return token


def token_problem(token: str) -> str:
    """The reason why `token` cannot be one, without the token; empty if it can."""
    if not token:
        return "is empty: write a token, as `openssl rand -hex 16` makes one"
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        return f"holds {len(token)} characters, and a token has {TOKEN_MIN} to {TOKEN_MAX}"
    if not _CHARACTERS.fullmatch(token):
        return "holds spaces or characters beyond ASCII, which no HTTP header carries: make another"
    return ""
