"""The provider as Airflow sees it: it fits both of Airflow's schemas, and names every class that there is."""

import importlib
import inspect
import json
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from airflow.providers.common.compat.sdk import (
    AirflowOptionalProviderFeatureException,
    BaseHook,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
)
from airflow.triggers.base import BaseTrigger

import airflow_provider
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.operators.neli import LeaderGate
from airflow_provider.sensors.neli import LeaderSensor

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parent.parent.parent
INFO = get_provider_info()
PROVIDER = ROOT / "airflow_provider"

BASES = {"hooks": BaseHook, "operators": BaseOperator, "sensors": BaseSensorOperator, "triggers": BaseTrigger}
"""The key of each kind in the info, which is also its folder -> the base class of that kind."""


def ours(module: ModuleType, base: type) -> Iterator[type]:
    """The public classes of `module` that extend `base`."""
    for name, one in inspect.getmembers(module, inspect.isclass):
        if one.__module__ == module.__name__ and issubclass(one, base) and not name.startswith("_"):
            yield one


def modules(folder: Path = PROVIDER) -> list[str]:
    found = [path.relative_to(ROOT).with_suffix("").parts for path in sorted(folder.rglob("*.py"))]
    return [".".join(parts) for parts in found if not any(part.startswith("_") for part in parts)]


def schema(name: str) -> Any:
    return json.loads(files("airflow").joinpath(name).read_text(encoding="utf-8"))


def test_it_fits_the_schema_by_which_airflow_checks_providers_and_the_stricter_one_of_its_own() -> None:
    jsonschema.validate(INFO, schema("provider_info.schema.json"))
    of_a_release = {"state": "ready", "source-date-epoch": 0, "versions": ["0.1.0"]}
    jsonschema.validate({**INFO, **of_a_release}, schema("provider.yaml.schema.json"))


@pytest.mark.parametrize("kind", BASES)
def test_each_module_with_classes_is_named(kind: str) -> None:
    named = [module for entry in INFO.get(kind, []) for module in entry["python-modules"]]
    assert modules(PROVIDER / kind) == sorted(named)
    assert all(list(ours(importlib.import_module(module), BASES[kind])) for module in named)


def test_each_type_of_connection_has_its_hook_and_each_decorator_and_each_link_is_named() -> None:
    hooks = [hook for module in modules(PROVIDER / "hooks") for hook in ours(importlib.import_module(module), BaseHook)]
    expected = {f"{hook.__module__}.{hook.__name__}": (hook.conn_type, hook.hook_name) for hook in hooks}  # type: ignore[attr-defined]
    assert expected == {
        one["hook-class-name"]: (one["connection-type"], one["hook-name"]) for one in INFO["connection-types"]
    }
    named = [one["class-name"].rpartition(".") for one in INFO.get("task-decorators", [])]
    assert modules(PROVIDER / "decorators") == sorted({module for module, _, _ in named})
    for module, _, function in named:
        assert callable(getattr(importlib.import_module(module), function))
    links = ours(importlib.import_module("airflow_provider.links"), BaseOperatorLink)
    assert {f"{link.__module__}.{link.__name__}" for link in links} == set(INFO.get("extra-links", []))


@pytest.mark.parametrize(
    ("version", "problem"),
    [("2.10.4", "2.10.4 is installed"), ("3.0.6", "3.0.6 is installed"), ("", "it is not installed")],
)
def test_an_airflow_that_is_too_old_is_told_why(monkeypatch: pytest.MonkeyPatch, version: str, problem: str) -> None:
    monkeypatch.setattr(airflow_provider, "version", lambda name: version_of(name, version))
    bare = get_provider_info()
    assert {"package-name", "name", "description"} == set(bare)
    folders = (path.parent.name for path in sorted(PROVIDER.glob("*/__init__.py")))
    for name in (*folders, "partitions", "retries"):
        with pytest.raises(ImportError, match=f"Airflow 3.1 or newer was wanted, but {problem}: install the extra"):
            importlib.reload(importlib.import_module(f"airflow_provider.{name}"))


def test_an_older_airflow_is_told_what_came_with_3_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_provider, "version", lambda name: "3.2.2")
    for name, what in (("partitions", "partitioned runs"), ("retries", "retry policies")):
        with pytest.raises(AirflowOptionalProviderFeatureException, match=f"3.3 or newer was wanted for {what}"):
            importlib.reload(importlib.import_module(f"airflow_provider.{name}"))
    with pytest.raises(AirflowOptionalProviderFeatureException, match="start_from_trigger"):
        LeaderSensor(task_id="sensor", role="nightly", start_from_trigger=True)
    assert not LeaderGate(task_id="gate", role="nightly").start_from_trigger


def version_of(name: str, version: str) -> str:
    """Like `importlib.metadata.version`: before 3.0, Airflow was one package."""
    if not version or (name == "apache-airflow-core" and version.startswith("2")):
        raise metadata.PackageNotFoundError(name)
    return version


def test_an_airflow_that_is_new_enough_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.1.0", "3.3.2", "3.4.0rc1", "4.0.0"):
        monkeypatch.setattr(airflow_provider, "version", lambda name, version=version: version)
        assert "" == airflow_provider.airflow_problem()
