"""Any file, any environment and any flags give a configuration or a ConfigError, and never show a secret."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neli_router.config.options import OPTIONS, shown
from neli_router.config.resolve import resolve
from neli_router.drivers.addresses import public_address
from neli_router.errors import ConfigError

SECRET = "Tr0ub4dor&3-Tr0ub4dor"  # noqa: S105 - of a test.

names = st.sampled_from([option.name for option in OPTIONS.values()] + ["layout", "agent", "token", "leese", ""])
addresses = ["memory://jobs", f"memory://u:{SECRET}@jobs", f"postgresql://h/db?group=jobs&password={SECRET}"]
samples = st.sampled_from([*addresses, "none", "exclusive", "127.0.0.1:0", 10**30, -1])
atoms = st.text(max_size=20) | st.integers() | st.floats() | st.booleans() | samples


def toml(value: Any) -> str:
    """The value in TOML; texts are escaped, so that they come back unchanged."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" if 0xD800 > ord(c) or ord(c) > 0xDFFF else "?" for c in value) + '"'
        case dict():
            return "{" + ", ".join(f"{toml(key)} = {toml(held)}" for key, held in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return str(value)


values = st.recursive(atoms, lambda it: st.lists(it, max_size=3) | st.dictionaries(names, it, max_size=3), max_leaves=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "neli.toml"


def outcome(flags: dict[str, object], environ: dict[str, str], path: Path | None) -> str:
    """Everything that is shown of a resolution."""
    try:
        made = resolve(flags, environ, None if path is None else str(path), places=())
    except ConfigError as error:
        return f"{error} {error!r}"
    return f"{made!r} {made.agent!r} {made.settings!r}"


@given(st.binary(max_size=400) | st.text(alphabet="abelns[]{}='\"\n.,0123456789#\\ \t", max_size=200).map(str.encode))
@settings(max_examples=100)
@example(b"ledger = 'memory://x'\nlease = 1" + b"0" * 400)
@example(b"lease = 1e999\nweight = -0\nbeat = nan\nlayout.slots = 0x" + b"f" * 400)
@example(b"[[agent]]\n[[layout]]\n")
@example(b"name = 2001-01-01T00:00:00Z\nagent.socket = [1]")
@example(b"'agent.socket' = '/a'\n'layout.slots' = 5")
def test_any_bytes_in_the_file_give_a_configuration_or_its_problems(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    outcome({}, {"NELI_LEDGER": "memory://jobs"}, path)


@given(st.dictionaries(names | st.text(max_size=8), values, max_size=6))
@settings(max_examples=60)
def test_any_values_in_the_file_give_a_configuration_or_its_problems(path: Path, tables: dict[str, Any]) -> None:
    path.write_text("\n".join(f"{toml(name)} = {toml(value)}" for name, value in tables.items()), encoding="utf-8")
    assert SECRET not in outcome({}, {}, path)


others = ["NELI_TOKEN", "NELI_LEESE", "POD_NAME", "POD_IP", "NELI_"]
variables = st.sampled_from([option.variable for option in OPTIONS.values()] + others)
numbers = st.sampled_from(["1", "1e308", "9" * 5000, "9" * 18])
# The form of `os.environ`: bytes that are not UTF-8 become lone surrogates.
texts = st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(
    st.dictionaries(variables, texts | atoms.map(str) | numbers, max_size=8),
    st.dictionaries(st.sampled_from(sorted(OPTIONS)), texts | st.booleans() | st.none(), max_size=4),
)
@settings(max_examples=150)
@example({"NELI_LEDGER": f"kafka:{SECRET}@a@b"}, {})
@example({"NELI_TOKEN": SECRET, "NELI_LEDGER": f"memory:?x_secret={SECRET}"}, {})
@example({"NELI_TOKEN": SECRET + "\n"}, {})
@example({"NELI_TOKEN_FILE": SECRET}, {"agent.token_file": f"/{SECRET}/\udcff"})
@example({"NELI_AGENT_SOCKET": "/\udcff"}, {"agent.listen": "[::]:0"})
@example({"POD_IP": "\n", "POD_NAME": "\x00"}, {"agent.listen": ""})
def test_any_variables_and_flags_give_a_config_or_problems(environ: dict[str, str], flags: dict[str, object]) -> None:
    # This test must not touch this host's disk.
    found = outcome(flags, environ, None)
    assert SECRET not in found
    found.encode()  # It can be printed, whatever was in it.


@given(st.text(max_size=20), st.text(max_size=20), st.text(alphabet="abc/:.", max_size=20))
def test_no_part_of_an_address_before_an_at_is_shown(before: str, after: str, place: str) -> None:
    address = f"kafka://{before}{SECRET}{after}@{place}"
    assert SECRET not in public_address(address) + shown(OPTIONS["ledger"], address)
