"""What few need: kernels and diagnostics for special cases, and experiments."""
