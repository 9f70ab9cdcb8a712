"""Helper modules that tests share: models, sources, statistics of whole runs."""
