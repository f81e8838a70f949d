"""The address of a consumer group: what it may and may not contain, and that all problems are reported together."""

import pytest

from neli_router.drivers.consumer_groups.address import GroupAddress, parse


def read(rest: str) -> GroupAddress:
    address, problems = parse(rest)
    assert address is not None, problems
    return address


def problems_of(rest: str) -> list[str]:
    address, problems = parse(rest)
    assert address is None
    return problems


def test_the_group_names_its_topic_as_goneli_does_unless_another_is_said() -> None:
    assert ("jobs", "jobs.neli") == (read("//h:9092/jobs").at.group, read("//h:9092/jobs").at.topic)
    address = read("//h:9092/jobs?topic=shared&partitions=12&replication=2")
    assert ("shared", 12, 2) == (address.at.topic, address.partitions, address.at.replication)
    assert {"bootstrap.servers": "h:9092"} == address.at.client
    assert {"partition.assignment.strategy": "cooperative-sticky"} == address.sharing


@pytest.mark.parametrize(
    ("query", "classic", "eager"),
    [
        ("", True, False),
        ("?partition.assignment.strategy=cooperative-sticky", True, False),
        ("?partition.assignment.strategy=range,roundrobin", True, True),
        ("?group.protocol=consumer", False, False),
        ("?group.protocol=classic&partition.assignment.strategy=range", True, True),
    ],
)
def test_the_way_to_share_partitions_is_read(query: str, classic: bool, eager: bool) -> None:
    address = read(f"//h:9092/jobs{query}")
    assert (classic, eager) == (address.classic, address.eager)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("partitions=0", "partitions must be a whole number"),
        ("partitions=many", "partitions must be a whole number"),
        ("topic=a/b", "topic must be 1 to 200 letters"),
        ("group.protocol=newest", "group.protocol must be classic or consumer"),
        ("partition.assignment.strategy=sticky", "must be of range, roundrobin, cooperative-sticky"),
        ("partition.assignment.strategy=range,cooperative-sticky", "must agree on one"),
        ("group.protocol=consumer&partition.assignment.strategy=range", "leave one out"),
        ("session.timeout.ms=100", "the setting session.timeout.ms cannot be chosen"),
        ("group.instance.id=a", "would keep its partitions until its session ends"),
        ("auto.offset.reset=earliest", "old heartbeats prove nothing"),
    ],
)
def test_a_wrong_option_is_named(query: str, expected: str) -> None:
    (problem,) = problems_of(f"//h:9092/jobs?{query}")
    assert expected in problem


def test_all_problems_are_named_at_once() -> None:
    assert 3 == len(problems_of("//h:9092/jobs?partitions=0&topic=&group.protocol=x"))


def test_no_secret_is_shown() -> None:
    address = read("//user:pa55@h:9092/jobs?ssl.key.password=pa56")
    assert "kafka://h:9092/jobs" == address.at.public
    assert "pa5" not in repr(address)
