"""A cell, a target and a dialect for cellgen, in a package of their own."""
