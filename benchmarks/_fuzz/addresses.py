"""Fuzz of addresses: of ledgers, owners and agents, with passwords wherever people write them.

    a shape of an address --secrets, accidents--> judged, shown, configured   always
                                                  opened                      if it leads nowhere beyond this process

An address that another host or another file might answer to is only judged. PostgreSQL and Redis are opened at a
closed port, a file is opened without creating it, and Kafka is opened with a last setting that its client refuses: the
client reads all other settings before that, and contacts no broker.
"""

import os
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from benchmarks._fuzz import MARKER, Attempt, any_text, mutated, secret
from neli_router.config import agent_address
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.drivers.addresses import owners_problems, problems_of, public_address
from neli_router.drivers.ledgers.postgresql import address as postgresql_address
from neli_router.drivers.open import open_ledger, owners_at
from neli_router.errors import ConfigError, LedgerError, NeliError

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (ConfigError, LedgerError)

NOWHERE = "127.0.0.1:1"
"""No server listens on port 1, so a connection to it is refused immediately."""

SHAPES = (
    "kafka://{who}{host}/{group}{query}",
    "redis://{who}{host}/{group}{query}",
    "rediss://{who}{host}/{group}{query}",
    "redis+unix://{who}/nowhere/redis.sock{query}",
    "redis+sentinel://{who}{host}/{group}{query}",
    "rediss+sentinel://{who}{host},{host}/{group}{query}",
    "postgresql://{who}{host}/db?group={group}{more}",
    "postgresql+psycopg2://{who}/{group}?host=/nowhere&group={group}{more}",
    "sqlite://{who}{folder}/{group}.db{query}",
    "sqlite:{group}{query}",
    "memory://{who}{group}{query}",
    "http://{who}{host}{query}",
    "HTTP://{host}:{secret}/",
    "unix:{folder}/{group}.sock",
    "{who}{host}",
    "{secret}",
)
WHO = ("", "", "user:{secret}@", "{secret}@", ":{secret}@", "us/er:{secret}@", "user:{secret}@{secret}@", "{secret}:x@")
HOSTS = (NOWHERE, "127.0.0.1:1,127.0.0.1:1", "[::1]:1", "localhost:1", "127.0.0.1", "h:{secret}", "{secret}:1", "")
GROUPS = ("jobs", "{{jobs}}", "a.b_c-d", "", "jobs@x", "jobs/more", "jobs:{secret}")
NAMES = (
    "db", "ca", "cert", "key", "service", "group", "sentinel_user", "sentinel_password", "sentinel_pasword", "password",
    "config", "replication", "sasl.password", "sasl_pwd", "sasl.p%61ssword", "sasl.username", "sasl.mechanism",
    "sasl.mechanisms", "security.protocol", "ssl.key.password", "ssl.key.pem", "ssl.ca.location", "client.id", "debug",
    "host", "user", "dbname", "schema", "passfile", "sslmode", "sslkey", "target_session_attrs",
    "sasl.oauthbearer.config", "linger.ms", "acks", "message.timeout.ms", "no.such.setting", "KEY", "", "%00", "token",
)  # fmt: skip
VALUES = (
    "0",
    "1",
    "-1",
    "3",
    "mymaster",
    "SASL_SSL",
    "PLAIN",
    "true",
    "",
    "{folder}/settings",
    "{folder}/pipe",
    "{folder}",
)
PUBLIC = frozenset(
    {
        "ca",
        "cert",
        "channel_binding",
        "config",
        "db",
        "dbname",
        "group",
        "gssencmode",
        "host",
        "port",
        "replication",
        "sasl.mechanism",
        "sasl.mechanisms",
        "security.protocol",
        "schema",
        "service",
        "sslcert",
        "sslmode",
        "sslrootcert",
    }
)
"""Options whose values are shown."""

DANGEROUS = ("plugin", "debug", "oauth")
"""Settings by which librdkafka loads a library, logs, or starts a thread that contacts other hosts."""


@contextmanager
def opened() -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        Path(folder, "settings").write_text(
            f"sasl.username=user\nsasl.password={MARKER}\n{MARKER}\nS a={MARKER}\n", encoding="utf-8"
        )
        os.mkfifo(Path(folder, "pipe"))

        def attempt(rng: random.Random) -> Iterable[str]:
            return _shown(_address(rng, folder), folder)

        yield attempt


def _address(rng: random.Random, folder: str) -> str:
    def filled(choices: tuple[str, ...]) -> str:
        return rng.choice(choices).replace("{secret}", secret(rng)).replace("{folder}", folder)

    options = [f"{filled(NAMES)}={rng.choice((filled(VALUES), secret(rng)))}" for _ in range(rng.randrange(4))]
    query = f"?{'&'.join(options)}" if options else ""
    address = filled(SHAPES)
    for field, choices in (("{who}", WHO), ("{host}", HOSTS), ("{group}", GROUPS)):
        address = address.replace(field, filled(choices))
    address = address.replace("{query}", query).replace("{more}", query.replace("?", "&", 1))
    address = mutated(rng, address, (*SHAPES, *NAMES), times_max=rng.choice((0, 3, 9)))
    return any_text(rng) if rng.random() < 0.01 else _without_public_markers(address)


def _without_public_markers(address: str) -> str:
    """`address` without the marker where no secret is expected: in a path, a host, a harmless option.

    Accidents move it there. If an @ follows somewhere, it is part of what the user meant as a password.
    """
    if address.startswith(("/", "unix:/")):
        return address.replace(MARKER, "plain")
    scheme, colon, rest = address.partition(":")
    if not colon:
        scheme, rest = "", address
    place, mark, query = rest.partition("?")
    if scheme in postgresql_address.SCHEMES and not problems_of(address):
        who, at, public = place.rpartition("@")
        place = who + at + public.replace(MARKER, "plain")
    elif "@" not in rest and "%40" not in rest:
        shown = re.match(r"[^?]*" if scheme == "sqlite" else r"[^?&;:@%]*", place)
        assert shown is not None, "it matches nothing, too"
        place = shown.group().replace(MARKER, "plain") + place[shown.end() :]
    elif scheme == "sqlite" and "@" not in place.removeprefix("//").partition("/")[0]:
        place = place.replace(MARKER, "plain")
    elif not problems_of(address):
        who, at, public = place.rpartition("@")
        place = who + at + public.replace(MARKER, "plain")
    options = [
        option.replace(MARKER, "plain") if unquote(option.partition("=")[0]) in PUBLIC else option
        for option in query.split("&")
    ]
    return f"{scheme.replace(MARKER, 'plain')}{colon}{place}{mark}{'&'.join(options)}"


def _shown(address: str, folder: str) -> Iterable[str]:
    """Everything that is ever shown of `address`. Raises, in the end, if it is refused as a ledger's address."""
    yield from problems_of(address)
    yield from owners_problems("ownership", address)
    yield public_address(address)
    refused: NeliError | None = None
    doors: tuple[Callable[[], str], ...] = (
        lambda: repr(Config(address, name="a")),
        lambda: repr(Config("memory://jobs", name="a", ownership=address)),
        lambda: repr(agent_address.parse(address)),
        lambda: repr(AgentOptions(listen=address, token=MARKER * 2)),
        lambda: _opened_ledger(address, folder),
        lambda: owners_at(address).address,
    )
    for door in doors:
        try:
            yield door()
        except DOCUMENTED as error:
            refused = error if door is doors[0] else refused
            yield f"{error!r} {error}"
    if refused is not None:
        raise refused


def _opened_ledger(address: str, folder: str) -> str:
    if problems_of(address):
        return ""
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite" and not (rest.startswith(f"//{folder}/") and ".." not in rest):
        return ""
    if scheme == "kafka":
        if any(word in address for word in DANGEROUS):
            return ""
        address = f"{address}{'&' if '?' in address else '?'}linger.ms=never"
    elif scheme in postgresql_address.SCHEMES:
        at, _ = postgresql_address.parse(scheme, rest)
        if at is None or any((host, port) != ("127.0.0.1", 1) and host != "/nowhere" for host, port in at.servers):
            return ""
    elif scheme.startswith("redis") and ("," in rest or not (NOWHERE in rest or "/nowhere/" in rest)):
        return ""
    ledger = open_ledger(address, create=False, patience=0.1)
    try:
        return f"{ledger!r} {ledger.address}"
    finally:
        ledger.close()
