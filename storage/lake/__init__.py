"""What users have: event files, people, taxonomy, lists."""
