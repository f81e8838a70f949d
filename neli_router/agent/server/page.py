"""The status page's files, as they lie in the package.

    GET /              page/index.html
    GET /assets/NAME   page/assets/NAME, or page/NAME

They are read once, when the agent starts: a few small files, which then cannot change under a page that is open, and no
path that a client sends ever reaches the file system. The browser asks each time whether its copy is still right, and
is told so in a few bytes; after an update it has the new page at once.

The page may load, and talk to, nothing but this agent. The browser holds it to that.
"""

import hashlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

__all__ = ["CONTENT_TYPES", "Asset", "load"]

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
"""Written down, because the standard library's depend on the host. Files of no other kind are served."""

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

DEPTH_MAX = 4


class Asset(NamedTuple):
    body: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]


def load() -> dict[str, Asset]:
    """Path -> the file that is served there; empty if this package was built without the page."""
    folder = resources.files("neli_router.status").joinpath("page")
    found = _files(folder, "", DEPTH_MAX) if folder.is_dir() else {}
    served: dict[str, Asset] = {}
    for name, body in found.items():
        asset = _asset(name, body)
        served[f"/assets/{name.removeprefix('assets/')}"] = asset
        if name == "index.html":
            served["/"] = asset
    return served


def _files(folder: Traversable, prefix: str, depth: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir() and depth:
            found |= _files(entry, f"{name}/", depth - 1)
        elif entry.is_file() and entry.name.rpartition(".")[2] in CONTENT_TYPES:
            found[name] = entry.read_bytes()
    return found


def _asset(name: str, body: bytes) -> Asset:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
    headers = {
        "content-type": CONTENT_TYPES[name.rpartition(".")[2]],
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Asset(body, tag, [*((key.encode(), value.encode()) for key, value in headers.items()), (b"etag", tag)])
