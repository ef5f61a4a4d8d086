"""What happens on a GPU host: builds of a subject and race trials; no database, no web."""
