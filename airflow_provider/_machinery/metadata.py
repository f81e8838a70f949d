"""The ledger in Airflow's own database: its address, made of the one that Airflow connects to.

    [database] sql_alchemy_conn = postgresql+psycopg2://airflow:secret@db/airflow?sslmode=require&keepalives=1
    [neli] ledger = metadata?group=prices --> the same server, login, protection and database; this group

SQLAlchemy and libpq spell the same address differently: the driver in the scheme, a plus sign for a space, a `host` for
each of several servers. So SQLAlchemy takes the address apart. Each part becomes an option of the ledger's address,
because everything may stand in an option, quoted.

Options about how Airflow uses its connections are left out: a ledger decides that on its own. Any other option that the
ledger does not know may be about protection, so it is refused. The result holds the password of Airflow's database: it
belongs in an environment, and never on a command line or in a message.
"""

from urllib.parse import parse_qsl, quote, urlencode

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from neli_router.drivers.addresses import problems_of
from neli_router.errors import ConfigError

__all__ = ["ledger_address"]

METADATA = "metadata"

GROUP = "airflow"

POSTGRESQL = ("postgres", "postgresql")
"""Airflow accepts the older spelling, too."""

OF_AIRFLOW = frozenset(
    {"application_name", "client_encoding", "connect_timeout", "fallback_application_name", "keepalives"}
    | {"keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "options"}
    | {"prepare_threshold", "target_session_attrs", "tcp_user_timeout"}
)
"""`options` sets parameters of a session, such as its search_path. The ledger names its schema in each statement."""


def ledger_address(said: str, connection: str) -> str:
    """The address of the ledger that `[neli] ledger` says, where `connection` is `[database] sql_alchemy_conn`.

    Raises ConfigError. No message shows a password.
    """
    name, _, more = said.partition("?")
    if name != METADATA:
        if problems := problems_of(said):
            raise ConfigError([f"[neli] {problem}" for problem in problems])
        return said
    try:
        url = make_url(connection)
    except (ArgumentError, ValueError):
        url = None  # Its message may show a part of the password.
    if url is None or url.get_backend_name() not in POSTGRESQL:
        found = "an address that SQLAlchemy cannot read" if url is None else url.get_backend_name()
        wanted = f"[neli] ledger={METADATA} needs a PostgreSQL in [database] sql_alchemy_conn, and that is {found}"
        raise ConfigError([f"{wanted}: name the ledger by its own address, such as sqlite:///var/lib/jobs/ledger.db"])
    parts = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "dbname": url.database}
    options = {name: value for name, value in url.query.items() if name not in OF_AIRFLOW}
    given = {**parts, "group": GROUP, **options, **dict(parse_qsl(more.replace("+", "%2B"), keep_blank_values=True))}
    spelled = {
        name: value if isinstance(value, str | int) else ",".join(value) for name, value in given.items() if value
    }
    address = f"postgresql:///?{urlencode(spelled, quote_via=quote)}"
    if problems := problems_of(address):
        raise ConfigError([f"[neli] ledger={METADATA}, by [database] sql_alchemy_conn: {one}" for one in problems])
    return address
