"""The commands that the laboratory adds to `holdfast`. Each imports the rest of the laboratory only when it runs."""
