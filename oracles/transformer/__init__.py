"""The transformer: one model for many families, which differ in configuration only."""
