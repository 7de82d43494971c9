"""Generated folders: written, compared, compiled."""
