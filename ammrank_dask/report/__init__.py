"""Qualifications to the report: exposure, starvation, drift, hits, checks."""
