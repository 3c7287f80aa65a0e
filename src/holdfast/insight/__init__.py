"""What a store can tell about itself."""
