"""Threads, plans, memory and signals of this process."""
