"""Everything that talks to RabbitMQ: wake-ups, and the relay of events."""
