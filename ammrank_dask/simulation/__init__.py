"""A simulated world of users with known interests, and the lake it leaves."""
