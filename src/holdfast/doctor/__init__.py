"""What `holdfast doctor` looks at."""
