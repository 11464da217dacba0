import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from customers.models import Invoice
from msgworker.contrib.django import send


@csrf_exempt
@transaction.atomic
def invoice(request: HttpRequest, number: str) -> JsonResponse:
    """The invoice and its message are there both, or neither is."""
    made = Invoice.objects.create(customer=number, amount=json.loads(request.body)["amount"])
    msg_id = send("invoice.book", {"invoice": made.pk}, object_id=number)
    if made.amount < 0:
        transaction.set_rollback(True)
        return JsonResponse({"error": "a negative amount"}, status=400)
    return JsonResponse({"invoice": made.pk, "message": msg_id})
