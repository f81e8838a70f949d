"""A role from etcd: its own election service, over its JSON gateway.

    lease/grant(TTL) --> election/campaign (waits) --> elected          lease/keepalive, three a TTL, all the while
                                                                        '--> TTL 0: it expired: start over

The campaign creates a key under our lease and returns when no older key is left. When a process dies, its lease ends,
etcd deletes its key, and the next process's campaign returns. Three keepalives a TTL is the rate of etcd's own client.
"""

import http.client
import json
import threading
import time
from base64 import b64encode
from typing import Any

from benchmarks._peers.contender import Notebook

__all__ = ["contend"]

RENEWALS_PER_TTL = 3
CAMPAIGN_MAX = 3600.0


def contend(address: str, setting: float, name: str, notebook: Notebook) -> None:
    """Contend for the role, with a lease of `setting` seconds, which etcd takes as a whole number."""
    while True:
        lease = _ask(address, "lease/grant", {"TTL": round(setting)})["ID"]
        expired = threading.Event()
        threading.Thread(target=_keep, args=(address, lease, setting, expired), daemon=True).start()
        threading.Thread(target=_campaign, args=(address, lease, name, notebook, expired), daemon=True).start()
        notebook.write("waits")
        expired.wait()
        notebook.write("lost")


def _keep(address: str, lease: str, setting: float, expired: threading.Event) -> None:
    connection = _connection(address, setting)
    due = time.monotonic()
    while True:
        due += setting / RENEWALS_PER_TTL
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            answer = _said(connection, "lease/keepalive", {"ID": lease})
        except (OSError, http.client.HTTPException):
            connection.close()  # Like etcd's own client, try again until there is an answer.
            continue
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            expired.set()
            return


def _campaign(address: str, lease: str, name: str, notebook: Notebook, expired: threading.Event) -> None:
    role, value = b64encode(b"role").decode(), b64encode(name.encode()).decode()
    try:
        _ask(address, "election/campaign", {"name": role, "lease": lease, "value": value}, CAMPAIGN_MAX)
    except OSError:
        return  # The lease is gone, and with it our place.
    if not expired.is_set():
        notebook.write("holds")


def _ask(address: str, what: str, question: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    connection = _connection(address, timeout)
    try:
        return _said(connection, what, question)
    finally:
        connection.close()


def _connection(address: str, timeout: float) -> http.client.HTTPConnection:
    host, _, port = address.partition(":")
    return http.client.HTTPConnection(host, int(port), timeout=timeout)


def _said(connection: http.client.HTTPConnection, what: str, question: dict[str, Any]) -> dict[str, Any]:
    connection.request("POST", f"/v3/{what}", json.dumps(question))
    response = connection.getresponse()
    text = response.read()
    if response.status != http.client.OK:
        raise OSError(f"etcd answered {what} with {response.status}: {text[:200]!r}")
    found: dict[str, Any] = json.loads(text)
    return found
