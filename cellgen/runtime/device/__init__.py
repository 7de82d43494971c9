"""CUDA: compiled libraries, device arrays, launches, graphs."""
