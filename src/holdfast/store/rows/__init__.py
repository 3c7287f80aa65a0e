"""The application's own table as the queue."""
