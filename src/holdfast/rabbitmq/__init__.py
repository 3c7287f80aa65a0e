"""All that speaks to RabbitMQ: wake-ups, and the relay of events."""
