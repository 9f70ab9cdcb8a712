"""The transformer: one model of many families, told apart by its configuration only."""
