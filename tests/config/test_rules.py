"""One rule for each thing: the file, the agent and its clients agree on addresses and tokens."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neli_router.agent import Client
from neli_router.agent.server.sockets import listen_unix
from neli_router.config.agent_address import parse
from neli_router.config.agent_options import AgentOptions
from neli_router.config.resolve import resolve
from neli_router.errors import NeliError

TOKEN = "0123456789abcdef"  # noqa: S105 - of a test.
ROOM = 107 if sys.platform == "linux" else 103


def accepts(do: Callable[[], object]) -> bool:
    try:
        do()
    except NeliError:
        return False
    return True


def configured(**options: str) -> None:
    environ = {"NELI_LEDGER": "memory://x", "NELI_TOKEN": TOKEN}
    resolve({f"agent.{name}": text for name, text in options.items()}, environ)


OWN = ["localhost", "LOCALHOST", "localhost.", "127.9.9.9", "[::1]"]


@pytest.mark.parametrize("host", [*OWN, "10.0.0.1", "localhost.example", "[::]"])
def test_all_know_the_same_hosts_for_this_host(host: str) -> None:
    assert (host in OWN,) * 3 == (
        accepts(lambda: configured(listen=f"{host}:7635")),
        accepts(lambda: AgentOptions(listen=f"{host}:7635", token=TOKEN)),
        parse(f"http://{host}:7635").is_loopback,
    )


@pytest.mark.parametrize("size", [ROOM, ROOM + 1])
@pytest.mark.parametrize("letter", ["x", "ü"])
def test_all_know_the_same_length_of_a_sockets_path(tmp_path: Path, size: int, letter: str) -> None:
    """The limit is the kernel's, in bytes: a process can listen on the longest path that is accepted."""
    path = f"{tmp_path}/{letter}"
    path += "x" * (size - len(path.encode()))

    def listen() -> None:
        with listen_unix(path):
            pass

    found = accepts(lambda: configured(socket=path)), accepts(lambda: parse(f"unix:{path}")), accepts(listen)
    assert (size <= ROOM,) * 3 == found


READ = ["127.0.0.1:0", "localhost:65535", "[::1]:7635", "my_host:7635"]
NOT_READ = ["[::1%lo]:7635", "[localhost]:7635", "[127.0.0.1]:7635", "my host:7635", "::1:7635"]
NOT_READ += ["127.0.0.1:65536", "127.0.0.1:٣", "user@127.0.0.1:7635"]


@pytest.mark.parametrize("text", [*READ, *NOT_READ])
def test_all_read_the_same_host_and_port(text: str) -> None:
    assert (text in READ,) * 3 == (
        accepts(lambda: configured(listen=text, allow_remote="yes")),
        accepts(lambda: AgentOptions(listen=text, token=TOKEN, allow_remote=True)),
        accepts(lambda: parse(f"http://{text}")),
    )


@pytest.mark.parametrize("token", [TOKEN, "x" * 4096, TOKEN[1:], "x" * 4097, TOKEN + " ", TOKEN + "\t", TOKEN + "ü"])
def test_all_know_the_same_tokens(token: str) -> None:
    environ = {"NELI_LEDGER": "memory://x", "NELI_TOKEN": token}
    assert (token in {TOKEN, "x" * 4096},) * 3 == (
        accepts(lambda: resolve({"agent.listen": "127.0.0.1:0"}, environ)),
        accepts(lambda: AgentOptions(listen="127.0.0.1:0", token=token)),
        accepts(lambda: Client("http://127.0.0.1:7635", token=token)),
    )
