"""Method files for `ammrank evaluate --methods FILE.py`: what others would use instead, in the same folds."""
