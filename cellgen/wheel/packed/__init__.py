"""What stands in a wheel of kernels, copied as it is. It needs NumPy, and nothing of cellgen."""
