"""Teachers that vote beside the patterns: rules, classifiers, models behind an API, functions and estimators."""
