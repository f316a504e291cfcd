"""What a stage does with a site."""
