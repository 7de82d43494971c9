"""The command line, one subject a module."""
