"""Source transforms that turn a commit into the variants whose race is measured."""
