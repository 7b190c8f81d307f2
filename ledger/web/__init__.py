"""The service over HTTP: ingest, the JSON interface, the page. docs/api.md."""
