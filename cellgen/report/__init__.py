"""Pages about cells: self-contained HTML for a file, pieces of it for a notebook."""
