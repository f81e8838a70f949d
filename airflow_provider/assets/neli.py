"""Assets: `neli://group/role` names a role of a group, for schedules, watchers and lineage.

    Asset("neli://jobs/EUR USD") ----------------> sanitize_uri --> neli://jobs/EUR%20USD
    create_asset(group="jobs", role="EUR USD") --'                       |
                                                                         '--> OpenLineage: neli://jobs, EUR USD

The URI only names: a trigger that watches the role reaches its group through a connection. `group` is the group's name
among all that write to one lineage, such as the end of its ledger's address.

Airflow imports this module when any Dag file first creates an asset with a URI, so it imports little.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.providers.common.compat.sdk import Asset

from airflow_provider._arguments import asked_role

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

__all__ = ["convert_asset_to_openlineage", "create_asset", "sanitize_uri"]


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Give each role one spelling. Raises ValueError unless `uri` is `neli://group/role`."""
    role = uri.path[1:]
    if not uri.netloc or not role or "/" in role or uri.query:
        raise ValueError(
            f"neli://group/role was wanted, but the URI is {uri.geturl()!r:.200}: name both, and write a / in a role "
            "as %2F"
        )
    return SplitResult(uri.scheme, uri.netloc, f"/{quote(unquote(role), safe='')}", query="", fragment="")


def create_asset(*, group: str, role: int | str, extra: dict[str, Any] | None = None) -> Asset:
    """The asset of a role.

    :param group: the name of the group
    :param role: a name, or the number of a partition
    :param extra: whatever else Airflow should store with the asset
    """
    return Asset(uri=f"neli://{quote(group, safe='')}/{quote(str(asked_role(role)), safe='')}", extra=extra)


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> "Dataset":  # noqa: ARG001 - Airflow passes it.
    """The role of an asset `neli:` as a data set of OpenLineage."""
    # Importing OpenLineage takes a moment, and few Dag files need it.
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"neli://{uri.netloc}", name=unquote(uri.path[1:]))
