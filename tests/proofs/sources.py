"""Which sources a proof depends on, as one hash that ignores comments, docstrings and layout.

    command --> root modules --import, import, ...--> modules --syntax trees without docstrings--> hash
    patch --------------------------------------------------------------------------------------'

Imports are read from the text, including imports inside functions. A package's own `__init__` counts only where a name
is taken from it: `neli_router/__init__.py` offers the whole product, and a simulator that imports one pure module below
it does not depend on the rest.

The command line that starts a proof is not part of the hash. The profiles that it looks up are: they are declared next
to the bounds.
"""

import ast
import hashlib
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.proofs.catalogue import Proof
from tests.proofs.mutation import MUTANTS
from tests.support.servers import quint

__all__ = ["modules_of", "sources_hash", "tree_hash"]

ROOT = Path(__file__).parents[2]

MODEL = sorted(path for path in Path(ROOT, "tests", "quint").iterdir() if path.suffix in {".qnt", ".cjs", ".jsonl"})
MODEL.append(quint.SOURCE)
"""The files of the model that are not Python modules. The last names the version of Quint."""

OURS = ("neli_router", "airflow_provider", "tests")

HASH_LENGTH = 16
"""Hexadecimal digits. Two sources must not share a hash by chance. The lock does not defend against attackers."""

EXPLORED = {
    "induction": ("induction.steps",),
    "neli": ("consumer_group.steps",),
    "fast-neli": ("consumer_group.steps",),
    "term": ("term.steps", "term.canon"),
    "gossip": ("gossip.steps",),
    "cells": ("cells",),
}
SIMULATED = {"induction": "induction", "neli": "consumer_group", "fast-neli": "consumer_group"}
"""All others are electors."""


def sources_hash(proof: Proof) -> str:
    """A hash of everything that could change the result."""
    summed = hashlib.sha256()
    for module in sorted(modules_of(proof.command)):
        summed.update(f"{module} {_module_hash(module)}\n".encode())
    for patch in _patches(proof):
        summed.update(patch.read_bytes().partition(b"\n---\n")[2])  # The text before it is prose.
    if proof.is_of_the_model:
        for path in MODEL:
            summed.update(path.read_bytes())
    return summed.hexdigest()[:HASH_LENGTH]


def _patches(proof: Proof) -> Iterator[Path]:
    if proof.patch is not None:
        yield proof.patch
    if proof.is_of_the_model:
        named = {MUTANTS / f"{word}.patch" for word in shlex.split(proof.command)}
        yield from sorted(path for path in named if path.exists())


def modules_of(command: str) -> frozenset[str]:
    """The modules that a command depends on, by their dotted names."""
    program, *words = shlex.split(command)
    if program == "quint":
        return _closure(("tests.quint.model", "tests.quint.traces"))
    if program == "pytest":
        roots = [word.removesuffix(".py").replace("/", ".") for word in words if word.endswith(".py")]
    else:
        protocol = words[words.index("--protocol") + 1] if "--protocol" in words else "induction"
        simulated = f"{SIMULATED.get(protocol, 'electors')}.simulate"
        modules = ("explore", *EXPLORED[protocol]) if words[0] == "explore" else (simulated,)
        roots = [f"neli_router.lab.sim.{module}" for module in modules]
    assert roots, command
    return _closure(tuple(roots))


@cache
def _closure(roots: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += _imports(module)
    return frozenset(found)


@cache
def _imports(module: str) -> frozenset[str]:
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if _path(below) is not None else node.module)
    return frozenset(name for name in found if name.partition(".")[0] in OURS and _path(name) is not None)


@cache
def _path(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    path = _path(module)
    assert path is not None, f"no module {module}"
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _module_hash(module: str) -> str:
    return tree_hash(_tree(module))


def tree_hash(tree: ast.Module) -> str:
    """A hash of what the code does: positions, comments and bare strings do not count.

    It does not use `ast.dump`, whose text differs between Python versions.
    """
    words: list[str] = []
    _spell(tree, words)
    return hashlib.sha256("\0".join(words).encode(errors="surrogatepass")).hexdigest()


def _spell(node: object, words: list[str]) -> None:
    if isinstance(node, ast.AST):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return
        words.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != []:  # Later versions add fields, which are empty for older code.
                words.append(name)
                _spell(value, words)
        words.append("/")
    elif isinstance(node, list):
        for item in node:
            _spell(item, words)
        words.append("]")
    else:
        words.append(repr(node))
