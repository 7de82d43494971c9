"""A built kernel: its interface, calls, threads, compiling and loading. Never SymPy or Jinja2."""
