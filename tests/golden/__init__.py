"""Numbers of other libraries, and what records them."""
