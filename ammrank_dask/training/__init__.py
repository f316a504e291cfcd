"""Sharded training: rows prepared once, rounds of shards, merges, tuning, the gate."""
