"""The cluster a command runs on: opening, checking, interrupting."""
