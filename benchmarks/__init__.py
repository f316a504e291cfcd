"""Measurements of this package beside what one would compare it with; nothing here is asserted."""
