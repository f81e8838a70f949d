"""Parse the address of a group in Kafka.

    kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/GROUP[?setting=value&...]
                                                     |
                                                     '--> topic GROUP.ledger, and nothing else on the brokers

    ?security.protocol=SASL_SSL&sasl.mechanism=SCRAM-SHA-512     any setting of librdkafka, by its name
    ?config=/etc/neli/kafka.properties                           the same in a file, one name=value per line
    ?replication=3                                               for the topic, if this process creates it

USER and PASSWORD are `sasl.username` and `sasl.password`. The address takes precedence over its file. Settings that the
protocol relies on are refused: for example, a group that reads only committed records would look healthy until the
first transaction of another program hangs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from neli_router.core.private import Unreadable, read_checked

__all__ = ["KafkaAddress", "parse"]

GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""The characters that Kafka allows in a topic's name, with room for our suffix."""

SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

OURS: Mapping[str, str] = {
    "acks": "a record counts when all in-sync replicas have it",
    "auto.offset.reset": "a position that is gone is an error, never a jump",
    "bootstrap.servers": "they stand at the front of the address",
    "enable.auto.commit": "no consumer group takes part",
    "enable.idempotence": "retries must not change the order",
    "enable.partition.eof": "it reports that everything was read",
    "isolation.level": "one hanging transaction would stop every reader",
    "message.timeout.ms": "it follows from the lease",
    "transactional.id": "records are appended outside of transactions",
}

HARMLESS = frozenset({"config", "replication", "sasl.mechanism", "sasl.mechanisms", "security.protocol"})
"""Options that may be shown. There are too many others to know for each whether it is a secret."""

NAME = re.compile(r"[a-z0-9.]+")

FILE_MAX = 64 * 1024

_FILE = "the file of settings that ?config= names"
"""Its path is not shown: if the address cannot be parsed, the path may be the rest of a password."""


@dataclass(frozen=True)
class KafkaAddress:
    """`client` holds the settings of every client, which may include secrets: it is never shown."""

    servers: str
    group: str
    topic: str
    replication: int | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def public(self) -> str:
        return f"kafka://{self.servers}/{self.group}"


def parse(rest: str, *, ours: Mapping[str, str] = OURS) -> tuple[KafkaAddress | None, list[str]]:
    """The address in `rest`, the text after `kafka:`, or a sentence for each thing that is wrong with it.

    `ours`: the settings that may not be chosen, with the reasons.
    """
    problems: list[str] = []
    place, _, query = rest.removeprefix("//").partition("?")
    authority, _, group = place.partition("/")
    user, at, servers = authority.rpartition("@")
    if not servers or not all(SERVER.fullmatch(server) for server in servers.split(",")):
        problems.append("brokers were wanted as HOST:PORT,HOST:PORT after kafka://")
    if not GROUP.fullmatch(group):
        problems.append(
            "a group was wanted after the brokers, as in kafka://localhost:9092/jobs: 1 to 200 letters, digits and ._-"
        )
    said = dict(parse_qsl(query, keep_blank_values=True))
    settings: dict[str, object] = {}
    if (path := said.pop("config", None)) is not None:
        settings.update(_read(path, problems))
    if at:
        name, _, password = user.partition(":")
        settings |= {"sasl.username": unquote(name), "sasl.password": unquote(password)}
    replication = said.pop("replication", None)
    if replication is not None and not (
        replication.isascii() and replication.isdigit() and 1 <= int(replication) <= 99
    ):
        problems.append("replication must be a whole number of 1 or more")
        replication = None
    settings.update(said)
    for setting in settings:
        if setting in ours:
            problems.append(f"the setting {setting} cannot be chosen: {ours[setting]}")
        elif setting not in said and not NAME.fullmatch(setting):
            problems.append(f"{setting!r:.60} is not a setting of librdkafka: its names are lower-case words with dots")
    for number, part in enumerate(query.split("&") if query else (), start=1):
        name, equals, _ = part.partition("=")
        if not equals or not NAME.fullmatch(unquote(name)):
            # The name is not shown: it may be the rest of a password that contains an &.
            problems.append(
                f"option {number} is not a setting of librdkafka: write name=value, with a name of lower-case words "
                "and dots; write & as %26 in one"
            )
    if problems:
        return None, problems
    client = {"bootstrap.servers": servers, **settings}
    topic = f"{group}.ledger"
    return KafkaAddress(servers, group, topic, int(replication) if replication else None, client), []


def _read(path: str, problems: list[str]) -> dict[str, str]:
    try:
        text = read_checked(path, _FILE, FILE_MAX)[0].decode()
    except (Unreadable, UnicodeDecodeError) as error:
        problems.append(str(error) if isinstance(error, Unreadable) else f"{_FILE} is not UTF-8: save it as UTF-8")
        return {}
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()  # noqa: PLW2901 - from here on, the line has no margin.
        if not line or line.startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            problems.append(f"line {number} of {_FILE} is not name=value")
            continue
        settings[name.strip()] = value.strip()
    return settings
