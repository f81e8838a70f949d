"""Fuzz of the configuration: neli.toml, environment, flags and the token's file, with secrets in the wrong places.

lines that people write --secrets, accidents, other bytes--> neli.toml ---.
variables, flags ----------------------------------------------------------+--> resolve --> shown, as `neli config`
a token's file, of any content, mode and kind -----------------------------'       '--> resolved again, as on SIGHUP
"""

import os
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks._fuzz import HUGE, MARKER, Attempt, any_text, mutated, secret
from neli_router.config.options import OPTIONS
from neli_router.config.reload import Reloader
from neli_router.config.resolve import Resolved, resolve
from neli_router.errors import ConfigError

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (ConfigError,)

USABLE = (
    "memory://jobs",
    "sqlite:///nowhere/ledger.db",
    "redis://user:{secret}@localhost/jobs",
    "kafka://localhost:9092/jobs?sasl.password={secret}",
    "kafka://user:{secret}@localhost:9092/jobs",
)
ADDRESSES = (*USABLE, "redis://:{secret}@localhost/jobs?db={secret}", "http://user:{secret}@localhost:9092")
SOUND = {"SECONDS": "0.5", "NUMBER": "64", "": "true", "TEXT": "memory://jobs"}
"""A value of an option's kind, by its metavar."""

WORDS = (
    "a",
    "b-2",
    "0.5",
    "none",
    "true",
    "exclusive",
    "127.0.0.1:0",
    "/nowhere/agent.sock",
    "debug",
    "3",
    "1e999",
    "-1",
)
LINES = (
    "lease = 0.5",
    "lease = 1e999",
    "weight = 3",
    "x = 2001-01-01T00:00:00Z",
    "accept_rewinds = true",
    "[layout]",
    "[layout]",
    "partitions = 64",
    "slots = 16384",
    "tags = false",
    "[agent]",
    "[agent]",
    "allow_remote = yes",
    "[[agent]]",
    "[[[[[[",
    "x = '''",
)
SECRET_LINES = (
    'token_file = "{folder}/token"',
    'token_file = "{secret}"',
    'token = "{secret}"',
    'agent = {token = "{secret}"}',
    'agent.token = "{secret}"',
    'layout = "{secret}"',
    "# the password is {secret}",
    "password = {secret}",
    'password = "{secret}"',
    'password = "{secret}',
)
CONTENTS = (MARKER * 2, f"{MARKER * 2}\n", f"{MARKER} {MARKER}", MARKER, "", f"{MARKER}ß" * 9, MARKER * 2 + "\0", *HUGE)
MODES = (0o600, 0o600, 0o640, 0o644, 0o666, 0o000)


@contextmanager
def opened() -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        yield lambda rng: _attempt(rng, Path(folder))


def _attempt(rng: random.Random, folder: Path) -> Iterable[str]:
    path = folder / "neli.toml"
    is_sound = rng.random() < 0.3
    content = _sound(rng, folder) if is_sound else _written(rng, folder)
    path.write_bytes(content)
    _place_token(rng, folder / "token")
    options = [] if is_sound else rng.choices(list(OPTIONS.values()), k=rng.choice((0, 0, 1, 4)))
    environ = {option.variable: _said(rng, option.key, folder) for option in options}
    if rng.random() < 0.2 and not is_sound:
        environ |= {rng.choice(("NELI_LEESE", "POD_NAME", "POD_IP", "NELI_", "NELI_PORT")): any_text(rng)}
    if rng.random() < 0.3:
        environ["NELI_TOKEN"] = rng.choice(CONTENTS)
    flags: dict[str, object] = {
        key: _said(rng, key, folder)
        for key in rng.choices(list(OPTIONS), k=0 if is_sound else rng.choice((0, 0, 1, 3)))
    }

    def resolved() -> Resolved:
        return resolve(flags, environ, str(path), places=(), socket_folder="/nowhere")

    made = resolved()
    yield f"{made!r} {made.config!r} {made.agent!r} {made.settings!r}"
    path.write_bytes(b'zone = "z"\n' + content)
    yield repr(Reloader(resolved, made)())


def _sound(rng: random.Random, folder: Path) -> bytes:
    """A file that is mostly a configuration, with secrets where they belong."""
    chosen = {"ledger": rng.choice(USABLE)}
    others = {"ownership": "redis://:{secret}@localhost/jobs", "agent.token_file": "{folder}/token", "name": "a"}
    chosen |= dict(rng.sample(sorted(others.items()), rng.randrange(4)))
    words = [f"{key} = {_toml(_filled(rng, text, folder))}" for key, text in chosen.items()]
    numbers = rng.sample(
        ["lease = 0.5", "weight = 3", "layout.partitions = 64", "drain_timeout = 9", "max_age = 7.5"], 3
    )
    return "\n".join(words + numbers).encode(errors="replace")


def _written(rng: random.Random, folder: Path) -> bytes:
    """A file. Accidents only happen to its lines without a secret: they could turn a secret into a mere name."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(400))
    lines = ['ledger = "memory://jobs"'] if rng.random() < 0.7 else []
    for _ in range(rng.randrange(9)):
        match rng.randrange(4):
            case 0:
                lines.append(mutated(rng, rng.choice(LINES), LINES, times_max=rng.choice((0, 0, 0, 3))))
            case 1:
                lines.append(_filled(rng, rng.choice(SECRET_LINES), folder))
            case _:
                option = rng.choice(list(OPTIONS.values()))
                is_sound = rng.random() < 0.8
                said = SOUND.get(option.kind.metavar, "debug") if is_sound else _said(rng, option.key, folder)
                is_bare = is_sound and option.kind.metavar in {"", "SECONDS", "NUMBER"}
                lines.insert(0, f"{option.key} = {said if is_bare else _toml(said)}")  # Before any heading.
    return "\n".join(lines).encode(errors="replace")


def _said(rng: random.Random, key: str, folder: Path) -> str:
    """A value for the option `key`, or for another option, written there by mistake."""
    kind = rng.random()
    if kind < 0.6:
        return SOUND.get(OPTIONS[key].kind.metavar, "debug")
    if kind < 0.8:
        return mutated(rng, rng.choice(WORDS), WORDS, times_max=rng.choice((0, 0, 2)))
    if kind < 0.95:
        text = _filled(rng, rng.choice(ADDRESSES), folder)
        # Elsewhere it must still be an address: no program can know that a piece of an address is a secret.
        return mutated(rng, text, ADDRESSES, times_max=rng.choice((0, 3))) if key in {"ledger", "ownership"} else text
    return any_text(rng)


def _filled(rng: random.Random, text: str, folder: Path) -> str:
    return text.replace("{secret}", secret(rng)).replace("{folder}", str(folder))


def _toml(text: str) -> str:
    """The value in TOML."""
    return '"' + "".join(f"\\U{ord(sign):08x}" for sign in text) + '"'


def _place_token(rng: random.Random, path: Path) -> None:
    with suppress(FileNotFoundError):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    match rng.randrange(12):
        case 0:
            return
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.symlink_to(path)
        case _:
            path.write_bytes(rng.choice(CONTENTS).encode())
            path.chmod(rng.choice(MODES))
