"""Arguments: the choices of a task or a trigger, and whether they make sense.

    a literal ----------------------------- judged when the Dag is read: a Dag import error
    a template, or another task's output -- judged once it is rendered: the task fails

**Which role.** `key` is any text, also "42". `partition` is a number; a template gives it as text. `role` is a name,
which is a key, or the number of a partition; as a text of digits it might be either, and is refused. With none of them,
it is the run's `partition_key`: a partition if our mapper made the run, and otherwise a key.

**Misspelled roles.** Some member leads any name, also one that no Dag was to have. So a misspelled name shows only as
work that runs on the wrong host. If `[neli] roles` lists the roles, any other name is an import error, and so is a
number beyond `[neli] partitions`.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.providers.common.compat.sdk import conf

from airflow_provider.exceptions import NotLeadingHere
from neli_router.agent.wire import KEY_MAX, OwnerView
from neli_router.core.keyspace import PARTITIONS, SLOTS, Layout, numbered
from neli_router.errors import BadKey

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import DAG, Context

__all__ = [
    "Expected",
    "Otherwise",
    "Place",
    "RoleWanted",
    "WhenAway",
    "WhenNotLeading",
    "asked_role",
    "by_default",
    "configured_layout",
    "fits_an_address",
    "layout_of_run",
    "led_text",
    "require_choice",
    "require_literals",
    "require_sense",
    "role_for",
    "seconds_of",
    "spelled_layout",
]

Expected = Literal["here", "anybody"] | str  # noqa: PYI051 - the two words mean more than a name.
"""The member to wait for: this host's, any, or the one of that name."""

Place = tuple[object, object, object]
"""The role, the key and the partition of a task. At most one is not None."""

Otherwise = Literal["wait", "skip", "fail"]
"""The reaction if a member other than the expected one leads."""

WhenAway = Literal["wait", "fail"]
"""The reaction if the agent or the ledger cannot be asked."""

WhenNotLeading = Literal["skip", "fail", "wait", "reschedule"]
"""The reaction of a task that this host does not lead."""

CHOICES = {"otherwise": Otherwise, "when_away": WhenAway, "when_not_leading": WhenNotLeading}

RENDERED = "see what its template was rendered to in Airflow's page"

SECTION = "neli"


@dataclass(frozen=True)
class RoleWanted:
    """The role that a task wants to hold, and what it does if it cannot: see the arguments of LeaderMixin."""

    place: Place
    conn_id: str
    when_not_leading: WhenNotLeading = "skip"
    when_away: WhenAway | None = None
    timeout: float | None = None
    poke_interval: float = 60.0
    push_term: bool = False
    end_within: float | None = 0.0

    def if_away(self) -> WhenAway:
        return self.when_away or ("wait" if self.when_not_leading in {"wait", "reschedule"} else "fail")

    def in_vain(self, found: str) -> NotLeadingHere:
        limit = "in time" if self.timeout is None else f"within {self.timeout:g} s"
        return NotLeadingHere(
            f"this host was to lead the task's role {limit}",
            found,
            "wait longer, or see with `neli members` and `neli table` who leads, and why",
        )


def configured_layout() -> Layout:
    """The layout of the `[neli]` section: `slots`, `partitions` and `tags`. Raises ConfigError if it is invalid."""
    return Layout(
        conf.getint(SECTION, "slots", fallback=SLOTS),
        conf.getint(SECTION, "partitions", fallback=PARTITIONS),
        conf.getboolean(SECTION, "tags", fallback=False),
    )


def by_default(dag: "DAG | None") -> str:
    """How to read the `partition_key` of a run of `dag`: as a partition if our mapper made it, or as a key."""
    return "key" if layout_of_run(dag) is None else "partition"


def layout_of_run(dag: "DAG | None") -> Layout | None:
    """The layout that gives the runs of `dag` their `partition_key`, or None if no SlotPartitionMapper does. `dag` is
    the Dag in a task's context."""
    schedule = getattr(dag, "timetable", None)
    mappers = [getattr(schedule, "default_partition_mapper", None)]
    mappers += (getattr(schedule, "partition_mapper_config", None) or {}).values()
    for mapper in mappers:
        last = (getattr(mapper, "mappers", None) or [mapper])[-1] if type(mapper).__name__ == "ChainMapper" else mapper
        if isinstance(layout := getattr(last, "layout", None), Layout):
            return layout
    return None


def spelled_layout(layout: Layout) -> dict[str, Any]:
    """The layout in the form that Airflow stores with a Dag."""
    return {name: getattr(layout, name) for name in layout.__struct_fields__}


def asked_role(
    role: object = None, key: object = None, partition: object = None, *, context: "Context | None" = None
) -> int | str:
    """The key or the partition that a task means. By default, that is what `by_default` says of the run in `context`.

    A template may have produced any value. Raises BadKey unless exactly one is given that makes sense.
    """
    given = {name: it for name, it in (("role", role), ("key", key), ("partition", partition)) if it is not None}
    if not given and context is not None and context.get("partition_key") is not None:
        given = {by_default(context.get("dag")): context.get("partition_key")}
    if len(given) != 1:
        raise BadKey(
            "one of role, key and partition was wanted",
            f"{' and '.join(given)} were given" if given else "none was given, and this run has no partition_key",
            "give the task exactly one, or start the run for a partition",
        )
    ((name, value),) = given.items()
    if name != "key" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise BadKey(f"a {name} was wanted", f"a template or a program gave a {type(value).__name__}", RENDERED)
    text = value.strip()
    if not text or value == "None":
        raise BadKey(f"a {name} was wanted", "the text is empty, or None", RENDERED)
    if len(value) > KEY_MAX:
        raise BadKey(
            f"a {name} of at most {KEY_MAX} characters was wanted", f"it has {len(value)}", "take a shorter one"
        )
    if name == "partition":
        return numbered(text)
    if name == "role" and _is_number(text):
        raise BadKey(
            "a role was wanted: a name, or the number of a partition",
            "this is a number as text, which may mean a key or a partition",
            "say which: key=... or partition=...",
        )
    return value


def fits_an_address(asked: int | str) -> bool:
    """Whether a request to an agent can name it. A key that looks like a number, or is too long, does not fit."""
    # Percent-encoded, a character takes up to 12.
    return isinstance(asked, int) or not (_is_number(asked.strip()) or len(asked) > KEY_MAX // 12)


def role_for(layout: Callable[[], Layout], asked: int | str) -> int | str:
    """A key or a partition, as an agent takes it: a key that does not fit becomes its partition by the group's
    layout."""
    return asked if fits_an_address(asked) else layout().partition_of_role(asked)


def require_sense(place: Place, **chosen: object) -> None:
    """Raises BadKey for arguments that no leader can ever fulfil: the task would wait until its time is over. The
    arguments by name are `expect` and those of CHOICES."""
    asked_role(*place)
    _require_choices(chosen)


def require_literals(place: Place, **chosen: object) -> None:
    """Like `require_sense`, when the Dag is read. Templates and outputs of other tasks are left for later."""
    given = [one for one in place if one is not None]
    if len(given) > 1 or (given and _is_literal(given[0])):
        asked = asked_role(*place)
        if place[0] is not None:
            _require_known(asked)
    _require_choices({name: value for name, value in chosen.items() if _is_literal(value)})


def require_choice(name: str, value: object, known: Iterable[str]) -> None:
    if value not in (known := tuple(known)):
        raise BadKey(f"`{name}` was wanted to be {' or '.join(known)}", f"it is {value!r:.40}", "correct it")


def seconds_of(name: str, value: float | timedelta | None, *, least: float = 0.0) -> float | None:
    """A time that may be given as a timedelta. Raises ValueError unless it is more than `least`."""
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is not None and not (type(seconds) in {int, float} and seconds > least):
        raise ValueError(f"{name} must be seconds or a timedelta, and more than {least:g} s, got {value!r:.40}")
    return None if seconds is None else float(seconds)


def led_text(place: Place, view: OwnerView, waiting_for: str) -> str:
    """A line for the log: the leader, and the member that is waited for. It shows no key, which may be personal."""
    role, key, _ = place
    partition = f"partition {view.partition}"
    name = "the key" if key is not None else role
    what = f"{name} ({partition})" if isinstance(name, str) else partition
    leader = f"is led by {view.name}, under term {view.term}" if view.name is not None else f"has no leader: {view.why}"
    awaited = {"anybody": "a leader", "here": "this host", view.name: f"{view.name} to begin"}
    return f"{what} {leader}; waiting for {awaited.get(waiting_for, waiting_for)}"


def _require_choices(chosen: dict[str, Any]) -> None:
    for name, value in chosen.items():
        if name == "expect":
            if not isinstance(value, str) or not value.strip() or value == "None":
                raise BadKey(
                    'the name of a member, "here" or "anybody" was wanted',
                    "`expect` is empty, or None, or not a text",
                    f"name one, and {RENDERED}",
                )
        else:
            require_choice(name, value, get_args(CHOICES[name]))


def _require_known(role: int | str) -> None:
    roles = conf.get(SECTION, "roles", fallback="").replace(",", " ").split()
    if not roles:
        return
    if isinstance(role, int):
        most = configured_layout().partitions
        if not 0 <= role < most:
            raise BadKey(
                f"a partition below {most} was wanted, as `[neli] partitions` says", f"this is {role}", "correct it"
            )
    elif role not in roles:
        near = difflib.get_close_matches(role, roles, 1)
        raise BadKey(
            "one of the roles in `[neli] roles` was wanted",
            f"{role!r:.60} is not among them",
            f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(roles)):.200}",
        )


def _is_literal(value: object) -> bool:
    """Whether it is final when the Dag is read."""
    return not hasattr(value, "resolve") and not (isinstance(value, str) and ("{{" in value or "{%" in value))


def _is_number(text: str) -> bool:
    return text.lstrip("+-").isdecimal()
