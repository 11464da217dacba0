from customers.views import invoice
from django.urls import path

urlpatterns = [path("customers/<str:number>/invoices", invoice)]
