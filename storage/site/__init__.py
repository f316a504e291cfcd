"""One deployment: what is published, verdicts, logs, forgotten users, reports."""
