"""A role from ZooKeeper: kazoo's election recipe.

    session --> Election.run(...): an ephemeral, numbered node; waits for the one before it --> elected
                 '--> the session expired: start over

When a process dies, ZooKeeper waits for its session to time out, deletes its node, and notifies the process that
watches it. kazoo chooses when to ping: up to 0.4 seconds after the last ping, at random, however short the session is.
So with kazoo, sessions of less than half a second expire on their own, even on a fast machine.
"""

import threading

from kazoo.client import KazooClient  # type: ignore[import-untyped] # It has no types of its own.
from kazoo.exceptions import KazooException  # type: ignore[import-untyped] # As above.
from kazoo.protocol.states import KazooState  # type: ignore[import-untyped] # As above.

from benchmarks._peers.contender import Notebook
from tests.support.waiting import PATIENCE

__all__ = ["contend"]


def contend(address: str, setting: float, name: str, notebook: Notebook) -> None:
    """Contend for the role, with a session of `setting` seconds."""
    while True:
        client = KazooClient(hosts=address, timeout=setting)
        expired = threading.Event()

        def told(state: str, expired: threading.Event = expired) -> None:
            if state == KazooState.LOST:
                expired.set()

        client.add_listener(told)
        client.start(timeout=PATIENCE)
        granted = client.client_id is not None
        assert granted, "a client that has started has a session"
        threading.Thread(target=_campaign, args=(client, name, notebook, expired), daemon=True).start()
        notebook.write("waits")
        expired.wait()
        notebook.write("lost")
        threading.Thread(target=_end, args=(client,), daemon=True).start()


def _campaign(client: KazooClient, name: str, notebook: Notebook, expired: threading.Event) -> None:
    def lead() -> None:
        notebook.write("holds")
        expired.wait()

    try:
        client.Election("/role", name).run(lead)
    except KazooException:
        expired.set()  # It ended while we were waiting.


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()
