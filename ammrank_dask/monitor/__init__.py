"""Watch a night: events that drivers publish, their state in the scheduler, the dashboard page, JSON and metrics.

This package imports nothing heavy by itself: `events` is all that drivers need, `plugin` is what a scheduler needs.
"""
