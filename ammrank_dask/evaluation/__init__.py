"""The comparison of methods: folds, measures, exposure by policy."""
