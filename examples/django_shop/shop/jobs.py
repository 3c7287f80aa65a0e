"""The jobs of this application. Holdfast finds this module by its name, as Django finds admin.py."""

from dataclasses import dataclass

from django.db import connection, transaction
from django.utils import timezone

from holdfast import Kind, RunningJob
from holdfast.django import app
from shop.models import Order


@dataclass
class Placed:
    order: int


CONFIRM = Kind("order.confirm", Placed)


@app.handler(CONFIRM, attempts=5, backoff="exponential base=100ms max=1s")
def confirm(job: RunningJob[Placed]) -> None:
    """Its writes and the end of its job share one transaction."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=job.payload.order)
        order.confirmed_at = timezone.now()
        order.save()
        job.finish_in(connection)
