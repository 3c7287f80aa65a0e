"""The HTTP API of the invoicing service."""

from apps.invoicing.api.app import create_api
from apps.invoicing.api.serving import serve

__all__ = ["create_api", "serve"]
