"""Compile recurrent-cell equations into fused forward and backward kernels in readable C."""
