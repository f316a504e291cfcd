"""The methods of the comparison, all behind the same calls."""
