"""The HTTP API, and the page on which anyone can verify a passport or a webhook."""

from apps.passports.api.app import create_api
from apps.passports.api.serving import serve

__all__ = ["create_api", "serve"]
