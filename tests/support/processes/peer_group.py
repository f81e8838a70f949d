"""Real member processes that elect among themselves, without a ledger: each has a place, a folder and an address.

    m1 --127.0.0.1:41001--.
    m2 --127.0.0.1:41002--+-- datagrams, sealed with one key      folder/m2/state    what m2 must remember
    m3 --127.0.0.1:41003--'

A process that is restarted under its name has its predecessor's folder, just as a host keeps its disk.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from tests.support.servers.process import free_udp_ports

__all__ = ["PeerProcesses", "loopback_places"]


class PeerProcesses(ProcessGroup):
    """`places` maps names to HOST:PORT, and is the list of peers. `options` are the members' configuration."""

    def __init__(
        self, folder: Path, places: Mapping[str, str], *, partitions: int, pause: float, **options: Any
    ) -> None:
        self._places, self._key = dict(places), folder / "key"
        ledger = f"peers://{','.join(self._places.values())}/group"
        super().__init__(folder, partitions=partitions, pause=pause, ledger=ledger, **options)
        with os.fdopen(os.open(self._key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secrets.token_hex(32))

    def _begin(
        self, label: str, prefix: Sequence[str], environment: Mapping[str, str], **of_member: Any
    ) -> MemberProcess:
        name = label.partition(".")[0]
        state = self._folder / name
        state.mkdir(mode=0o700, exist_ok=True)
        own = f"{self.ledger}?me={self._places[name]}&key_file={self._key}&state={state}"
        return super()._begin(label, prefix, environment, **{**of_member, "ledger": own})


def loopback_places(names: Sequence[str]) -> dict[str, str]:
    """An address on this host for each name, used by no other process."""
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, free_udp_ports(len(names)), strict=True)}
