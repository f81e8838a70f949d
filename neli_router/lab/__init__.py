"""The laboratory: simulator and explorer, the demo, the pipeline's show, real member processes, a local Airflow.

The product never imports it and works without it. It adds its own commands to `neli`.
It may import agent, airflow_provider, config, drivers, fence, hosts, member, protocols, router, spark and status.
"""
