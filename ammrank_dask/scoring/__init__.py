"""Features and a model to qualifications, by policy."""
