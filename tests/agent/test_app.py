"""The answers of an agent, over a real socket."""

import base64
from pathlib import Path
from typing import Any, TypeVar

import httpx
import jsonschema
import msgspec
import pytest

from neli_router.agent import Client, wire
from neli_router.agent.openapi import ENDPOINTS
from neli_router.agent.server.progress import KEPT, TABLES_MAX
from neli_router.config.agent_options import AgentOptions
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.member.member import Member
from tests.support.agents.running import DRAIN, PARTITIONS, PATIENCE, STEADY, Running, configured, running

LAYOUT = Layout(partitions=PARTITIONS)
KEYS = ["customer-7", "", "a b+c%&=#/?", "line\nline\r\n", "\0", "käse", "\N{PILE OF POO}", "{a}b", "x" * wire.KEY_MAX]

View = TypeVar("View")


def refused(answer: httpx.Response) -> wire.Refusal:
    assert answer.status_code != 200
    assert "application/json" == answer.headers["content-type"]
    assert "Secret" not in answer.text
    found = msgspec.json.decode(answer.content, type=wire.Refusal)
    assert wire.STATUS_OF.get(found.kind, 503) == answer.status_code
    return found


def get(agent: Running, path: str, view: type[View], **query: str) -> View:
    with agent.client() as client:
        return msgspec.json.decode(client.get(f"/v1/{path}", params=query).content, type=view)


def test_the_document_describes_each_path_its_parameters_and_its_answers(agent: Running) -> None:
    with agent.client() as client:
        said = client.get("/v1/openapi.json").json()
        paths = refused(client.get("/v1/nowhere")).remedy.removeprefix("there is ").split(", ")
        assert {*said["paths"], "/v1/witness"} == set(paths)
        for (method, path), one in ENDPOINTS.items():
            if one.parameters is not None:
                told = refused(client.request(method, path, params={"no": "1"}, json={"no": 1})).remedy
                assert told.endswith(f"There is {', '.join(sorted(one.parameters)) or 'none'}")
            if method == "GET" and not one.events and one.answer is not str:
                query = {"partition": "3"} if "partition" in (one.parameters or ()) else {}
                answer = client.get(path, params=query)
                if answer.status_code == 200:
                    schema = said["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                    jsonschema.validate(answer.json(), {**schema, "components": said["components"]})
                else:
                    assert ("/v1/peers", "BeyondProtocol") == (path, refused(answer).kind)


def test_any_text_and_any_bytes_are_a_key_and_a_number_is_a_partition(agent: Running) -> None:
    for key in KEYS:
        found = get(agent, "owner", wire.OwnerView, key=key)
        assert ("a", LAYOUT.slot(key), LAYOUT.partition(key)) == (found.name, found.slot, found.partition)
        assert (True, True) == (found.term > 0, 0 <= found.age < 10)
    for raw in (b"", b"\xff\xfe", b"customer-7", bytes(range(256)), b"\x00" * wire.KEY_MAX):
        text = base64.urlsafe_b64encode(raw).decode()
        for spelled in (text, text.rstrip("=")):
            assert LAYOUT.slot(raw) == get(agent, "owner", wire.OwnerView, key64=spelled).slot
    found = get(agent, "owner", wire.OwnerView, partition="3")
    assert ("a", None, 3) == (found.name, found.slot, found.partition)


@pytest.mark.parametrize(
    ("query", "kind", "hint"),
    [
        ("owner?", "BadKey", ""),
        ("owner?key=Mr.+Secret&partition=1", "BadKey", ""),
        ("owner?key=Mr.+Secret&key64=AAAA", "BadKey", ""),
        ("owner?key=%ff%feSecret", "BadKey", ""),
        ("owner?key64=Secret!", "BadKey", ""),
        ("owner?key64=S", "BadKey", ""),
        ("owner?key64=%E2%82%AC", "BadKey", ""),
        (f"owner?key=Secret{'x' * wire.KEY_MAX}", "BadKey", ""),
        (f"owner?key64={'A' * (2 * wire.KEY_MAX)}", "BadKey", ""),
        ("owner?partition=1111111111111111111", "BadKey", ""),
        (f"owner?partition=Secret{'x' * wire.KEY_MAX}", "BadKey", ""),
        ("owner?ky=Secret", "BadRequest", "did you mean key?"),
        ("owner?key=Secret&key=Secret", "BadRequest", "POST /v1/owners"),
        ("owner?Secret", "BadRequest", "encode each value"),
        ("owner?key64%3DMrSecret%26limit=1", "BadRequest", "There is key, key64, partition"),
        ("owner?" + "&".join(f"key{i}=1" for i in range(20)), "BadRequest", "encode each value"),
        ("share?partitions=MrSecret", "BadRequest", ""),
        ("moves?limit=MrSecret", "BadRequest", ""),
    ],
)
def test_a_query_without_sense_is_refused_and_not_repeated(agent: Running, query: str, kind: str, hint: str) -> None:
    with agent.client() as client:
        found = refused(client.get(f"/v1/{query}"))
    assert (kind, True, True) == (found.kind, found.remedy != "", hint in found.remedy)


def test_many_keys_have_their_owners_in_their_order(agent: Running) -> None:
    raw = [b"\xff", b"customer-7"]
    body: dict[str, list[str]] = {"keys": KEYS * 100, "keys64": [base64.urlsafe_b64encode(key).decode() for key in raw]}
    with agent.client() as client:
        found = msgspec.json.decode(client.post("/v1/owners", json=body).content, type=wire.OwnersView)
        assert "TooLarge" == refused(client.post("/v1/owners", json={"keys": [""] * 70_001})).kind
    asked: list[str | bytes] = [*KEYS * 100, *raw]
    assert [LAYOUT.slot(key) for key in asked] == [owner.slot for owner in found.owners]
    assert {"a"} == {owner.name for owner in found.owners}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b'{"keys": ["\xff"]}', "it is not JSON"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"keys": [' + b"[" * 100_000, "Expected `str`, got `array` - at `$.keys[0]`"),
        (b'{"keys": "Secret"}', "Expected `array`, got `str` - at `$.keys`"),
        (b'{"keys": ["Secret", 7]}', "Expected `str`, got `int` - at `$.keys[1]`"),
        (b'{"Secret": []}', "a field that is not known"),
    ],
)
def test_a_body_that_is_not_what_was_asked_for_is_refused(agent: Running, body: bytes, found: str) -> None:
    with agent.client() as client:
        refusal = refused(client.post("/v1/owners", content=body))
    assert ("BadRequest", found) == (refusal.kind, refusal.found)


def test_one_question_says_who_leads_what_and_whether_this_member_may_act(agent: Running) -> None:
    for asked in ({"partition": "3"}, {"key": "nightly"}):
        found, owner = get(agent, "leader", wire.LeaderView, **asked), get(agent, "owner", wire.OwnerView, **asked)
        assert ("a", True, LAYOUT, None) == (found.member, found.may_act, found.layout, found.refusal)
        assert (found.owner and (found.owner.partition, found.owner.term)) == (owner.partition, owner.term)
    counted = agent.agent.traffic.lookups.total()
    found = get(agent, "leader", wire.LeaderView)  # Only about this member and the layout, and so no look-up.
    assert ("a", False, LAYOUT, None, None) == (found.member, found.may_act, found.layout, found.owner, found.refusal)
    assert found.group == get(agent, "table", wire.TableView).address
    assert counted == agent.agent.traffic.lookups.total()


def test_a_lease_says_how_long_it_holds_and_is_not_waited_for_where_it_is_led(agent: Running) -> None:
    found = get(agent, "lease", wire.LeaseView, key="nightly")
    assert (True, "a", LAYOUT.partition("nightly")) == (found.leads, found.member, found.partition)
    assert (True, DRAIN) == (0 < found.remaining <= STEADY, found.drain_timeout)
    assert get(agent, "leadership", wire.LeaseView, partition="3", timeout="0").leads
    # A lease belongs to one role, and a timeout is a number of seconds.
    with agent.client() as client:
        for query in ("", "key=1&partition=2", "role=1"):
            assert refused(client.get(f"/v1/lease?{query}")).kind in {"BadKey", "BadRequest"}
        for timeout in ("-1", "nan", "inf", "1e9", "soon", "", "1" * 100):
            refusal = refused(client.get("/v1/leadership", params={"partition": "3", "timeout": timeout}))
            assert ("BadRequest", "timeout was to be a number from 0 to 3600") == (refusal.kind, refusal.wanted)


def test_table_members_status_and_history_tell_the_same_story(agent: Running) -> None:
    table, status = get(agent, "table", wire.TableView), get(agent, "status", wire.StatusView)
    (member,) = get(agent, "members", wire.MembersView).members
    assert [0] * PARTITIONS == [partition.owner for partition in table.partitions]
    assert ("a", PARTITIONS, 1, False) == (member.name, member.partitions, member.weight, member.drained)
    assert member.lease_left is None or 0 <= member.lease_left <= STEADY
    found = (status.agent, status.guarantee, status.lease, status.member, status.led, status.why)
    assert ("a", "exclusive", STEADY, "member", PARTITIONS, "") == found
    assert (PARTITIONS, 1) == (len(status.table.partitions), len(status.members))
    assert status.history
    move = get(agent, "moves", wire.MovesView).moves[0]
    assert (list(range(PARTITIONS)), None, "a") == (move.partitions, move.source, move.target)
    assert ("join", "a") == (move.cause, move.by)
    (event,) = [event for event in get(agent, "history", wire.HistoryView).events if event.cause == "join"]
    assert ("a", "a", event.offset) == (event.member, event.by, event.last)
    assert [(None, "a", PARTITIONS)] == [(moved.source, moved.target, moved.number) for moved in event.moved]
    assert list(range(PARTITIONS)) == event.moved[0].partitions
    assert [] == get(agent, "moves", wire.MovesView, limit="0").moves
    assert [] == get(agent, "history", wire.HistoryView, limit="0").events


def test_events_are_streamed_as_they_come_and_once_more_when_they_have_grown(tmp_path: Path) -> None:
    options = AgentOptions(socket=str(tmp_path / "agent.sock"))
    # Leases that survive on a busy machine: an expiry would be an event, too.
    with running(configured(tmp_path, lease=STEADY), options) as agent:
        agent.await_ready()  # Its own Join is in the history.
        told: list[dict[str, Any]] = []
        with agent.events("/v1/history/events") as events, Member(configured(tmp_path, name="b", lease=STEADY)):
            while not told or sum(moved["number"] for moved in told[-1]["moved"]) != PARTITIONS // 2:
                told.append(events.next_called("event"))
    assert {("join", "b")} == {(event["cause"], event["member"]) for event in told}
    assert 1 == len({event["offset"] for event in told})
    assert len(told) <= 3


def test_wishes_are_previewed_then_granted_and_pins_and_weights_are_shown_where_they_count(agent: Running) -> None:
    with Client(agent.options.socket, timeout=PATIENCE) as client:
        seen = client.drain("a", preview=True)
        assert not client.members().members[0].drained
        done = client.drain("a")
        assert client.members().members[0].drained
        for name in ("a", "long-gone"):  # The group need not know a name to forget it.
            client.drain(name, undo=True)
        assert not client.members().members[0].drained
        assert (False, True, seen.moves) == (seen.done, done.done, done.moves)
        for pinned, weight in (("a", 9), (None, None)):
            client.pin(3, pinned)
            client.weigh("a", weight)
            status = client.status()
            assert (pinned, weight or 1) == (status.table.partitions[3].pinned, status.members[0].weight)


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        ("pin", {"name": "b", "partition": 1}, "no member is called 'b': the members are a"),
        ("pin", {"name": "a"}, "pin needs a partition: give one"),
        ("unpin", {"partition": 1, "name": "a"}, "unpin takes no name: leave it out"),
        ("drain", {"name": "a", "weight": 3}, "drain takes no weight: leave it out"),
        ("drain", {}, "drain needs a name: give one"),
        ("load", {"loads": {}}, "load needs the load of at least one partition: give some"),
        ("load", {"loads": {"8": 1.0}}, "there is no partition 8: they count from 0 to 7"),
        ("load", {"loads": {"1": 1.0}, "layout": {"partitions": 4}}, "another layout than the group's: "),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(agent: Running, kind: str, body: Any, problem: str) -> None:
    with agent.client() as client:
        found = refused(client.post(f"/v1/{kind}", json=body))
    assert ("ConfigError", True) == (found.kind, problem in found.remedy), found
    assert {} == agent.agent.member.state.loads


def test_loads_are_previewed_then_granted_then_forgotten(agent: Running) -> None:
    loads = dict.fromkeys(range(PARTITIONS), 2.5)
    member = agent.agent.member
    with Client(agent.options.socket, timeout=PATIENCE) as client:
        assert not client.load(loads, preview=True).done
        assert {} == member.state.loads
        view = client.load(loads, layout=LAYOUT)
        assert (True, [], 1.0, 1.0, 1.0) == (view.done, view.moves, view.before, view.after, view.share)
        assert loads == member.state.loads
        assert (LAYOUT, 2.5) == (client.table().layout, client.table().partitions[3].load)
        client.load(dict.fromkeys(loads, 0.0))
    assert {} == member.state.loads


def test_loads_said_again_are_said_in_another_unit_unless_some_are_left_out(agent: Running) -> None:
    """Otherwise nothing would change, and assignment would not continue."""
    with Client(agent.options.socket, timeout=PATIENCE) as client:
        for loads, expected in (
            ({0: 3.0, 1: 1.0}, {0: 3.0, 1: 1.0}),
            ({0: 3.0, 1: 1.0}, {0: 6.0, 1: 2.0}),
            ({0: 3.0, 1: 1.0}, {0: 3.0, 1: 1.0}),
            ({0: 3.0}, {0: 3.0, 1: 1.0}),
            ({0: 1e15, 1: 1.0}, {0: 1e15, 1: 1.0}),
            ({0: 1e15, 1: 1.0}, {0: 5e14, 1: 0.5}),
            ({0: 0.0, 1: 0.0}, {}),
        ):
            client.load(loads)
            assert expected == agent.agent.member.state.loads


def test_a_job_reports_how_far_it_is_behind(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(agent.options.socket, timeout=PATIENCE) as client:
        assert KEPT == client.progress("totals", {0: 3, 1: 0}).kept
        client.progress("other", {})
        assert {"totals": {0: 3, 1: 0}} == client.status().behind
        for table, behind, found in (
            ("", {}, "1 to 200 printable"),
            ("totals", {PARTITIONS: 1}, f"partition {PARTITIONS} is beyond"),
            ("totals", {0: -1}, "ahead of its input"),
        ):
            with pytest.raises(ConfigError, match=found):
                client.progress(table, behind)
        for number in range(TABLES_MAX - 1):
            client.progress(f"table-{number}", {0: 1})
        with pytest.raises(ConfigError, match="there are 100 tables already"):
            client.progress("one more", {0: 1})
        client.progress("totals", {})
        client.progress("one more", {0: 1})
        assert TABLES_MAX == len(client.status().behind)
        monkeypatch.setattr("neli_router.agent.server.progress.KEPT", -1.0)
        assert {} == client.status().behind


@pytest.mark.parametrize(
    ("method", "path", "remedy"),
    [
        ("GET", "/v1/ownr", "/v1/owner"),
        ("GET", "/v1/owner/", "/v1/owner"),
        ("POST", "/v1/owner", "send GET"),
        ("GET", "/v1/drain", "send POST"),
        ("DELETE", "/health", "send GET"),
        ("OPTIONS", "/v1/status", "send GET"),
        ("HEAD", "/v1/events", ""),
        ("GET", "/assets/../wire.py", ""),
        ("GET", "/assets/%2e%2e/chronicle.py", ""),
    ],
)
def test_an_unknown_path_or_method_says_what_there_is(agent: Running, method: str, path: str, remedy: str) -> None:
    with agent.client() as client:
        answer = client.request(method, path)
    assert 404 == answer.status_code
    if method != "HEAD":
        assert "NotFound" == refused(answer).kind
        assert remedy in refused(answer).remedy
    assert "access-control-allow-origin" not in answer.headers


def test_health_metrics_and_the_page_are_served_and_the_page_is_never_out_of_date(agent: Running) -> None:
    with agent.client() as client:
        answers = [client.get("/health"), client.head("/health"), client.get("/ready"), client.get("/metrics")]
        page = client.get("/")
        again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert [200] * 4 == [answer.status_code for answer in answers]
    assert "neli_partitions_led 8.0" in answers[-1].text
    assert answers[-1].headers["content-type"].startswith("text/plain; version=0.0.4")
    assert (200, "text/html; charset=utf-8") == (page.status_code, page.headers["content-type"])
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert ("no-cache", "nosniff") == (page.headers["cache-control"], page.headers["x-content-type-options"])
    assert (304, b"") == (again.status_code, again.content)
