"""The mathematics of a cell in single assignment: forward, adjoint, tangent, what is saved."""
