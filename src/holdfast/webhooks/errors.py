"""What `send`, `check_url` and the verify functions raise. A handler lets the errors of `send` fly."""

from datetime import timedelta

from holdfast.domain.errors import HandlerSignal, InvalidInput, Permanent, Retryable
from holdfast.webhooks.response import Response


class WebhookError(HandlerSignal):
    """The webhook was not delivered. `response` is as much of the response as arrived, or None."""

    code: str
    response: Response | None = None


class WebhookTimeout(WebhookError, Retryable):
    """The response did not arrive completely in time."""

    def __init__(self, message: str, response: Response | None = None) -> None:
        super().__init__(message, code="WebhookTimeout")
        self.response = response


class WebhookNon2xx(WebhookError, Retryable):
    """The receiver answered with a status other than 2xx and 410. `after` is the delay it asked for, if any."""

    response: Response

    def __init__(self, message: str, response: Response, after: timedelta | None = None) -> None:
        super().__init__(message, code="WebhookNon2xx", after=after)
        self.response = response


class HttpException(WebhookError, Retryable):
    """The network failed: DNS, connection, TLS, or a response that is not HTTP."""

    def __init__(self, message: str, response: Response | None = None) -> None:
        super().__init__(message, code="HttpException")
        self.response = response


class WebhookGone(WebhookError, Permanent):
    """The receiver answered 410: it wants no more webhooks."""

    response: Response

    def __init__(self, message: str, response: Response) -> None:
        super().__init__("WebhookGone", message)
        self.response = response


class WebhookAddressRefused(WebhookError, Permanent):
    """The address is malformed, not allowed by the policy, or leads to an address that is not public."""

    def __init__(self, message: str) -> None:
        super().__init__("WebhookAddressRefused", message)


class InvalidSignature(InvalidInput):
    """The signature of a webhook is missing, wrong or too old. The message says which."""
