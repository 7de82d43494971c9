"""Schedules spelled in C."""
