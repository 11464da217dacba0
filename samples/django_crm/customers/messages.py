"""Handlers: imported by msgworker.contrib.django, as `messages` of an installed app."""

from django.db import transaction

from customers.models import Booking, Invoice
from msgworker import Context, Message
from msgworker.contrib.django import handler


@handler("invoice.book")
def book(msg: Message, ctx: Context) -> None:
    """Plain, with the ORM. It may run again after a crash, so the key makes it once."""
    with transaction.atomic():
        invoice = Invoice.objects.select_for_update().get(pk=msg.payload["invoice"])
        Booking.objects.get_or_create(
            booking_key=msg.idempotency_key, defaults={"invoice": invoice}
        )
    ctx.log.info("booked invoice %s", invoice.pk)
