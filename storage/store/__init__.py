"""What we write: parts, codecs, runs, one reader and writer per format."""
