"""Write one HTML page that holds all of some runs: what they conclude and why, tables, pictures, provenance."""

PAGE = "page.html"
