"""What a process of Holdfast answers over HTTP."""
