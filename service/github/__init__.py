"""GitHub: what it tells the service, and what the service tells it."""
