"""The web service around the runner (not part of this version)."""
