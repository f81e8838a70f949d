"""The provider as Airflow sees it: its classes, its connection form, and the options of `[neli]`.

    entry point apache_airflow_provider --every process of Airflow--> get_provider_info() --> a dict in Airflow's form

Airflow calls this before it imports anything else of ours, and an error here would end every Airflow command. So this
module imports nothing of Airflow. It lists no classes to an Airflow that is too old: that Airflow goes on, and a Dag
that imports one of our classes gets an error that says why.
"""

from typing import Any

from airflow_provider import airflow_problem

__all__ = ["get_provider_info"]

NAME = "NELI Router"

_ABOUT: dict[str, Any] = {
    "package-name": "neli-router",
    "name": NAME,
    "description": "Tasks, sensors and Spark jobs that run only where their role is led.",
}

_INTEGRATION: dict[str, Any] = {
    "integration-name": NAME,
    "external-doc-url": "https://github.com/obsidiandynamics/neli",
    "how-to-guide": ["/docs/airflow.md"],
    "logo": "/neli/assets/icon.svg",  # Airflow's API server has it, next to the page.
    "tags": ["software"],
}

_ASSETS = "airflow_provider.assets.neli"

_CONNECTION: dict[str, Any] = {
    "connection-type": "neli",
    "hook-class-name": "airflow_provider.hooks.neli.NeliHook",
    "hook-name": NAME,
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {
            "host": "Host of the agent, if it has no socket",
            "login": "User of the ledger",
            "password": "Token of the agent, or password of the ledger",
        },
        "placeholders": {"host": "127.0.0.1", "port": "7635"},
    },
    "conn-fields": {
        "address": {
            "label": "Address",
            "description": "Of this host's agent, such as unix:/run/neli/agent.sock; or of a ledger, such as "
            "sqlite:///var/lib/jobs/ledger.db, kafka://host:9092/jobs or redis://host:6379/jobs. Empty: the agent at "
            "its default socket.",
            "schema": {"type": ["string", "null"]},
        },
        "ownership": {
            "label": "Owners",
            "description": "Where members publish who owns what, such as redis://host:6379/jobs or "
            "postgresql://host/app?group=jobs: to ask instead of the address. Leases need an agent.",
            "schema": {"type": ["string", "null"]},
        },
    },
}

_OPTIONS: dict[str, Any] = {
    "agent_in": {
        "description": "Which process of Airflow has this host's agent as its child: scheduler, triggerer, or none.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "scheduler",
        "default": "",
    },
    "agent_config": {
        "description": "The file neli.toml of that agent. Empty: the one that `neli agent` finds on its own.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "/etc/neli/neli.toml",
        "default": "",
    },
    "ledger": {
        "description": "The ledger of that agent. `metadata` is Airflow's own database, if that is a PostgreSQL: the "
        "schema neli in it. Empty: the one in neli.toml.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "metadata?group=prices",
        "default": "",
        "sensitive": True,  # An address may hold a password. So Airflow also takes it from a command or a secret.
    },
    "conn_id": {
        "description": "The connection to this host's agent: its page is shown.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "neli_tokyo",
        "default": "neli_default",
    },
    "roles": {
        "description": "The roles that Dags may name. Any other name is then an import error of the Dag, and so is a "
        "number beyond `partitions`. Empty: any.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "nightly, hourly",
        "default": "",
    },
    "slots": {
        "description": "How many slots the group's keys fall into, as its members have it. For mappers of partitions "
        "in Dags that give no layout.",
        "version_added": "0.1.0",
        "type": "integer",
        "example": None,
        "default": "16384",
    },
    "partitions": {
        "description": "How many partitions the group's slots fall into, as its members have it.",
        "version_added": "0.1.0",
        "type": "integer",
        "example": None,
        "default": "256",
    },
    "tags": {
        "description": "Whether only the part of a key in braces counts, as the group's members have it.",
        "version_added": "0.1.0",
        "type": "boolean",
        "example": None,
        "default": "False",
    },
}


def get_provider_info() -> dict[str, Any]:
    """Everything that this provider has, or only its description if Airflow is too old for it."""
    if airflow_problem():
        return dict(_ABOUT)
    return {
        **_ABOUT,
        "integrations": [_INTEGRATION],
        "hooks": _modules("hooks"),
        "operators": _modules("operators", "leader", "neli", "spark", "sql"),
        "sensors": _modules("sensors"),
        "triggers": _modules("triggers"),
        "asset-uris": [
            {
                "schemes": ["neli"],
                "handler": f"{_ASSETS}.sanitize_uri",
                "factory": f"{_ASSETS}.create_asset",
                "to_openlineage_converter": f"{_ASSETS}.convert_asset_to_openlineage",
            }
        ],
        "queues": ["airflow_provider.queues.neli.NeliMessageQueueProvider"],
        # Airflow loads it by the entry point of the same name; this lists it in `airflow providers`.
        "plugins": [{"name": "neli", "plugin-class": "airflow_provider.plugins.neli.NeliPlugin"}],
        "connection-types": [_CONNECTION],
        "extra-links": ["airflow_provider.links.NeliLink"],
        "config": {"neli": {"description": "NELI Router, in every process of this installation.", "options": _OPTIONS}},
        "task-decorators": [
            {"name": "leader", "class-name": "airflow_provider.decorators.leader.leader_task"},
            {"name": "leader_pyspark", "class-name": "airflow_provider.decorators.leader_pyspark.leader_pyspark_task"},
        ],
    }


def _modules(folder: str, *names: str) -> list[dict[str, Any]]:
    """The modules of a folder that hold classes; the module named like the provider unless others are named."""
    modules = [f"airflow_provider.{folder}.{name}" for name in names or ("neli",)]
    return [{"integration-name": NAME, "python-modules": modules}]
