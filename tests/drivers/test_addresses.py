"""Addresses in PostgreSQL and Redis: their parts, their problems, and no secrets in anything that is shown.

one address, any spelling --> parse --> parts       --> for libpq, with the secrets
                                  '---> a sentence for each problem
"""

from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.drivers.addresses import problems_of, public_address
from neli_router.drivers.ledgers.postgresql import address as postgresql_address
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.redis import address as redis_address
from neli_router.drivers.ledgers.redis.address import RedisAddress


def parse(url: str) -> tuple[PostgresqlAddress | RedisAddress | None, list[str]]:
    scheme, _, rest = url.partition(":")
    driver = postgresql_address if scheme in postgresql_address.SCHEMES else redis_address
    found: tuple[PostgresqlAddress | RedisAddress | None, list[str]] = driver.parse(scheme, rest)
    return found


@pytest.mark.parametrize(
    ("url", "address", "public"),
    [
        (
            "redis://localhost/jobs",
            RedisAddress("redis", "jobs", (("localhost", 6379),)),
            "redis://localhost:6379/jobs",
        ),
        (
            "rediss://u:p%40%2F@[::1]:7000/jobs?db=3&ca=/ca.crt",
            RedisAddress("rediss", "jobs", (("::1", 7000),), "", 3, "", "u", "p@/", {"ca": "/ca.crt"}),
            "rediss://[::1]:7000/jobs?db=3",
        ),
        (
            "redis+unix:///run/redis.sock?group=jobs",
            RedisAddress("redis+unix", "jobs", path="/run/redis.sock"),
            "redis+unix:///run/redis.sock?group=jobs",
        ),
        (
            "redis+sentinel://:s@a:1,b/jobs?service=main&sentinel_password=w",
            RedisAddress(
                "redis+sentinel", "jobs", (("a", 1), ("b", 26379)), "", 0, "main", "", "s", {"sentinel_password": "w"}
            ),
            "redis+sentinel://a:1,b:26379/jobs?service=main",
        ),
        (
            "postgresql://localhost/app?group=jobs",
            PostgresqlAddress("jobs", "app", (("localhost", 5432),)),
            "postgresql://localhost:5432/app?group=jobs",
        ),
        (
            "postgresql+psycopg2://u:p%40%2F+@[::1]:7000,b/a%20b?schema=s2&sslmode=require&group={jobs}",
            PostgresqlAddress(
                "{jobs}", "a b", (("::1", 7000), ("b", 5432)), "s2", "", "u", "p@/+", {"sslmode": "require"}
            ),
            "postgresql://[::1]:7000,b:5432/a%20b?group={jobs}&schema=s2",
        ),
        (
            "postgres://u@/app?host=/var/run/postgresql&group=jobs&password=a+%26",
            PostgresqlAddress("jobs", "app", (("/var/run/postgresql", 5432),), user="u", password="a+&"),  # noqa: S106
            "postgresql:///app?group=jobs&host=/var/run/postgresql",
        ),
        (
            "postgresql:///?host=/run,::1,b:3&port=1,2,4&dbname=app&group=jobs&schema=neli",
            PostgresqlAddress("jobs", "app", (("/run", 1), ("::1", 2), ("b", 3))),
            "postgresql:///app?group=jobs&host=/run,::1,b&port=1,2,3",
        ),
        (
            "postgresql:///?service=main&group=jobs&user=u",
            PostgresqlAddress("jobs", service="main", user="u"),
            "postgresql:///?group=jobs&service=main",
        ),
    ],
)
def test_an_address_is_taken_apart(url: str, address: PostgresqlAddress | RedisAddress, public: str) -> None:
    assert (address, []) == parse(url)
    assert public == address.public
    again, problems = parse(public)
    assert again is not None, problems
    assert replace(address, user="", password="", options={}) == again


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "one server was wanted"),
        ("redis://host", "a group was wanted"),
        ("redis://host/", "a group was wanted"),
        ("redis://host/a b", "a group was wanted"),
        ("redis://host:99999/jobs", "one server was wanted"),
        ("redis://a,b/jobs", "one server was wanted"),
        ("redis://host/jobs?db=x", "db must be the number"),
        ("redis://host/jobs?ca=/ca.crt", "option 1 is unknown in redis: There is db"),
        ("rediss://host/jobs?cert=/c", "cert and key belong together"),
        ("redis+unix://host/run/redis.sock?group=jobs", "a socket's path was wanted"),
        ("redis+unix:///run/redis.sock", "a group was wanted"),
        ("redis+sentinel://host/jobs", "say which, as in ?service=mymaster"),
        ("redis://user:pa/ss@host/jobs", "write / as %2F"),
        ("postgresql://", "servers were wanted as HOST:PORT"),
        ("postgresql:///app?group=jobs&port=7000", "or the folder of a socket, as in postgresql:///jobs?host=/var"),
        ("postgresql://a,/app?group=jobs", "servers were wanted"),
        ("postgresql://a:0/app?group=jobs", "servers were wanted"),
        ("postgresql:///app?group=jobs&service=main&host=a&port=x", "servers were wanted"),
        ("postgresql:///app?group=jobs&service=main&port=1", "servers were wanted"),
        ("postgresql:///app?group=jobs&host=a,b,c&port=1,2", "servers were wanted"),
        ("postgresql://%2Frun/app?group=jobs", "servers were wanted"),
        ("postgres://host/app", "a group was wanted, as in postgres://localhost/DATABASE?group=jobs"),
        ("postgresql://host?group=jobs", "a database was wanted"),
        ("postgresql://host/app/jobs?group=jobs", "a database was wanted"),
        ("postgresql://host/a%0A?group=jobs", "a database was wanted"),
        ("postgresql://host/" + "%C3%A4" * 32 + "?group=jobs", "a database was wanted"),
        ("postgresql://host/app?group=jobs&schema=Neli", "schema must be 1 to 63"),
        ("postgresql://host/app?group=jobs&schema=pg_neli", "schema must be 1 to 63"),
        ("postgresql://u:p@host/app?group=jobs&user=v", "user is given before the ? and after it"),
        ("postgresql://host/app?group=jobs&sslmode=on", "sslmode must be one of allow, disable, prefer"),
        ("postgresql://host/app?group=jobs&target_session_attrs=any", "target_session_attrs cannot be chosen"),
        ("postgresql://host/app?group=jobs&sslrootcrt=/ca.crt", "option 2 is unknown in postgresql: did you mean ssl"),
        ("postgresql://u:%ff@host/app?group=jobs", "a character that cannot be sent"),
        ("postgresql://u:%00@host/app?group=jobs", "a character that cannot be sent"),
        ("postgresql:///?service=a%0A&group=jobs", "a character that cannot be sent"),
        ("postgresql://user:pa/ss@host/app?group=jobs", "write / as %2F"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_a_sentence(url: str, said: str) -> None:
    assert any(said in problem for problem in problems_of(url)), problems_of(url)


@pytest.mark.parametrize("scheme", [*redis_address.SCHEMES, *postgresql_address.SCHEMES])
def test_no_secret_of_an_address_is_ever_shown(scheme: str) -> None:
    """`tests/config/test_config.py` has addresses with problems."""
    place = "/run/redis.sock?group=jobs" if scheme == "redis+unix" else "host/jobs?db=1"
    more = "&service=main&sentinel_password=hidden" if "sentinel" in scheme else ""
    if scheme in postgresql_address.SCHEMES:
        place, more = "host/app?group=jobs", "&passfile=hidden&sslkey=hidden"
    url = f"{scheme}://hidden-user:hidden@{place}{more}"
    at, problems = parse(url)
    assert at is not None, problems
    ownership = url if scheme in redis_address.SCHEMES else None
    config = Config(url, protocol=Induction(accept_rewinds=True), ownership=ownership)
    assert "hidden" not in " ".join([repr(at), at.public, public_address(url), repr(config)])


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15)


databases = st.from_regex(postgresql_address.DATABASE, fullmatch=True)


@given(text, text, databases.filter(lambda name: len(name.encode()) <= postgresql_address.DATABASE_MAX), text)
def test_libpq_gets_each_part_as_it_was_meant(user: str, password: str, database: str, key: str) -> None:
    parts = {"user": user, "password": password, "dbname": database, "sslkey": key}
    coded = {name: quote(part, safe="") for name, part in parts.items()}
    options = "&".join(f"{name}={part}" for name, part in coded.items())
    found, problems = parse(f"postgresql:///?group=jobs&host=a,::1&port=1,5432&{options}")
    before = "postgresql://{user}:{password}@a:1,[::1]/{dbname}?group=jobs&sslkey={sslkey}".format_map(coded)
    assert (found, problems) == parse(before)
    assert isinstance(found, PostgresqlAddress), problems
    ours = {"host": "a,::1", "port": "1,5432", "target_session_attrs": "read-write"}
    assert {**parts, **ours} == conninfo_to_dict(found.conninfo())
