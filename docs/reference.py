"""The pages of docs/reference/ that follow from declarations, and the site that all pages make.

    options, commands, metrics, __all__ --> options.md, commands.md, metrics.md, python/*.md     written here
    names of errors and log events -------> errors.md, events.md                                 written by hand
    README.md, docs/, dags/ ... --copied--> .make/site/source --zensical, strict--> .make/site/html

    python -m docs.reference           writes the pages
    python -m docs.reference --site    builds the site as well: `make docs`

The pages are committed, so a reader of the repository has them without a build. tests/test_docs.py compares them with
what this module would write, and the pages by hand with the names in the code.

Everything is read from source text or from declarations that import no driver and no framework: neither Spark nor
Airflow has to be installed.
"""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from neli_router.agent.openapi import ENDPOINTS, document
from neli_router.agent.server.metrics import COUNTS
from neli_router.agent.wire import STATUS_OF
from neli_router.commands.cli import COMMANDS, main
from neli_router.config.config import Config
from neli_router.config.options import OPTIONS, Option
from neli_router.config.protocols import PROTOCOLS, text_of
from neli_router.core import exit_codes

__all__ = ["PUBLIC", "ROOT", "build", "errors", "events", "pages", "public_names", "undocumented"]

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
SITE = ROOT / ".make" / "site"

COPIED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "SECURITY.md",
    "tests/README.md",
    "dags",
    "docs",
    "examples",
    "tests/vectors",
)
"""The site shows these, or its pages link to them."""

PUBLIC: Mapping[str, str] = {
    "neli_router": "Members, routers and their configuration.",
    "neli_router.errors": "All that the library raises. [Errors](../errors.md) says what to do about each.",
    "neli_router.agent": "Clients of the host's agent.",
    "neli_router.fence": "Fences in SQL. `neli_router.fence.redis`, `delta` and `iceberg` are for those.",
    "neli_router.fence.delta": "Fenced Delta tables.",
    "neli_router.fence.iceberg": "Fenced Iceberg tables.",
    "neli_router.fence.redis": "Fences in Redis.",
    "neli_router.spark": "Slots, placement and fenced writes for PySpark.",
    "neli_router.testing": "A group in memory, for the tests of your own program.",
    "airflow_provider.sensors.neli": "Sensors.",
    "airflow_provider.operators.leader": "Operators that run Python only on the owner's host.",
    "airflow_provider.operators.neli": "Operators for the group itself.",
    "airflow_provider.operators.spark": "`spark-submit`, only on the owner's host.",
    "airflow_provider.operators.sql": "Fenced SQL.",
    "airflow_provider.triggers.neli": "Triggers.",
    "airflow_provider.hooks.neli": "The hook.",
}
"""Module -> what it is for. `__all__` of each is the public interface."""

EVENT = re.compile(r"[a-z]+(\.[a-z_]+)+")
LOGGING = frozenset({"Notice", "_note", "error", "info", "log", "note", "warning"})
"""Functions that take the name of a log event."""

OPTIONS_INTRO = """# Options

Each option has one name in every layer. A flag comes before a variable, and a variable before the file `neli.toml`. In
Python, `Config(...)` takes the options of the member, and a protocol's class takes its own:
`Config(..., protocol=Term(replicas=5))`. `neli config` shows the values that count, and where each comes from."""

METRICS_INTRO = """# Metrics

An agent serves them at `/metrics`, in the text format of Prometheus, where counters end with `_total`. A group without
a ledger has no records. A group of peers has the metrics of peers as well.

| metric | type | labels | what it is |
| --- | --- | --- | --- |"""

HTTP_INTRO = """# HTTP interface

The agent answers at its Unix socket, and over TCP if `--listen` names an address. `GET /v1/openapi.json` has the same
as an OpenAPI 3.1 document, with which other languages can make a client. A stream is a `text/event-stream`: its answer
is the data of each event, and the names of its events follow.

A request has exactly one of `key`, `key64` (URL-safe base64) and `partition`. `partitions` are such as `0,8-15`.

| request | parameters or body | answer | what it does |
| --- | --- | --- | --- |"""

SECTIONS = {"": "The member", "layout": "The layout", "peers": "Peers", "agent": "The agent"}

OF_PROTOCOLS = {one.name for kind in PROTOCOLS.values() for one in fields(kind)}
WHOLE = {one.name: text_of(one) for kind in PROTOCOLS.values() for one in fields(kind)}
WHOLE |= {one.name: text_of(one) for one in fields(Config)}
"""An option's name -> its whole text; the help of a command has the first sentence."""


def pages() -> dict[str, str]:
    """Path below docs/reference -> text."""
    made = {"options.md": _options(), "commands.md": _commands(), "http.md": _http(), "metrics.md": _metrics()}
    return made | {f"python/{module}.md": _module(module) for module in PUBLIC}


# Options


def _options() -> str:
    lines = [OPTIONS_INTRO]
    for section, title in SECTIONS.items():
        lines += ["", f"## {title}", "", "| in the file | flag and variable | what it is |"]
        lines += ["| --- | --- | --- |"]
        lines += [_option(option) for option in OPTIONS.values() if option.section == section]
    return "\n".join(lines) + "\n"


def _option(option: Option) -> str:
    default = option.default if isinstance(option.default, str | int | float) else ""
    shown = "" if default in ("", None) or default != default else f" Default: `{str(default).lower()}`."  # noqa: PLR0124 - NaN.
    kind = option.kind.metavar.lower() or "switch"
    text = WHOLE.get(option.name, option.help) if not option.section else option.help
    if option.name in OF_PROTOCOLS:
        text = f"{option.help.partition(': ')[0]}: {text}"
    return f"| `{option.key}` | `{option.flag}` {kind}, `{option.variable}` | {_cell(text)}{shown} |"


# Commands


def _commands() -> str:
    lines = [
        "# Commands",
        "",
        "## Exit codes",
        "",
        "A code never changes its meaning.",
        "",
        "| code | name | what it says |",
        "| --- | --- | --- |",
        *(f"| {code} | `{name}` | {_cell(text)} |" for name, code, text in _exit_codes()),
    ]
    with click.Context(main, info_name="neli", terminal_width=100, **main.context_settings) as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None
            lines += _helped(command, context, name)
    return "\n".join(lines) + "\n"


def _helped(command: click.Command, parent: click.Context, name: str) -> Iterator[str]:
    """The help of a command, and of each command below it."""
    with click.Context(command, parent=parent, info_name=name, terminal_width=100) as context:
        yield from ("", f"## {context.command_path}", "", "```text", command.get_help(context), "```")
        for below, one in getattr(command, "commands", {}).items():
            yield from _helped(one, context, below)


def _exit_codes() -> Iterator[tuple[str, int, str]]:
    """Name, code and text of each, as the module declares them."""
    body = ast.parse(Path(exit_codes.__file__).read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id.startswith("EXIT_")
        ):
            name = node.targets[0].id
            text = _literal(after.value) if isinstance(after, ast.Expr) else ""
            yield name, getattr(exit_codes, name), text or "Done."


# Metrics


def _metrics() -> str:
    lines = [METRICS_INTRO]
    for name, kind, labels, text in sorted(_families()):
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


KINDS = {
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "_by_outcome": "counter",
    "_gauge": "gauge",
}


def _families() -> Iterator[tuple[str, str, list[str], str]]:
    """Name, type, labels and help of each metric, as the source of the agent says them."""
    yield from ((name, "counter", [], text) for _, name, text in COUNTS)
    tree = ast.parse((ROOT / "neli_router" / "agent" / "server" / "metrics.py").read_text(encoding="utf-8"))
    texts: dict[str, ast.expr] = {}
    for node in _in_order(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id] = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            name, text, *_ = node.args
            given = {word.arg: word.value for word in node.keywords}.get("labels")
            given = texts[given.id] if isinstance(given, ast.Name) else given
            labels = (
                ["outcome"] if node.func.id == "_by_outcome" else [] if given is None else list(ast.literal_eval(given))
            )
            if isinstance(name, ast.Constant):
                yield (
                    _literal(name),
                    KINDS[node.func.id],
                    labels,
                    _literal(texts[text.id] if isinstance(text, ast.Name) else text),
                )


def _in_order(tree: ast.AST) -> list[ast.AST]:
    """An assignment comes before whatever uses it."""
    return sorted(ast.walk(tree), key=lambda node: (getattr(node, "lineno", 0), not isinstance(node, ast.Assign)))


# HTTP


def _http() -> str:
    lines = [HTTP_INTRO]
    for (method, path), one in ENDPOINTS.items():
        asked = [f"`{name}`" for name in one.parameters or ()] + ([] if one.asked is None else [_type(one.asked)])
        answer = _type(one.answer) + (f": {', '.join(f'`{name}`' for name in one.events)}" if one.events else "")
        lines.append(f"| `{method} {path}` | {', '.join(asked)} | {answer} | {_cell(one.summary)} |")
    lines += [
        "",
        "`Refusal` goes with these statuses: " + ", ".join(f"`{kind}` {code}" for kind, code in STATUS_OF.items()),
    ]
    lines[-1] += "; all others 503, which may pass without anybody's doing."
    named = "|".join(document("")["components"]["schemas"])
    for node in ast.parse((ROOT / "neli_router" / "agent" / "wire.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(named, node.name):
            lines += _wired(node)
    return "\n".join(lines) + "\n"


def _wired(node: ast.ClassDef) -> Iterator[str]:
    """A class of the wire: its docstring, and a row for each field."""
    base = next((base.id for base in node.bases if isinstance(base, ast.Name) and base.id.endswith("View")), "_View")
    own = "" if base == "_View" else f" The fields of {base} come first."
    yield from ("", f"### {node.name}", "", _cell(ast.get_docstring(node) or "") + own, "")
    yield from ("| field | type | default | |", "| --- | --- | --- | --- |")
    for field, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = (
                _literal(after.value) if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            )
            default = "" if field.value is None else f"`{ast.unparse(field.value)}`"
            yield f"| `{field.target.id}` | `{_cell(ast.unparse(field.annotation))}` | {default} | {_cell(text)} |"


def _type(kind: Any) -> str:
    if hasattr(kind, "__struct_fields__"):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return "text" if kind is str else "JSON"


# Python


def _module(module: str) -> str:
    told = [f"# {module}", "", PUBLIC[module]]
    for name in public_names(module):
        told += ["", f"::: {module}.{name}"]
    return "\n".join(told) + "\n"


def public_names(module: str) -> list[str]:
    """`__all__` of one of our modules, from its source text."""
    place = ROOT.joinpath(*module.split("."))
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError(f"{module} has no __all__")


def undocumented() -> set[str]:
    """Public classes and functions without a docstring."""
    defined: dict[str, bool] = {}
    for tree in _sources():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):  # After its overloads.
                defined[node.name] = ast.get_docstring(node) is not None
    return {name for module in PUBLIC for name in public_names(module) if not defined.get(name, True)}


# Names that the pages by hand must have


def errors() -> set[str]:
    """The names of all classes that the product raises on purpose."""
    known = {"NeliError"}
    classes = [
        (node.name, {base.id for base in node.bases if isinstance(base, ast.Name)})
        for tree in _sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    while more := {name for name, bases in classes if bases & known} - known:
        known |= more
    public = {name for module in PUBLIC for name in public_names(module)}
    return known & public


def events() -> tuple[set[str], set[str]]:
    """The names of events that are logged where they are written; and all texts that look like one, because a few
    events are chosen before they are logged."""
    nodes = [node for tree in _sources() for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node.func) in LOGGING]
    return {name for call in calls for name in _names(call.args[:3])}, set(_names(nodes))


def _sources() -> Iterator[ast.Module]:
    for package in ("neli_router", "airflow_provider"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "lab" not in path.relative_to(ROOT).parts:
                yield ast.parse(path.read_text(encoding="utf-8"))


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and EVENT.fullmatch(node.value):
            yield node.value


def _called(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _literal(node: ast.expr) -> str:
    return str(ast.literal_eval(node))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# The site


def write() -> None:
    for name, text in pages().items():
        path = REFERENCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def build() -> int:
    """Copy the pages to one place, and let zensical make the site from it; return its exit code."""
    source = SITE / "source"
    shutil.rmtree(SITE, ignore_errors=True)
    for name in COPIED:
        here, there = ROOT / name, source / name
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
        elif here.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here, there)
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    write()
    raise SystemExit(build() if "--site" in sys.argv else 0)
