"""Forms over time of a cell in torch: whole chunks of steps as products and scans of tensors."""
