"""What a run says at its end: its checks with their remedies, and its warning."""
