"""Layers: which one wins, where a value comes from, and that all problems are reported together, with their places."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.agent_address import default_socket
from neli_router.config.config import Config
from neli_router.config.options import OPTIONS
from neli_router.config.protocols import PROTOCOLS
from neli_router.config.resolve import Resolved, asked_agent, resolve
from neli_router.errors import ConfigError

LEDGER = {"NELI_LEDGER": "memory://jobs"}
TOKEN = {"NELI_TOKEN": "0123456789abcdef"}
LISTENING = "HOST:PORT, such as 127.0.0.1:7635 or [::1]:7635"
ABSOLUTE = "an absolute path, such as /run/neli/agent.sock"
ABOVE = "take out this line: these options stand above all tables"


def resolved(environ: Mapping[str, str] | None = None) -> Resolved:
    """No file, and a ledger in the environment."""
    return resolve({}, {**LEDGER, **TOKEN, **(environ or {})}, places=())


def problems(environ: Mapping[str, str], flags: Any = None, file: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        resolve(flags or {}, environ, str(file) if file else None, places=())
    return list(raised.value.problems)


def source(made: Resolved, name: str) -> str:
    return next(one.source for one in made.settings if one.name == name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "neli.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_go_before_the_environment_then_the_file_then_the_defaults(tmp_path: Path) -> None:
    above = 'ledger = "memory://jobs"  # Where else?\nlease = 2\nzone = "c"\nweight = 3\nmax_age = "none"\n'
    path = written(tmp_path, f"{above}[layout]\ntags = true\n")
    made = resolve({"lease": "4"}, {"NELI_LEASE": "3", "NELI_ZONE": "b"}, str(path), places=())
    assert (4, "b", 3, 30.0) == (made.config.lease, made.config.zone, made.config.weight, made.config.drain_timeout)
    assert (None, True) == (made.config.max_age, made.config.layout.tags)
    sources = [source(made, name) for name in ("lease", "zone", "weight", "layout.tags", "drain_timeout")]
    assert ["flag --lease", "environment NELI_ZONE", f"{path} line 4", f"{path} line 7", "default"] == sources


PEERS = "127.0.0.1:7803,127.0.0.1:7801,127.0.0.1:7802"


def test_peers_are_named_in_any_layer_and_stand_for_a_ledger(tmp_path: Path) -> None:
    path = written(tmp_path, f'protocol = "term"\n[peers]\nlist = "{PEERS}"\ngroup = "jobs"\nstate = "/var/a & b"\n')
    made = resolve({"peers.me": "127.0.0.1:7802"}, {"NELI_PEERS_BIND": "127.0.0.1:9"}, str(path), places=())
    listed = "peers://127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803/jobs"
    assert f"{listed}?bind=127.0.0.1:9&me=127.0.0.1:7802&state=/var/a+%26+b" == made.config.ledger
    at = made.config.peers
    assert ("127.0.0.1:7802", "/var/a & b", "127.0.0.1:9") == (at.me, at.state, at.bind)
    sources = [source(made, f"peers.{name}") for name in ("list", "group", "me", "key_file")]
    assert [f"{path} line 3", f"{path} line 4", "flag --me", "default"] == sources


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({"peers.list": "a:1"}, {"NELI_PEERS_ME": "b:1"}, "NELI_PEERS_ME is not in the list of peers: write it as it"),
        ({}, {"NELI_PEERS": "a:1"}, "make leaders: name its file with NELI_PEERS_KEY_FILE=PATH; `openssl"),
        ({}, {"NELI_PEERS": "127.0.0.1:1", "NELI_PEERS_STATE": "x"}, "NELI_PEERS_STATE must be an absolute path"),
        ({}, {"NELI_PEERS_STATE": "/x"}, "NELI_PEERS_STATE must come with --peers, which names all members: add it"),
        ({"peers.list": "127.0.0.1:1"}, {"NELI_LEDGER": "memory://x"}, "NELI_LEDGER and --peers both say where the gr"),
        ({"peers.list": "u:geheim@a:1"}, {}, "they have no user and no password, but a key in --key-file PATH"),
        ({"peers.list": "127.0.0.1:1", "peers.group": "a/b"}, {}, "--group must be the name of a group: 1 to"),
        ({"peers.list": "127.0.0.1"}, {}, "peers were wanted as HOST:PORT,HOST:PORT, with ports from"),
        ({"peers.list": "a:1,b:1,c:1", "peers.key_file": "/x"}, {}, "outlasts a restart with --state PATH"),
        ({"peers.list": "a:1", "protocol": "induction"}, {}, "a list of peers is not a ledger of induction: choose"),
    ],
)
def test_problems_of_peers_are_named_as_written(flags: dict[str, str], environ: dict[str, str], expected: str) -> None:
    found = problems({"NELI_PROTOCOL": "term", **environ}, flags)
    assert any(expected in problem for problem in found), found
    assert not any("ledger=" in problem or "geheim" in problem for problem in found), found


def test_a_switch_in_the_environment_is_said_in_any_usual_word_and_an_empty_variable_counts_as_none() -> None:
    for text, expected in (("true", True), ("YES", True), ("1", True), ("no", False), ("0", False)):
        assert expected == resolved({"NELI_ACCEPT_REWINDS": text}).config.induction.accept_rewinds
    assert 1.0 == resolved({"NELI_LEASE": ""}).config.lease


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("NELI_LEASE", "nan", "lease='nan' must be a number of seconds above 0 (HERE)"),
        ("NELI_LEASE", "1_0", "lease='1_0' must be a number of seconds above 0 (HERE)"),
        ("NELI_LEASE", "none", "lease='none' must be a number of seconds above 0 (HERE)"),
        ("NELI_LEASE", "7200", "lease=7200 must be from 0.01 to 3600.0 seconds (lease: HERE)"),
        ("NELI_WEIGHT", "1.5", "weight='1.5' must be a whole number (HERE)"),
        ("NELI_LAYOUT_TAGS", "on?", "layout.tags='on?' must be true or false (HERE)"),
        ("NELI_AGENT_LOG_LEVEL", "loud", "agent.log_level='loud' must be one of debug, info, warning, error (HERE)"),
        ("NELI_AGENT_LISTEN", "here", f"agent.listen='here' must be {LISTENING} (agent.listen: HERE)"),
        ("NELI_AGENT_SOCKET", "a.sock", f"agent.socket='a.sock' must be {ABSOLUTE} (agent.socket: HERE)"),
    ],
)
def test_a_bad_variable_is_told_with_its_name(variable: str, text: str, expected: str) -> None:
    assert [expected.replace("HERE", f"environment {variable}")] == problems({**LEDGER, **TOKEN, variable: text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('lease = "1"', "lease='1' must be a number of seconds above 0 (FILE line 2)"),
        ("weight = 2.0", "weight=2.0 must be a whole number (FILE line 2)"),
        ("weight = true", "weight=true must be a whole number (FILE line 2)"),
        ("name = {token = 'secret'}", "name=a dict must be text (FILE line 2)"),
        ("weight = 0x" + "f" * 9000, "weight=a huge number must be a whole number (FILE line 2)"),
        ("lease = inf", "lease=inf must be a number of seconds above 0 (FILE line 2)"),
        ("[agent]\ntoken_file = 1234567890123456", "agent.token_file=... must be text (FILE line 3)"),
        ("layout = 5", "layout must be a table (FILE line 2): write [layout] above it"),
        ("[agent]\nlease = 1", "agent.lease is not a known option (FILE line 3): did you mean lease?"),
        ("drain-timeout = 3", "drain-timeout is not a known option (FILE line 2): did you mean drain_timeout?"),
        ("[neli]\npartitons = 1\nlease = 1", f"[neli] is not a known table (FILE line 2): {ABOVE}"),
        ("[nelli]\nx = 1", "[nelli] is not a known table (FILE line 2): there is [agent], [layout], [peers]"),
        ("[layot]\nslots = 1", "[layot] is not a known table (FILE line 2): did you mean [layout]?"),
        ("listen = '127.0.0.1:1'", "listen is not a known option (FILE line 2): did you mean agent.listen?"),
        ("[layout]\nslot = 1", "layout.slot is not a known option (FILE line 3): did you mean layout.slots?"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, f"ledger = 'memory://jobs'\n{text}\n")
    assert [expected.replace("FILE", str(path))] == problems({}, file=path)


def test_all_problems_of_all_layers_are_told_at_once_even_where_a_higher_layer_overrules(tmp_path: Path) -> None:
    path = written(tmp_path, "beat = 'often'\nleese = 3\n[layout]\nslots = 4\npartitions = 8\n")
    environ = {"NELI_BEAT": "fast", "NELI_ZON": "a", "NELI_TOKEN": "short"}
    found = problems(environ, {"weight": "heavy", "beat": "0.1"}, path)
    reason = "or the partitions above would never own a key: raise slots or lower partitions"
    places = f"(layout.slots: {path} line 4; layout.partitions: {path} line 5)"
    expected = [
        f"beat='often' must be a number of seconds, or none ({path} line 1)",
        f"leese is not a known option ({path} line 2): did you mean lease?",
        "beat='fast' must be a number of seconds, or none (environment NELI_BEAT)",
        "NELI_ZON is not a known variable (in the environment): did you mean NELI_ZONE?",
        "weight='heavy' must be a whole number (flag --weight)",
        "environment NELI_TOKEN holds 5 characters, and a token has 16 to 4096",
        "no ledger is named: say where it is, such as ledger='sqlite:///var/lib/jobs/ledger.db'",
        f"partitions=8 must be at most slots=4, {reason} {places}",
    ]
    assert expected == found


def test_variables_of_other_parts_are_no_mistake_and_a_hundred_unknown_ones_are_told_in_brief() -> None:
    names = ("NELI_ROLE", "NELI_TERM", "NELI_PARTITION", "NELI_MEMBER", "NELI_AGENT", "NELI_CONFIG_MAP_SERVICE_HOST")
    kubernetes = (
        *("NELI_SERVICE_HOST", "NELI_SERVICE_PORT", "NELI_SERVICE_PORT_HTTP", "NELI_PORT", "NELI_PORT_7635_TCP"),
        *("NELI_AGENT_PORT", "NELI_AGENT_PORT_7635_TCP_ADDR", "NELI_AGENT_SERVICE_HOST"),
    )
    assert resolved().config == resolved(dict.fromkeys((*names, *kubernetes), "x")).config
    found = problems({**LEDGER, **{f"NELI_X{number}": "1" for number in range(100)}})
    assert (21, "80 more variables with NELI_ are unknown") == (len(found), found[-1])


def test_every_setting_is_an_option_with_a_flag_and_a_variable_of_its_own() -> None:
    """The settings of borrowed groups once were not options, so agents could not have them."""
    settings = {field.name for field in fields(Config)} - {"layout"}
    settings |= {field.name for kind in PROTOCOLS.values() for field in fields(kind)}
    assert sorted(settings) == sorted(option.name for option in OPTIONS.values() if not option.section)
    assert len(OPTIONS) == len({option.flag for option in OPTIONS.values()})
    assert len(OPTIONS) == len({option.variable for option in OPTIONS.values()})


@pytest.mark.parametrize(
    ("environ", "name", "address"),
    [
        ({"POD_NAME": "agent-7x", "POD_IP": "10.0.0.7"}, "agent-7x", "10.0.0.7"),
        ({"POD_NAME": "a", "POD_IP": "10.0.0.7", "NELI_AGENT_LISTEN": "127.0.0.1:99"}, "a", "10.0.0.7:99"),
        ({"POD_NAME": "a", "POD_IP": "fd00::7", "NELI_AGENT_LISTEN": "[::1]:99"}, "a", "[fd00::7]:99"),
        ({"POD_NAME": "a", "NELI_AGENT_LISTEN": "127.0.0.1:99"}, "a", "127.0.0.1:99"),
        ({"POD_NAME": "a", "NELI_NAME": "b", "NELI_ADDRESS": "c:1", "POD_IP": "10.0.0.7"}, "b", "c:1"),
        ({"POD_NAME": "a"}, "a", ""),
    ],
)
def test_a_pod_is_called_and_reached_as_kubernetes_says(environ: dict[str, str], name: str, address: str) -> None:
    made, bare = resolved(environ), resolved()
    assert (name, address) == (made.config.name, made.config.address)
    assert ("the host's name", resolved().config.name) == (source(bare, "name"), bare.config.name)


def test_a_port_wants_a_token_and_one_that_other_hosts_reach_must_be_allowed_by_name() -> None:
    (found,) = problems({**LEDGER, "NELI_AGENT_LISTEN": "127.0.0.1:7635"})
    expected = (
        "agent.listen='127.0.0.1:7635' needs a token, because every user of this host reaches a port: set token_file "
        "or NELI_TOKEN, or use the socket alone (agent.listen: environment NELI_AGENT_LISTEN)"
    )
    assert expected == found
    (found,) = problems({**LEDGER, **TOKEN, "NELI_AGENT_LISTEN": "0.0.0.0:7635"})
    assert "agent.listen='0.0.0.0:7635' is an address that other hosts may reach" in found
    made = resolved({"NELI_AGENT_LISTEN": "0.0.0.0:7635", "NELI_AGENT_ALLOW_REMOTE": "true"})
    assert ("0.0.0.0:7635", True) == (made.agent.listen, made.agent.allow_remote)
    assert not made.config.address.startswith("0.0.0.0")  # noqa: S104 - that it is not advertised.
    # A socket may be written in the clients' spelling.
    assert "/run/a.sock" == resolve({"agent.socket": "unix:/run/a.sock"}, LEDGER, places=()).agent.socket
    made = resolve({}, LEDGER, places=(), socket_folder="/run/d")
    assert default_socket("/run/d", "memory://jobs") == made.agent.socket
    assert re.fullmatch(r"/run/d/agent-jobs-[0-9a-f]{8}\.sock", made.agent.socket)


@pytest.mark.parametrize(
    "address",
    ["redis://:hunter2@host/jobs", "http://host/?key=hunter2", "redis:hunter2@x://", "redis:%2F%2Fu%3Ahunter2%40x://"],
)
def test_a_password_in_an_address_is_never_shown_and_refused_in_other_options(address: str) -> None:
    for option in ("name", "zone", "address", "guarantee", "agent.listen", "agent.socket", "lease"):
        with pytest.raises(ConfigError) as caught:
            resolve({option: address}, {**LEDGER, **TOKEN}, places=())
        assert "hunter2" not in f"{caught.value} {caught.value!r}"


def test_an_at_in_an_address_is_no_password_where_it_separates_none() -> None:
    assert "sqlite:///srv/a@b.db" == resolve({"ledger": "sqlite:///srv/a@b.db"}, {}, places=()).settings[0].value
    for text in ("http://10.0.0.7:8080/jobs", "grpc://[::1]:50051", "worker@host", "10.0.0.7:8080"):
        assert text == resolve({"address": text}, LEDGER, places=()).config.address


def test_a_client_learns_its_group_from_what_it_is_given_the_environment_and_the_file(tmp_path: Path) -> None:
    path = str(written(tmp_path, "ledger = 'redis://u:secret@h/file'\n[agent]\nsocket = '/run/x.sock'\n"))
    there = {"XDG_RUNTIME_DIR": f"{tmp_path}"}
    assert ("unix:/run/x.sock", "redis://h:6379/file") == asked_agent(environ=there, places=[path])
    told = {**there, "NELI_LEDGER": "redis://h/jobs", "NELI_AGENT": "/a.sock"}
    assert ("/a.sock", "redis://h:6379/jobs") == asked_agent(environ=told, places=[path])
    assert ("/b.sock", "kafka://h:1/jobs") == asked_agent("/b.sock", "kafka://h:1/jobs", told, places=[path])
    listed = {**there, "NELI_PEERS": "b:2,a:1", "NELI_PEERS_GROUP": "jobs"}
    assert ("/b.sock", "peers://a:1,b:2/jobs") == asked_agent("/b.sock", environ=listed, places=())
    assert ("/b.sock", "") == asked_agent("/b.sock", environ=there, places=())
    with pytest.raises(ConfigError, match="does not say what kind of ledger it is"):
        asked_agent(environ={**there, "NELI_LEDGER": "nonsense"}, places=())
