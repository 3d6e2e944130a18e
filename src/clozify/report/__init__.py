"""A run's page, model card and tables, made from its run folder."""
