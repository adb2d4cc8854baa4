"""What refuses a run, or warns of it, before it starts."""
