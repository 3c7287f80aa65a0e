from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from holdfast.django import app
from shop.jobs import CONFIRM, Placed
from shop.models import Order


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    """The order and its job are written together, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(customer=request.POST["customer"])
        app.sync.enqueue(CONFIRM, Placed(order.pk), key=f"order-{order.pk}")
        if not request.POST["customer"].endswith("@example.com"):
            # Rolls back the order and the job.
            transaction.set_rollback(True)
            return JsonResponse({"error": "we only sell to example.com"}, status=400)
    return JsonResponse({"order": order.pk}, status=201)


@require_GET
def show_order(request: HttpRequest, number: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"order": number, "note": order.note, "confirmed": order.confirmed_at is not None})


@require_POST
def note_order(request: HttpRequest, number: int) -> HttpResponse:
    with transaction.atomic():
        order = get_object_or_404(Order.objects.select_for_update(), pk=number)
        order.note = request.POST["note"]
        order.save()
    return JsonResponse({"order": number})
