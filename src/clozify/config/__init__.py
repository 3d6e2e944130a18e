"""What users write: patterns, tasks and recipes, as Pydantic models."""
