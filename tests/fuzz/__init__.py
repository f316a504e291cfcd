"""Damaged and odd files of all kinds that come from outside: each is read, or refused in one sentence."""
