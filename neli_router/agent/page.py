"""The status page's files, served from the package.

    GET /              page/index.html
    GET /assets/NAME   page/assets/NAME, or page/NAME

They are read once, when the agent starts. So they cannot change under an open page, and no path that a client sends
ever reaches the file system. The browser asks each time whether its copy is still valid.

The page may load from, and talk to, nothing but the server that it came from, and the browser enforces that. It
addresses its files and requests relative to its own location, so another server may serve it below a path of its own,
and in a frame. Airflow does that; there the page changes nothing, and so offers no changes.
"""

import hashlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.types import Scope, Send

__all__ = ["CONTENT_TYPES", "Asset", "answer_asset", "load"]

CONTENT_TYPES: Mapping[str, str] = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "webmanifest": "application/manifest+json",
    "woff2": "font/woff2",
}
"""A fixed list, because the standard library's types depend on the host. Files of other kinds are not served."""

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "

READ_ONLY = b'<html lang="en"', b'<html lang="en" data-read-only'

DEPTH_MAX = 4


class Asset(NamedTuple):
    body: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]


def load(*, frames: str = "'none'", read_only: bool = False) -> dict[str, Asset]:
    """Path -> the file that is served there; empty if this package was built without the page.

    `frames` are the pages that may show it in a frame, as a content security policy spells them.
    """
    folder = resources.files("neli_router.status").joinpath("page")
    found = _files(folder, "", DEPTH_MAX) if folder.is_dir() else {}
    served: dict[str, Asset] = {}
    for name, body in found.items():
        if name == "index.html" and read_only:
            body = body.replace(*READ_ONLY, 1)  # noqa: PLW2901 - the same file, marked.
        asset = _asset(name, body, frames)
        served[f"/assets/{name.removeprefix('assets/')}"] = asset
        if name == "index.html":
            served["/"] = asset
    return served


async def answer_asset(asset: Asset, scope: Scope, send: Send) -> None:
    """Answer with the file, or that the browser's copy is still valid."""
    is_known = any(name == b"if-none-match" and asset.tag in value for name, value in scope["headers"])
    length = [] if is_known else [(b"content-length", b"%d" % len(asset.body))]
    status = 304 if is_known else 200
    await send({"type": "http.response.start", "status": status, "headers": [*length, *asset.headers]})
    await send({"type": "http.response.body", "body": b"" if is_known else asset.body})


def _files(folder: Traversable, prefix: str, depth: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir() and depth:
            found |= _files(entry, f"{name}/", depth - 1)
        elif entry.is_file() and entry.name.rpartition(".")[2] in CONTENT_TYPES:
            found[name] = entry.read_bytes()
    return found


def _asset(name: str, body: bytes, frames: str) -> Asset:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    headers = {
        "content-type": CONTENT_TYPES[name.rpartition(".")[2]],
        "content-security-policy": f"{POLICY}{frames}",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Asset(body, tag, [*((key.encode(), value.encode()) for key, value in headers.items()), (b"etag", tag)])
