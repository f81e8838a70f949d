"""The choice: which witness a member gets, depending on its configuration and on what its host has.

    none            no witness
    agent           the host's agent
    child           a process of its own; no witness for a ledger in memory, which ends with its process
    auto            the host's agent; without one, on a SQLite ledger, the other members of the host

The choice is made after the ledger was first read, and so before the Join, which names the witness. `auto` logs nothing
if it finds no witness, because none was requested by name.
"""

import contextlib
from collections.abc import Callable

from neli_router.config.config import Config
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import Unsupported
from neli_router.member.witness.base import NO_WITNESS, Witness
from neli_router.member.witness.child import ChildWitness
from neli_router.member.witness.life import OwnLife
from neli_router.member.witness.locks import PeerWitness
from neli_router.member.witness.registration import Registration
from neli_router.protocols.protocol import Notice

__all__ = ["choose"]


def choose(config: Config, name: str, life: OwnLife, ledger: Ledger, tell: Callable[[Notice], None]) -> Witness:
    """The witness of the member called `name`, on its `ledger`. Notices for people go to `tell`."""
    match config.induction.witness:
        case "agent":
            return Registration(config, name, life, tell, wanted=True)
        case "auto":
            agent = Registration(config, name, life, tell, wanted=False)
            if not agent.name and isinstance(ledger, SqliteLedger):
                with contextlib.suppress(Unsupported, OSError):
                    peers = PeerWitness(ledger, life.name)
                    agent.close()
                    return peers
            return agent
        case "child" if not isinstance(ledger, MemoryLedger):
            try:
                return ChildWitness(config, name, tell)
            except (Unsupported, OSError) as error:
                tell(Notice("witness.missing", {"witness": "child", "why": str(error), "until_then": "the lease"}))
    return NO_WITNESS
