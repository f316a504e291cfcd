"""The jobs that a person or a scheduler starts."""
