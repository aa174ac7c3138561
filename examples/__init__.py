"""Programs that train through a running service: `python -m examples.digits --url http://127.0.0.1:8080`."""
