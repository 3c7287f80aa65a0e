"""The subscriber that ships with Holdfast: it passes events on to RabbitMQ, and succeeds when the broker has them."""
