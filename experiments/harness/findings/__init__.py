"""What experiments tell of a run: tables, reasons, causes, pictures of terminals."""
