"""What the bridges to other frameworks share: which functions they call, and with what.

Imports no framework.
"""
