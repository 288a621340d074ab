"""A Django site of one file that takes orders. Usage: django_orders.py runserver 127.0.0.1:8000.

In a larger site the producer belongs in a separate module such as `events.py`; the rest is the same.
"""

from __future__ import annotations

import json
import sys
from functools import cache

from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, JsonResponse
from django.urls import path

from millpond import ClientError, Producer

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",
    MIDDLEWARE=[],
)


@cache
def producer() -> Producer:
    """One per process, created at the first request: web servers fork after they have loaded the site."""
    return Producer(delivery_timeout_s=5)


def place(request: HttpRequest) -> JsonResponse:
    if request.method != "POST":
        return JsonResponse({"error": "POST an order"}, status=405)
    try:
        order = json.loads(request.body)
        at = producer().send("django.orders", order, key=str(order["customer"])).result()
    except (ValueError, KeyError, TypeError):
        return JsonResponse({"error": "an order is JSON with a customer"}, status=400)
    except ClientError as fault:
        return JsonResponse({"error": str(fault)}, status=503)
    return JsonResponse({"topic": at.topic, "partition": at.partition, "offset": at.offset}, status=201)


urlpatterns = [path("orders", place)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
