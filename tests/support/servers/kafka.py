"""A real Kafka for tests: brokers in KRaft mode, started from the jars of `make fetch`, and killed by tests.

    .make/kafka-4.3.1/*.jar --StorageTool format--> a folder each --kafka.Kafka--> node 1 [2 3]

    with Kafka.started(nodes=3) as kafka:
        kafka.bootstrap                  "127.0.0.1:4711,127.0.0.1:4712,127.0.0.1:4713"
        kafka.nodes[0].kill()            SIGKILL; .stop() SIGTERM, .freeze() SIGSTOP, .thaw() SIGCONT, .start() again

Every node is broker and controller. The settings are Kafka's defaults except for what three brokers on one small
machine need: ports, folders, and with more than one node a short broker session, so that a test can notice a broker's
death. A test run starts each kind once; a topic for each test keeps tests apart.

`python -m tests.support.servers.kafka [NODES]` starts one to experiment with, until Ctrl-C. With `--archive`, a part of
`make fetch`, it archives the classes that a broker loads. With them, it needs half of the processor time to start.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.jars import KAFKA as JARS
from tests.support.servers.process import ServerProcess, free_port, until_asked_to_end
from tests.support.waiting import until

__all__ = ["SHORT_GROUPS", "VERSION", "Kafka", "Node", "missing"]

VERSION = JARS.version

START_MAX = 240.0
HEAP = "256m"

BOOTSTRAP = "bootstrap.checkpoint"
_bootstrap: list[bytes] = []
"""The first records of a new node, once the tool has written them: the tool takes a second, and all are the same."""


def missing() -> str:
    """Why Kafka cannot run here; empty if it can."""
    return JARS.missing()


class Node(ServerProcess):
    """One broker and controller. It keeps its data and its ports when it is restarted."""

    def __init__(self, number: int, folder: Path, settings: dict[str, object], *, prefix: tuple[str, ...] = ()) -> None:
        self.number, self.folder, self._prefix = number, folder, prefix
        self.host, self.port = str(settings.pop("host")), int(str(settings.pop("port")))
        folder.mkdir(parents=True)
        super().__init__(folder / "log")
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _java(self, *arguments: str, heap: str = HEAP) -> list[str]:
        return [*self._prefix, *JARS.command(*arguments, heap=heap)]

    def format(self, cluster: str) -> None:
        data = self.folder / "data"
        if _bootstrap:
            data.mkdir()
            (data / BOOTSTRAP).write_bytes(_bootstrap[0])
            (data / "meta.properties").write_text(f"version=1\ncluster.id={cluster}\nnode.id={self.number}\n")
            return
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties), heap="64m"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_MAX,
            check=True,
        )
        _bootstrap.append((data / BOOTSTRAP).read_bytes())

    def start(self, *options: str) -> None:
        self.begin(self._java(*options, "kafka.Kafka", str(self._properties)))


class Kafka:
    """One to three nodes; `settings` are added to each node's.

    With `users`, name to password, clients log in with SASL PLAIN and have only the rights that they were granted,
    except for `admin`, which has all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        hosts: list[str] | None = None,
        prefixes: list[tuple[str, ...]] | None = None,
        settings: dict[str, object] | None = None,
        users: dict[str, str] | None = None,
    ) -> None:
        hosts = hosts or ["127.0.0.1"] * nodes
        prefixes = prefixes or [()] * nodes
        # In a network namespace of its own, a port that is free here is free there.
        ports = [(free_port(), free_port()) for _ in range(nodes)]
        voters = ",".join(f"{number}@{hosts[number - 1]}:{ports[number - 1][1]}" for number in range(1, nodes + 1))
        self._users = users
        protocol = "SASL_PLAINTEXT" if users else "PLAINTEXT"
        self.nodes = [
            Node(
                number,
                folder / str(number),
                {
                    "host": host,
                    "port": port,
                    "process.roles": "broker,controller",
                    "node.id": number,
                    "controller.quorum.voters": voters,
                    "listeners": f"{protocol}://{host}:{port},CONTROLLER://{host}:{controller}",
                    "advertised.listeners": f"{protocol}://{host}:{port}",
                    "controller.listener.names": "CONTROLLER",
                    "log.dirs": folder / str(number) / "data",
                    "offsets.topic.replication.factor": min(3, nodes),
                    "offsets.topic.num.partitions": 1,
                    "transaction.state.log.replication.factor": min(3, nodes),
                    "transaction.state.log.min.isr": min(2, nodes),
                    "transaction.state.log.num.partitions": 1,
                    "group.initial.rebalance.delay.ms": 0,
                    "log.cleaner.dedupe.buffer.size": 2 << 20,  # It is cleared at the start; 128 MB by default.
                    **(SHORT_SESSIONS if nodes > 1 else {}),
                    **(_guarded(users) if users else {}),
                    **(settings or {}),
                },
                prefix=prefix,
            )
            for number, (host, (port, controller), prefix) in enumerate(
                zip(hosts, ports, prefixes, strict=True), start=1
            )
        ]

    @property
    def as_admin(self) -> dict[str, str]:
        """The settings of a client that may do everything."""
        if not self._users:
            return {}
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": self._users["admin"],
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @classmethod
    @contextmanager
    def started(cls, nodes: int = 1, **options: object) -> Iterator["Kafka"]:
        """A context with brokers that answer; they are removed at the end."""
        with tempfile.TemporaryDirectory(prefix="neli-kafka-") as folder:
            kafka = cls(Path(folder), nodes=nodes, **options)  # type: ignore[arg-type]
            try:
                kafka.start()
                yield kafka
            finally:
                for node in kafka.nodes:
                    node.kill()

    def start(self, *options: str) -> None:
        """Start all nodes, with these options for Java."""
        # It begins with a letter: an identifier that looks like an option would be treated as one.
        cluster = urlsafe_b64encode(b"neli" + os.urandom(12)).decode().rstrip("=")
        for node in self.nodes:
            node.format(cluster)
            node.start(*options)
        self.wait()

    def wait(self) -> None:
        """Wait until one node answers and knows all the others."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - a machine without it has no tests of Kafka.
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, **self.as_admin})
        give_up_at = time.monotonic() + START_MAX
        while True:
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=1).brokers) >= len(self.nodes):
                    return
            dead = [node.number for node in self.nodes if not node.running]
            if time.monotonic() >= give_up_at or dead:
                raise AssertionError(f"Kafka did not start within {START_MAX} s; ended: {dead}\n{self.log()}")
            time.sleep(0.1)

    def log(self) -> str:
        """The end of each node's log."""
        return "\n".join(f"node {node.number}:\n{node.log()}" for node in self.nodes)


SHORT_SESSIONS: dict[str, object] = {
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "replica.lag.time.max.ms": 2000,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
}
"""By default, a dead broker is noticed only after nine seconds."""


SHORT_GROUPS: dict[str, object] = {
    "group.min.session.timeout.ms": 2000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
}
"""For consumer groups: by default, a member with the newer protocol learns of a change only after five seconds."""


def _guarded(users: dict[str, str]) -> dict[str, object]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module} username="admin" password="{users["admin"]}" {known};'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",  # The controllers' own listener knows no names.
    }


def archive() -> None:
    JARS.classes.unlink(missing_ok=True)  # Java does not write an archive while it uses another one.
    with tempfile.TemporaryDirectory(prefix="neli-kafka-") as folder:
        unfinished = Path(folder, JARS.classes.name)
        kafka = Kafka(Path(folder))
        kafka.start(f"-XX:ArchiveClassesAtExit={unfinished}")
        os.kill(kafka.nodes[0].pid, signal.SIGTERM)  # It writes the archive when it ends.
        until(lambda: not kafka.nodes[0].running, "the end of a broker", patience=START_MAX)
        shutil.move(unfinished, JARS.classes)
    print(f"Kafka {VERSION}: its classes are in {JARS.classes}")  # noqa: T201 - the step is for people to watch.


def main() -> None:
    if sys.argv[1:] == ["--archive"]:
        if not missing():  # Otherwise, `jars` has said why.
            archive()
        return
    if why := missing():
        sys.exit(f"cannot start Kafka: {why}")
    with until_asked_to_end(), Kafka.started(int(sys.argv[1]) if len(sys.argv) > 1 else 1) as kafka:
        print(f"Kafka {VERSION} runs until Ctrl-C. A ledger in it: kafka://{kafka.bootstrap}/jobs", flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
