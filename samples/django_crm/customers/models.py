from django.db import models


class Invoice(models.Model):
    customer = models.CharField(max_length=50)
    amount = models.IntegerField()


class Booking(models.Model):
    """What the handler makes of an invoice, once: `booking_key` is the message's."""

    booking_key = models.CharField(max_length=100, unique=True)
    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE)
