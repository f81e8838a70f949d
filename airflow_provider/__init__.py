"""The Airflow provider."""
