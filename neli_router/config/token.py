"""The token: an agent's one secret, which clients over TCP must present. The rules for both ends.

    agent     flag --token-file  >  environment NELI_TOKEN  >  NELI_TOKEN_FILE  >  [agent] token_file
    clients   flag --token-file  >  environment NELI_TOKEN

There is no `--token`, because every user of the host would see it in the list of processes, and no `token` in
`neli.toml`, because people print, copy and commit that file. Containers get their secrets through the environment, so
the environment may contain a token.

The token's file must be private: see `private.py`.
"""

import re

from neli_router.core.private import Unreadable, read_secret

__all__ = ["TOKEN_MAX", "TOKEN_MIN", "read_token", "token_problem"]

TOKEN_MIN = 16
"""Characters. A shorter token can be guessed; `openssl rand -hex 16` makes one with 32."""

TOKEN_MAX = 4096
"""Characters; within the limit that servers have for a header."""

_CHARACTERS = re.compile(r"[!-~]+", re.ASCII)


def read_token(path: str, source: str) -> str:
    """The token in the file at `path`. Raises Unreadable, whose text contains neither the path nor the content."""
    what = f"the token's file ({source})"
    content = read_secret(path, what, TOKEN_MAX)
    token = content.decode("latin-1").rstrip("\r\n")
    if problem := token_problem(token):
        raise Unreadable(f"{what} {problem}")
    return token


def token_problem(token: str) -> str:
    """The reason why `token` is not valid, without quoting it; empty if it is."""
    if not token:
        return "is empty: write a token, as `openssl rand -hex 16` makes one"
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        return f"holds {len(token)} characters, and a token has {TOKEN_MIN} to {TOKEN_MAX}"
    if not _CHARACTERS.fullmatch(token):
        return "holds spaces or characters beyond ASCII, which no HTTP header carries: make another"
    return ""
