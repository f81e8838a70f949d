"""Addresses of groups without a broker: one order for all, all problems reported together, and no secret shown."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neli_router.config.config import Config
from neli_router.drivers.addresses import public_address
from neli_router.drivers.peers.address import HARMLESS, PeersAddress, parse, split_place
from neli_router.errors import ConfigError

OFF = "?key_file=/etc/neli/key&state=/var/lib/neli"


def parsed(rest: str) -> PeersAddress:
    found, problems = parse(rest)
    assert found is not None, problems
    return found


def problems(rest: str) -> str:
    found, said = parse(rest)
    assert found is None
    assert said
    return "\n".join(said)


def test_an_address_says_where_all_are_in_any_order_and_what_is_this_members_own() -> None:
    own = {"me": "b:7801", "key_file": "/etc/neli/key", "state": "/var/lib/neli", "bind": "0.0.0.0:7801"}
    expected = PeersAddress(("a:7801", "b:7801", "c:7801"), "jobs", **own)
    assert expected == parsed(f"//b:7801,c:7801,a:7801/jobs{OFF}&me=b:7801&bind=0.0.0.0:7801")
    assert "peers://a:7801,b:7801,c:7801/jobs" == expected.public  # This has no paths.
    assert frozenset({"bind", "key_file", "me", "state"}) == HARMLESS
    lists = {parsed(f"//{','.join(order)}/jobs{OFF}").peers for order in permutations(("b:1", "a:9", "a:10", "c:7"))}
    assert {("a:9", "a:10", "b:1", "c:7")} == lists


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        ("Host.Example:7801", "host.example:7801"),
        ("a:07801", "a:7801"),
        ("[2001:DB8:0:0::1]:7801", "[2001:db8::1]:7801"),
        ("198.18.0.1:1", "198.18.0.1:1"),
        *((host, None) for host in ("127.1:7801", "198.18.0.01:1", "[::g]:1", "::1:7801", "a", "")),
        *((port, None) for port in ("a:007801", "a:0", "a:65536", "a:٣")),
    ],
)
def test_each_peer_is_written_in_one_form(written: str, peer: str | None) -> None:
    found, said = parse(f"//{written}/jobs{OFF}")
    assert peer == (found.peers[0] if found else None)
    assert bool(said) == (peer is None)


def test_all_problems_are_told_at_once_me_must_be_in_the_list_and_off_loopback_a_key_and_a_folder_are_wanted() -> None:
    said = problems("//a,b:7801/no group?me=c&state=here&colour=red")
    for part in ("HOST:PORT,HOST:PORT", "a group was wanted", "me must be", "state must be an absolute", "option 3"):
        assert part in said
    assert "me is not in the list" in problems(f"//a:7801,b:7801/jobs{OFF}&me=c:7801")
    assert "a:7801" == parsed(f"//a:7801,b:7801/jobs{OFF}&me=A:7801").me
    assert parsed("//localhost:7801,127.0.0.1:7802,[::1]:7803/jobs").is_loopback
    assert "?key_file=" in problems("//localhost:7801,localhost:7802/jobs?bind=0.0.0.0:7801")
    for servers in ("a:7801,b:7801", "198.18.0.1:1", "localhost.example:7801"):
        said = problems(f"//{servers}/jobs")
        assert "?key_file=" in said
        assert "?state=" in said


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        *((f"//{one}/jobs{OFF}", "of no single host") for one in ("0.0.0.0:1,a:1", "224.0.0.1:1,a:1", "[::]:1")),
        (f"//localhost:7801,a:7801/jobs{OFF}", "another host on each host"),
        (f"//b:7801,a:9,a:10,[::1]:7801/jobs{OFF}", "another host"),
        (f"//[::ffff:127.0.0.1]:7801/jobs{OFF}", "in the form of IPv6: write 127.0.0.1, without brackets"),
        (f"//[fe80::1]:7801,a:7801/jobs{OFF}", "valid on one link only"),
        (f"//[fe80::1%eth0]:7801,a:7801/jobs{OFF}", "zones differ from host to host"),
        (f"//a:7801/jobs{OFF}&bind=[::ffff:0.0.0.0]:7801", "write 0.0.0.0, without brackets"),
        (f"//a:7801/jobs{OFF}&bind=[fe80::1]:7801", "valid on one link only"),
        ("//[::1]:7801,[0:0::1]:7801/jobs", "peers are named twice ([::1]:7801)"),
        *((f"//localhost:1/{group}", "a group was wanted") for group in ("", ".", "..", "a/b", "a b", "x" * 201)),
        *((f"//{secret}", "") for secret in ("user:Tr0ub4dor@a:1/jobs", "a:1/jobs?Tr0ub4dor", "a:1/jobs?Tr0ub4dor=x")),
    ],
)
def test_a_wrong_part_is_refused_and_no_password_is_shown(rest: str, said: str) -> None:
    assert said in problems(rest)
    assert "Tr0ub4dor" not in problems(rest)


@pytest.mark.parametrize("option", ["key_file", "state"])
def test_a_key_that_was_written_in_place_of_its_files_path_is_not_shown(option: str) -> None:
    key = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    address = f"peers://a:7801,b:7801,c:7801/jobs?me=a:7801&{option}={key}"
    assert key not in public_address(address)
    with pytest.raises(ConfigError, match=f"{option} must be an absolute path") as raised:
        Config(address, protocol="term")
    assert key not in str(raised.value)
    readable = "peers://a:7801,b:7801,c:7801/jobs?key_file=/etc/neli/key&state=/var/lib/neli"
    assert readable == public_address(readable)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_an_address_or_has_problems(front: str, behind: str) -> None:
    for rest in (front, f"//{front}/jobs", f"//a:7801/jobs?{behind}", f"//localhost:1/{behind}"):
        found, said = parse(rest)
        assert (found is None) == bool(said)
        if found is not None:
            assert sorted(found.peers, key=split_place) == list(found.peers)
            assert found.peers == parsed(found.public.removeprefix("peers:") + OFF).peers
