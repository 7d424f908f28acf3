"""What layers look at: attention maps of a text, and the share that falls on its sink."""
