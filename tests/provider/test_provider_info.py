"""The provider as Airflow sees it: it fits both of Airflow's schemas, and names every class that there is."""

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
from airflow.providers.apache.spark.get_provider_info import get_provider_info as info_of_spark
from airflow.providers.common.compat.openlineage import facet
from airflow.providers.common.compat.sdk import (
    AirflowOptionalProviderFeatureException,
    Asset,
    BaseHook,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
)
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers_manager import ProvidersManager
from airflow.sdk.lineage import HookLineageCollector
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from airflow.triggers.base import BaseTrigger

import airflow_provider
from airflow_provider.assets.neli import convert_asset_to_openlineage, create_asset
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.sensors.neli import LeaderGateSensor, LeaderSensor
from airflow_provider.triggers.neli import OwnershipTrigger

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


def test_it_lacks_nothing_that_airflows_own_providers_of_kafka_and_spark_have() -> None:
    # Those of Kafka's version 2.1.
    of_kafka = {"asset-uris", "config", "hooks", "operators", "plugins", "queues", "sensors", "triggers"}
    spark = info_of_spark()  # type: ignore[no-untyped-call]
    assert set() == (set(spark) | of_kafka) - set(INFO)
    (ours,) = INFO["integrations"]
    assert set(spark["integrations"][0]) == set(ours)
    assert {ours["integration-name"]} == {entry["integration-name"] for kind in BASES for entry in INFO[kind]}
    assert all((ROOT / guide.removeprefix("/")).is_file() for guide in ours["how-to-guide"])
    assert (ROOT / "neli_router/status/page" / Path(ours["logo"]).name).is_file()


def test_airflow_finds_the_queue_the_plugin_and_what_makes_assets() -> None:
    manager, at_run_time = ProvidersManager(), ProvidersManagerTaskRuntime()  # type: ignore[no-untyped-call]
    assert set(INFO["queues"]) <= set(manager.queue_class_names or [])
    assert {one["plugin-class"] for one in INFO["plugins"]} <= {one.plugin_class for one in manager.plugins}
    assert convert_asset_to_openlineage is at_run_time.asset_to_openlineage_converters["neli"]


def test_a_role_is_an_asset_of_one_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    asset = create_asset(group="jobs", role="EUR/USD é", extra={"desk": "fx"})
    assert ("neli://jobs/EUR%2FUSD%20%C3%A9", {"desk": "fx"}) == (asset.uri, asset.extra)
    assert asset.uri == Asset("neli://jobs/EUR%2fUSD é/").uri
    lineage = HookLineageCollector()  # type: ignore[no-untyped-call]
    assert Asset("neli://jobs/7") == lineage.create_asset(scheme="neli", asset_kwargs={"group": "jobs", "role": 7})
    for wrong in ("neli://jobs", "neli:///nightly", "neli://jobs/EUR/USD", "neli://jobs/nightly?on=lost"):
        with pytest.raises(ValueError, match="neli://group/role was wanted"):
            Asset(wrong)
    monkeypatch.setattr(facet, "Dataset", SimpleNamespace)  # OpenLineage's, which may not be installed.
    seen = convert_asset_to_openlineage(asset, None)
    assert ("neli://jobs", "EUR/USD é") == (seen.namespace, seen.name)


def test_a_message_queue_of_our_scheme_is_an_ownership_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"role": "nightly", "on": ["lost"]}
    assert OwnershipTrigger(**arguments).serialize() == MessageQueueTrigger(scheme="neli", **arguments).serialize()
    monkeypatch.setitem(sys.modules, "airflow.providers.common.messaging.providers.base_provider", None)
    with pytest.raises(AirflowOptionalProviderFeatureException, match=r"common-messaging was wanted .* 'messaging'"):
        importlib.reload(importlib.import_module("airflow_provider.queues.neli"))


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
    assert not LeaderGateSensor(task_id="gate", role="nightly").start_from_trigger


def version_of(name: str, version: str) -> str:
    """Like `importlib.metadata.version`: before 3.0, Airflow was one package."""
    if not version or (name == "apache-airflow-core" and version.startswith("2")):
        raise metadata.PackageNotFoundError(name)
    return version


def test_an_airflow_that_is_new_enough_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.1.0", "3.3.2", "3.4.0rc1", "4.0.0"):
        monkeypatch.setattr(airflow_provider, "version", lambda name, version=version: version)
        assert "" == airflow_provider.airflow_problem()
