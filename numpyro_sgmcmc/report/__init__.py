"""What a run says at its end: its checks, its doubts with their remedies, its warning."""
