"""Routing: the work of a Dag is shared out by ownership. Tasks are mapped over the partitions that their host leads.

    owned_partitions() --on the host of the task--> [3, 17, 42] --work.expand(role=...)--> one mapped task for each
                                                                                              |
                                led elsewhere by now: skipped, or waits, as @task.leader says <--when it starts

The list is true when the agent is asked, and a mapped task starts later, perhaps on another host. So the list says how
to share out the work, and the lease that each mapped task takes says who may do it.
"""

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook

__all__ = ["owned_partitions"]


def owned_partitions(neli_conn_id: str = CONNECTION_ID) -> list[int]:
    """The partitions that this host leads now, in order: for a task that others are mapped over.

        @task
        def mine():
            return owned_partitions()

        @task.leader(role="{{ task.op_kwargs['partition'] }}")
        def work(partition, lease): ...

        work.expand(partition=mine())

    Raises ConfigError if the connection is to a ledger, which does not know this host.
    """
    with NeliHook(neli_conn_id) as hook:
        return hook.led()
