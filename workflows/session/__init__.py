"""What every command shares: config, options, progress, the record of a night."""
